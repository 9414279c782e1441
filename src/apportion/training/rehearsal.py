"""What a run would be like: whether it can run, how loud the noise is, how long it takes. Nothing is written or spent."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apportion import by_epoch, outlook
from apportion.adaptive import AdaptivePlan
from apportion.outlook import Signal
from apportion.plan import TrainingPlan
from apportion.randomness import RandomStream
from apportion.training import compatibility
from apportion.training.compatibility import OptimizerFactory
from apportion.training.gradients import trainable
from apportion.training.losses import PerExampleLoss, per_example
from apportion.training.records import Part
from apportion.training.sources import Data, records_of
from apportion.training.step import private_step

_FEW, _MANY = 32, 256  # examples of the two steps that are timed
_TIMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """A plan, or a change of it, with its signal and about how many seconds it takes to train."""

    change: str
    signal: Signal
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {"change": self.change, **self.signal.to_json(), "seconds": self.seconds}


def rehearse(
    model: torch.nn.Module,
    data: Data,
    plan: TrainingPlan | AdaptivePlan,
    *,
    loss: Callable[..., Tensor],
    optimizer: OptimizerFactory,
) -> tuple[Prospect, ...]:
    """The plan as it is, first, then what larger batches and other numbers of epochs would change.

    Refuses what `fit` would refuse of model, loss and optimizer. Of the data only shapes and types are used: the steps that
    are timed run on random data, on a copy of the model. Validation, checkpoints and reading of files are not timed.
    """
    compute = per_example(loss)
    like = records_of(data, model).like
    compatibility.check_model(model, compute, *like)
    compatibility.make_optimizer(optimizer, model)
    parameters = sum(parameter.numel() for parameter in trainable(model).values())
    timing = _timing(model, compute, optimizer, like, plan)
    changes = [("as planned", outlook.signal(plan, parameters)), *outlook.alternatives(plan, parameters)]
    return tuple(
        Prospect(change=change, signal=signal, seconds=timing.seconds(signal, plan.examples))
        for change, signal in changes
    )


@dataclass(frozen=True, slots=True)
class _Timing:
    """Seconds of a step: a part that every step takes, and one that grows with the batch."""

    fixed: float
    per_example: float

    def seconds(self, signal: Signal, examples: int) -> float:
        """Every epoch takes about each example once, whatever the batching."""
        return signal.steps * self.fixed + signal.epochs * examples * self.per_example


def _timing(
    model: torch.nn.Module,
    loss: PerExampleLoss,
    optimizer: OptimizerFactory,
    like: Part,
    plan: TrainingPlan | AdaptivePlan,
) -> _Timing:
    thrown_away = copy.deepcopy(model)
    made = compatibility.make_optimizer(optimizer, thrown_away)
    stream = RandomStream()
    with compatibility.isolated(thrown_away):
        inputs, targets = compatibility.random_examples(thrown_away, *like)

    def seconds(size: int) -> float:
        chosen = torch.arange(size) % len(inputs)
        found = []
        for _ in range(_TIMES):
            started = time.perf_counter()
            private_step(
                thrown_away,
                loss,
                made,
                inputs[chosen],
                targets[chosen],
                clip=by_epoch.at(plan.clip, 0),
                clipping=plan.clipping,
                sigma=1.0,
                nominal_batch_size=size,
                stream=stream,
                noise=plan.noise,
            )
            found.append(time.perf_counter() - started)
        return min(found)

    few, many = seconds(_FEW), seconds(_MANY)
    slope = max(0.0, many - few) / (_MANY - _FEW)
    return _Timing(fixed=max(0.0, few - slope * _FEW), per_example=slope)
