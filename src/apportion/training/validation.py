"""Scores that may steer a run: on public data, or on private data with each look paid for."""

import math
from typing import Any

import torch

from apportion import stages
from apportion.adaptive import AdaptivePlan, Plan
from apportion.components.release import rounded_normals
from apportion.errors import DataError, InvalidArgument
from apportion.public import PaidLooks, Public, require_public
from apportion.randomness import RandomStream
from apportion.recording import LedgerWriter
from apportion.training import grid
from apportion.training.counting import right_answers
from apportion.training.labels import check_labels
from apportion.training.losses import PerExampleLoss
from apportion.training.metrics import AT_ONCE, score
from apportion.training.sources import records_of

# What is recorded where a score is not a number, as after a divergence: worse than any other.
WORST = -1e9


class Validation:
    """Scores the model, larger being better: accuracy for class labels, otherwise the negative mean loss."""

    def __init__(self, given: Any, model: torch.nn.Module, loss: PerExampleLoss, plan: Plan, at_once: int) -> None:
        self._source: Public | PaidLooks = require_public("validation", given)
        self._model = model
        self._loss, self._at_once = loss, at_once
        self._data = records_of(self._source.data, model)
        self.every = plan.schedule.every if isinstance(plan, AdaptivePlan) else 1
        if not len(self._data):
            raise DataError("validation holds no record")
        if (labels := self._data.labels()) is not None:
            check_labels("validation", model, loss, self._data.like[0], labels)
        if isinstance(self._source, PaidLooks):
            if self._data.like[1].is_floating_point() or self._data.like[1].dim() != 1:
                raise DataError("a paid look counts right answers: validation needs class labels")
            _check_affordable(self._source, plan)

    @property
    def public(self) -> bool:
        return isinstance(self._source, Public)

    @property
    def declaration(self) -> str:
        if isinstance(self._source, PaidLooks):
            return f"private data; each look a noisy count with noise multiplier {self._source.sigma:g}"
        return f"{len(self._data)} records declared public"

    def measure(self) -> float:
        """The score without noise, for public data only."""
        assert self.public
        found = score(self._model, self._loss, self._data, self._at_once)
        value = found["accuracy"] if "accuracy" in found else -found["loss"]
        return value if math.isfinite(value) else WORST

    def record(self, ledger: LedgerWriter, stream: RandomStream) -> None:
        """Score the model and record it. A look at private data is recorded as an event before it is taken."""
        if isinstance(self._source, PaidLooks):
            ledger.append_event(self._source.event)
            right = right_answers(self._model, self._data.in_order(min(self._at_once, AT_ONCE)))
            normals = grid.whole_normals if ledger.noise == "grid" else rounded_normals
            noise = int(normals(1, self._source.sigma, stream)[0])  # whole numbers: their low bits carry nothing
            ledger.append_score((right + noise) / self._source.examples)
        else:
            ledger.append_score(self.measure())


def _check_affordable(source: PaidLooks, plan: Plan) -> None:
    if not isinstance(plan, AdaptivePlan) or plan.floor is not None:
        raise InvalidArgument(
            "paid looks need an AdaptivePlan without a floor: they count towards its cap; a fixed plan has no room for them"
        )
    others = stages.events_of(plan.components)
    first = plan.next_slot(others, ())
    assert first is not None
    if not plan.admits(source.event, [*others, first.event]):
        raise InvalidArgument(f"one epoch and one look with sigma = {source.sigma:g} exceed the budget ({plan.budget})")
