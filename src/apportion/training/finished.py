"""What a run leaves behind."""

from pathlib import Path
from typing import Unpack

import torch

from apportion import ledger
from apportion.bundle.files import LEDGER
from apportion.certificate import Certificate, certify
from apportion.errors import RunError
from apportion.scores import Score, scores
from apportion.stages import PrivateEvaluation
from apportion.training.publishing import PublishOptions, evaluate, publish
from apportion.training.sources import Data


class FinishedRun:
    """A run directory whose weights are released."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def certificate(self, delta: float | None = None) -> Certificate:
        return certify(ledger.read(self.directory / LEDGER), delta)

    def evaluate(self, model: torch.nn.Module, holdout: Data) -> dict[str, Score]:
        """Run the plan's evaluation of the released weights on records that were not trained on, and return its scores."""
        recorded = ledger.read(self.directory / LEDGER)
        pending = recorded.plan.components[recorded.used_components :]
        if not pending or not isinstance(pending[0], PrivateEvaluation):
            raise RunError(
                "the plan declares no evaluation that has not run: declare PrivateEvaluation(…) as its last component, or "
                "pay for one on top of it, publish(evaluate_privately=…)"
            )
        evaluate(self.directory, pending[0], model, holdout)
        return scores(ledger.read(self.directory / LEDGER).evaluations[-1].to_json())

    def publish(self, to: str | Path, **options: Unpack[PublishOptions]) -> Certificate:
        """Write the bundle; the options are those of `apportion.training.publishing.publish`."""
        return publish(self.directory, Path(to), **options)
