"""Everything a run needs, checked. Whatever can be refused is refused here, before the run directory exists."""

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apportion._version import VERSION
from apportion.adaptive import Plan
from apportion.batching import Shuffle
from apportion.errors import DataError, InvalidArgument
from apportion.ledger import NOT_FOR_PERSONS
from apportion.plan import NonPrivatePlan
from apportion.public import PaidLooks
from apportion.training import compatibility, guard, memory
from apportion.training.compatibility import OptimizerFactory
from apportion.training.gradients import clipped_sum, clipped_sum_of_units, compile_gradients, trainable
from apportion.training.gradients.compiled import rows_for
from apportion.training.gradients.per_example import clipped_sum_by_examples
from apportion.training.guard import Guard
from apportion.training.labels import check_labels
from apportion.training.losses import PerExampleLoss, per_example
from apportion.training.persons import Persons
from apportion.training.preparation import Preparation
from apportion.training.records import Records
from apportion.training.self_test import self_test
from apportion.training.sources import Data, records_of
from apportion.training.steering import Steering
from apportion.units import Person


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """`at_once` is the most examples that are worked on at the same time; `declared` are public facts for the ledger."""

    model: torch.nn.Module
    plan: Plan
    loss: PerExampleLoss
    records: Records
    persons: Persons | None
    holdout: Records | None
    preparation: Preparation
    optimizer: torch.optim.Optimizer
    steering: Steering
    guard: Guard
    at_once: int
    declared: Mapping[str, str]


def make_ready(
    model: torch.nn.Module,
    data: Data,
    plan: Plan,
    *,
    optimizer: OptimizerFactory,
    loss: Callable[..., Tensor],
    holdout: Data | None,
    declared: Mapping[str, str],
    workers: int,
    max_physical_batch: int | None,
    memory_limit: int | None,
    compile: bool,
    unit: Any,
    steering: Mapping[str, Any],
) -> Ready:
    compute = per_example(loss)
    records = records_of(data, model, workers)
    held_out = None if holdout is None else records_of(holdout, model, workers)
    persons = _persons(plan, records, unit)
    if persons is not None and isinstance(steering.get("validation"), PaidLooks):
        raise DataError(NOT_FOR_PERSONS)
    plan.batching.check_length(len(records) if persons is None else len(persons), plan.examples)
    preparation = Preparation(model, loss, plan, records.like[0])
    compatibility.check_model(model, compute, *records.like)
    for name, part in (("data", records), ("holdout", held_out)):
        if part is not None and (labels := part.labels()) is not None:
            check_labels(name, model, compute, records.like[0], labels)
    if compile and isinstance(plan, NonPrivatePlan):
        raise InvalidArgument("compile=True compiles private gradients: compile the model of a baseline yourself")
    compile_gradients(model, None)
    made = compatibility.make_optimizer(optimizer, model)
    if not isinstance(plan, NonPrivatePlan):
        if compile:
            rows = _rows_at_once(plan, model)
            _compile(model, compute, records, rows)
        self_test(model, compute, made, *records.like, plan.noise, plan.clipping, plan.unit)
    at_once = memory.physical_batch(
        model, _work(model, compute, plan, compile), records.like, most=max_physical_batch, limit=memory_limit
    )
    if compile and at_once < rows:
        _compile(model, compute, records, at_once)
    chosen = Steering(model, compute, made, plan, at_once=at_once, **steering)
    return Ready(
        model=model,
        plan=plan,
        loss=compute,
        records=records,
        persons=persons,
        holdout=held_out,
        preparation=preparation,
        optimizer=made,
        steering=chosen,
        guard=Guard(model, made),
        at_once=at_once,
        declared={
            **_declarations(model, loss, made),
            **guard.starting_point(model),
            **chosen.declarations(),
            **declared,
        },
    )


def _persons(plan: Plan, records: Records, ids: Any) -> Persons | None:
    unit = None if isinstance(plan, NonPrivatePlan) else plan.unit
    if not isinstance(unit, Person):
        if ids is not None:
            raise DataError(
                "unit= gives the persons of records, but the plan protects examples: plan with unit=Person()"
            )
        return None
    if ids is None:
        raise DataError("the plan protects persons: say whose each record is, unit=ids, one id per record")
    if not records.keeps_order:
        raise DataError(
            "data that is read from disk in an order of its own cannot be told apart by persons: give tensors, arrays in "
            "memory or a torch Dataset"
        )
    return Persons.of(ids, len(records), unit)


def _rows_at_once(plan: Plan, model: torch.nn.Module) -> int:
    """For how many examples to compile: as many as nearly all batches have at most, by public numbers."""
    batching = plan.batching.at(0)
    nominal = batching.nominal_batch_size(plan.examples)
    return rows_for(nominal if isinstance(batching, Shuffle) else nominal + 3 * math.sqrt(nominal), trainable(model))


def _compile(model: torch.nn.Module, loss: PerExampleLoss, records: Records, rows: int) -> None:
    """And try it, as training will use it: what cannot be compiled is refused now."""
    compile_gradients(model, rows)
    try:
        with compatibility.isolated(model):
            clipped_sum(model, loss, *compatibility.random_examples(model, *records.like), clip=1.0)
    except BaseException:
        compile_gradients(model, None)
        raise


def _work(
    model: torch.nn.Module, loss: PerExampleLoss, plan: Plan, compiled: bool
) -> Callable[[Tensor, Tensor], object]:
    """What a step does with one part of a batch."""
    if not isinstance(plan, NonPrivatePlan):
        if compiled:  # in memory that cannot be counted, but not in more than this, which is not compiled
            return lambda inputs, targets: clipped_sum_by_examples(model, loss, inputs, targets, 1.0, plan.clipping)
        if isinstance(plan.unit, Person):
            return lambda inputs, targets: clipped_sum_of_units(
                model, loss, [(inputs, targets)], [1] * len(inputs), clip=1.0, clipping=plan.clipping
            )
        return lambda inputs, targets: clipped_sum(model, loss, inputs, targets, clip=1.0, clipping=plan.clipping)
    parameters = list(trainable(model).values())
    return lambda inputs, targets: torch.autograd.grad(
        loss(model(inputs), targets).sum(), parameters, allow_unused=True
    )


def _declarations(
    model: torch.nn.Module, loss: Callable[..., Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, str]:
    """Public facts about how the run was set up; none is computed from the data."""
    return {
        "model": " ".join(repr(model).split())[:2000],
        "loss": getattr(loss, "__name__", type(loss).__name__),
        "software": f"apportion {VERSION}, torch {torch.__version__}, Python {platform.python_version()}",
        "optimizer": compatibility.in_words(optimizer),
    }
