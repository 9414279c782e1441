"""Decisions that end or shape a run: fixed beforehand, or made by recorded scores on public data.

None of them lowers what is certified: the guarantee is that of the whole plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from apportion import _checks
from apportion.errors import IncompatibleModel, InvalidArgument
from apportion.training.gradients import trainable
from apportion.training.validation import Validation

SchedulerFactory = Callable[[torch.optim.Optimizer], LRScheduler]
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


class LearningRate:
    """A scheduler of torch, stepped once per epoch; a plateau scheduler is given the recorded score."""

    def __init__(
        self, factory: SchedulerFactory, optimizer: torch.optim.Optimizer, validation: Validation | None
    ) -> None:
        self._scheduler = factory(optimizer)
        self._plateau = isinstance(self._scheduler, ReduceLROnPlateau)
        if not isinstance(self._scheduler, LRScheduler):
            raise IncompatibleModel([f"scheduler must return an LRScheduler, got {type(self._scheduler).__name__}"])
        if self._scheduler.optimizer is not optimizer:
            raise IncompatibleModel(["the scheduler belongs to another optimizer"])
        if self._plateau:
            require_scores("a plateau scheduler", validation)

    def step(self, scores: Sequence[float], scored: bool) -> None:
        """After an epoch; a plateau scheduler looks only where there is a new score."""
        if not self._plateau:
            self._scheduler.step()
        elif scored:
            self._scheduler.step(scores[-1])  # larger is better: use mode="max"

    def state(self) -> dict[str, Any]:
        return dict(self._scheduler.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state)


class WeightAverage:
    """An exponential moving average of the parameters over the steps: post-processing of what was paid for."""

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self._decay = _checks.probability("averaging", decay)
        self._model = model
        self.averages = self._current()

    def _current(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in trainable(self._model).items()}

    def add(self) -> None:
        for name, parameter in trainable(self._model).items():
            self.averages[name].lerp_(parameter.detach(), 1 - self._decay)

    def load(self, averages: dict[str, Tensor]) -> None:
        for name, average in self.averages.items():
            average.copy_(averages[name])

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's parameters with their averages."""
        for name, parameter in trainable(self._model).items():
            kept = parameter.detach().clone()
            parameter.copy_(self.averages[name])
            self.averages[name] = kept


def choose_weights(weights: Weights, average: WeightAverage | None, validation: Validation | None) -> None:
    """Leave in the model what is to be released: its last weights, their average, or what scores better in public."""
    if average is None or weights == "last":
        return
    if weights == "better":
        assert validation is not None
        last = validation.measure()
        average.swap()
        if validation.measure() < last:
            average.swap()
    else:
        average.swap()
