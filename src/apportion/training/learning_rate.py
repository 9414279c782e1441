"""Learning rates that change: fixed beforehand, or by recorded scores on public data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from apportion import _checks
from apportion.errors import IncompatibleModel, InvalidArgument

SchedulerFactory = Callable[[torch.optim.Optimizer], LRScheduler]
SchedulerEvery = Literal["epoch", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearThenConstant:
    """From the optimizer's own learning rate linearly to `end` over `over` epochs (or steps), constant from there on.

    The paper's choice is SGD with lr = 0.1 and `LinearThenConstant(end=0.052, over=10)`, `end` being what it varies.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    >>> scheduler = LinearThenConstant(end=0.05, over=2)(optimizer)
    >>> rates = []
    >>> for epoch in range(4):
    ...     rates.append(round(optimizer.param_groups[0]["lr"], 4))
    ...     optimizer.step()
    ...     scheduler.step()
    >>> rates
    [0.1, 0.075, 0.05, 0.05]
    """

    end: float
    over: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "end", _checks.positive("end", self.end))
        object.__setattr__(self, "over", _checks.count("over", self.over))

    def __call__(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        starts = [float(group["lr"]) for group in optimizer.param_groups]
        return LambdaLR(optimizer, [self._factor(start) for start in starts])

    def _factor(self, start: float) -> Callable[[int], float]:
        return lambda tick: 1 + (self.end / start - 1) * min(1.0, tick / self.over)

    def __str__(self) -> str:
        return f"linearly to {self.end:g} over {self.over}, then constant"


class LearningRate:
    """A scheduler of torch, stepped after every epoch or every step; a plateau scheduler is given the recorded score."""

    def __init__(
        self, factory: SchedulerFactory, optimizer: torch.optim.Optimizer, every: SchedulerEvery = "epoch"
    ) -> None:
        self._every = _checks.choice("scheduler_every", every, get_args(SchedulerEvery))
        self._scheduler = factory(optimizer)
        self._text = str(factory) if isinstance(factory, LinearThenConstant) else type(self._scheduler).__name__
        self.plateau = isinstance(self._scheduler, ReduceLROnPlateau)
        if not isinstance(self._scheduler, LRScheduler):
            raise IncompatibleModel([f"scheduler must return an LRScheduler, got {type(self._scheduler).__name__}"])
        if self._scheduler.optimizer is not optimizer:
            raise IncompatibleModel(["the scheduler belongs to another optimizer"])
        if self.plateau and getattr(self._scheduler, "mode", "max") != "max":
            raise InvalidArgument('a score is better the larger it is: give the plateau scheduler mode="max"')
        if self.plateau and every == "step":
            raise InvalidArgument('a plateau scheduler goes by scores, which come by epoch: scheduler_every="epoch"')

    def __str__(self) -> str:
        return self._text if self._every == "epoch" else f"{self._text}, by step"

    def step_over(self) -> None:
        if self._every == "step":
            self._scheduler.step()

    def epoch_over(self) -> None:
        if self._every == "epoch" and not self.plateau:
            self._scheduler.step()

    def scored(self, score: float) -> None:
        """For a plateau scheduler. Larger is better, so it needs mode="max"."""
        assert self.plateau
        self._scheduler.step(score)  # type: ignore[arg-type]  # the plateau scheduler's argument is a number

    def state(self) -> dict[str, Any]:
        return dict(self._scheduler.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state)
