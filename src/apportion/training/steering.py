"""Decisions that end or shape a run: fixed beforehand, or made by recorded scores on public data.

None of them lowers what is certified: the guarantee is that of the whole plan.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from apportion import _checks
from apportion.adaptive import AdaptivePlan, Plan
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.public import PaidLooks, Public
from apportion.randomness import RandomStream
from apportion.recording import LedgerWriter
from apportion.training.averaging import WeightAverage
from apportion.training.checkpoint import Checkpoint
from apportion.training.learning_rate import LearningRate, SchedulerEvery, SchedulerFactory
from apportion.training.losses import PerExampleLoss
from apportion.training.validation import Validation

Weights = Literal["last", "averaged", "better"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """Stop once the best score has not been beaten by more than `threshold` for `patience` scores.

    A pure function of the recorded scores, so that a resumed run decides as an uninterrupted one.

    >>> EarlyStop(patience=2)([0.5, 0.6, 0.6, 0.6])
    True
    """

    patience: int
    threshold: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", _checks.count("patience", self.patience))
        object.__setattr__(self, "threshold", _checks.at_least("threshold", self.threshold, 0.0))

    def __call__(self, scores: Sequence[float]) -> bool:
        best, since = None, 0
        for score in scores:
            if best is None or score > best + self.threshold:
                best, since = score, 0
            else:
                since += 1
        return since >= self.patience


def require_scores(what: str, validation: Validation | None) -> Validation:
    if validation is None:
        raise InvalidArgument(
            f"{what} decides by a score: give validation=Public((inputs, targets)); a score on private data would leak"
        )
    return validation


class Steering:
    """All that decides about a run while it runs."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss: PerExampleLoss,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        *,
        at_once: int,
        validation: Public | PaidLooks | None = None,
        stop: EarlyStop | None = None,
        scheduler: SchedulerFactory | None = None,
        scheduler_every: SchedulerEvery = "epoch",
        weights: Weights = "last",
        averaging: float | None = None,
    ) -> None:
        self._validation = None if validation is None else Validation(validation, model, loss, plan, at_once)
        if isinstance(plan, AdaptivePlan):
            require_scores("an adaptive plan", self._validation)
        if stop is not None:
            if not isinstance(stop, EarlyStop):
                raise InvalidArgument(f"stop must be an EarlyStop, which decides by recorded scores; got {stop!r:.80}")
            require_scores("early stopping", self._validation)
        self._stop = stop
        self._rate = None if scheduler is None else LearningRate(scheduler, optimizer, scheduler_every)
        if self._rate is None and scheduler_every != "epoch":
            raise InvalidArgument("scheduler_every=… belongs to a scheduler, and none is given")
        if self._rate is not None and self._rate.plateau:
            require_scores("a plateau scheduler", self._validation)
        self._weights = _checks.choice("weights", weights, get_args(Weights))
        if (weights == "last") != (averaging is None):
            raise InvalidArgument('averaging=… belongs to weights="averaged" or "better", and those need it')
        if weights == "better" and not require_scores('weights="better"', self._validation).public:
            raise InvalidArgument('weights="better" compares two models: that takes Public validation data')
        self._average = None if averaging is None else WeightAverage(model, averaging)

    def declarations(self) -> dict[str, str]:
        """Public facts, for the ledger's first line."""
        facts = {}
        if self._validation is not None:
            facts["validation"] = self._validation.declaration
        if self._stop is not None:
            facts["early stop"] = f"patience {self._stop.patience}, threshold {self._stop.threshold:g}"
        if self._rate is not None:
            facts["learning rate"] = str(self._rate)
        return facts if self._average is None else {**facts, "weights": f"{self._weights} ({self._average.decay:g})"}

    def stops(self, scores: Sequence[float]) -> bool:
        return self._stop is not None and self._stop(scores)

    def step_over(self) -> None:
        if self._average is not None:
            self._average.add()
        if self._rate is not None:
            self._rate.step_over()

    def epoch_over(self) -> None:
        if self._rate is not None:
            self._rate.epoch_over()

    def record(self, completed: int, ledger: LedgerWriter, stream: RandomStream) -> bool:
        """Score the model, if this epoch is one after which it is scored."""
        if self._validation is None or completed % self._validation.every:
            return False
        self._validation.record(ledger, stream)
        return True

    def record_missing(self, saved: Checkpoint, ledger: LedgerWriter, stream: RandomStream) -> None:
        """The score that a crash left out between the checkpoint and its record."""
        if ledger.scored_slot != saved.slot:
            try:
                scored = self.record(saved.completed, ledger, stream)
            except BudgetExhausted:
                return
            if scored:
                self.follow(ledger.scores)

    def follow(self, scores: Sequence[float]) -> bool:
        """Let a plateau scheduler see the new score; True if that changed its state."""
        if self._rate is None or not self._rate.plateau:
            return False
        self._rate.scored(scores[-1])
        return True

    def state(self) -> dict[str, Any]:
        return {
            "scheduler": None if self._rate is None else self._rate.state(),
            "averages": None if self._average is None else self._average.averages,
            "averaged_steps": 0 if self._average is None else self._average.steps,
        }

    def restore(self, saved: Checkpoint) -> None:
        if (self._rate is None) != (saved.scheduler is None) or (self._average is None) != (saved.averages is None):
            raise ValueError("scheduler and averaging must be those of the start")
        if self._rate is not None and saved.scheduler is not None:
            self._rate.load(saved.scheduler)
        if self._average is not None and saved.averages is not None:
            self._average.load(saved.averages, saved.averaged_steps)

    def choose_weights(self) -> None:
        """Leave in the model what is to be released: its last weights, their average, or what scores better in public."""
        if self._average is None:
            return
        last = self._validation.measure() if self._weights == "better" and self._validation is not None else -math.inf
        self._average.swap()
        if self._weights == "better" and self._validation is not None and self._validation.measure() < last:
            self._average.swap()
