"""The solver for a plan's one unknown: the noise, decay or number of epochs that spends a budget and no more."""

import math
from collections.abc import Callable
from typing import Literal

from apportion import _checks, accounting, schedules
from apportion.batching import Batching
from apportion.budget import RELATIVE_SLACK, Budget
from apportion.errors import BudgetExhausted, InvalidArgument, Unsolvable
from apportion.events import Adjacency, Composed, Event
from apportion.plan import (
    MOST_EPOCHS,
    Noise,
    TrainingPlan,
    checked_adjacency,
    refuse_adaptive,
    refuse_rho_with_poisson,
    rho_of,
    spent,
)
from apportion.schedules import Schedule

Unknown = Literal["sigma0", "decay", "epochs"]
Spent = Callable[[Budget, Event, Adjacency], float]

LEAST_SPENT = 0.999  # a solved sigma0 or decay spends at least this share of the budget
_RHO_TOLERANCE = 1e-13
_EPSILON_TOLERANCE = 1e-4


def solve(
    *,
    budget: Budget,
    examples: int,
    batching: Batching,
    schedule: Schedule,
    epochs: int | None = None,
    clip: float,
    spare_epochs: int = 0,
    adjacency: Adjacency | None = None,
    noise: Noise = "float",
) -> TrainingPlan:
    """The plan that spends `budget`, with the one unknown among sigma0, decay and epochs found.

    Leave exactly one out: `schedule.sigma0`, `schedule.decay` or `epochs`. A solved number of epochs is the most that
    fit; a solved sigma0 or decay spends at most all of the budget and at least 99.9 % of it.
    """
    refuse_adaptive(schedule)
    unknown = unknown_of(schedule, epochs)
    refuse_rho_with_poisson(budget, batching)
    spare = _checks.count("spare_epochs", spare_epochs, least=0)
    neighbours = checked_adjacency(batching, adjacency)

    def price(candidate: Schedule, slots: int, spent: Spent) -> float:
        try:
            events = tuple(batching.event(candidate(index)) for index in range(slots))
        except InvalidArgument:  # a noise multiplier that underflowed to zero: infinitely dear
            return math.inf
        return spent(budget, Composed(events=events), neighbours)

    if unknown == "epochs":
        epochs = _most_epochs(lambda slots: price(schedule, slots, spent), budget, spare)
    else:
        assert epochs is not None
        slots = _checks.count("epochs", epochs) + spare
        schedule = _solved_schedule(
            unknown,
            schedule,
            lambda candidate: price(candidate, slots, spent),
            lambda candidate: price(candidate, slots, _spent_without_amplification),
            budget,
        )
    assert epochs is not None
    return TrainingPlan(
        budget=budget,
        examples=examples,
        batching=batching,
        schedule=schedule,
        epochs=epochs,
        clip=clip,
        spare_epochs=spare,
        adjacency=neighbours,
        noise=noise,
    )


def unknown_of(schedule: Schedule, epochs: int | None) -> Unknown:
    """Which one of sigma0, decay and epochs is left out; an error if none or several are."""
    missing = list(schedule.unknowns()) + (["epochs"] if epochs is None else [])
    if len(missing) != 1:
        names = "sigma0 and epochs" if schedule.kind == "uniform" else "sigma0, decay and epochs"
        found = f"missing: {', '.join(missing)}" if missing else "all are given"
        raise InvalidArgument(f"leave exactly one of {names} out, to be solved for ({found})")
    return missing[0]  # type: ignore[return-value]  # schedules have no other optional fields


def _spent_without_amplification(budget: Budget, event: Event, adjacency: Adjacency) -> float:
    """At least what `spent` says, and quick."""
    if budget.rho is not None:
        return rho_of(event, adjacency)
    return accounting.unamplified_epsilon(event, budget.stated_delta, adjacency)


def _most_epochs(cost: Callable[[int], float], budget: Budget, spare: int) -> int:
    if not budget.admits(cost(1 + spare)):
        raise BudgetExhausted(f"not even one epoch fits the budget ({budget}): it costs {cost(1 + spare):.6g}")
    low, high = 1, 2
    while budget.admits(cost(high + spare)):
        low, high = high, 2 * high
        if low >= MOST_EPOCHS:
            raise Unsolvable(f"more than {MOST_EPOCHS:,} epochs fit the budget ({budget}); give epochs and less noise")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if budget.admits(cost(middle + spare)) else (low, middle)
    return low


def _solved_schedule(
    unknown: Unknown,
    schedule: Schedule,
    cost: Callable[[Schedule], float],
    quick_cost: Callable[[Schedule], float],
    budget: Budget,
) -> Schedule:
    """Search along one axis on which cost rises: ln(1/σ₀), or the schedule's own order of decays."""

    def at(position: float) -> Schedule:
        value = schedule.decay_at(position) if unknown == "decay" else math.exp(-position)
        return schedule.with_value(unknown, value)

    axis = (-25.0, 5.0) if unknown == "decay" else _sigma0_axis(schedule)
    tolerance = _RHO_TOLERANCE if budget.rho is not None else _EPSILON_TOLERANCE
    start = _admitted_by_bisection(lambda position: quick_cost(at(position)), budget, *axis)
    found, spent = _dearest_admitted(lambda position: cost(at(position)), budget, start, axis[1], tolerance)
    if not LEAST_SPENT * budget.limit <= spent <= budget.limit * (1 + RELATIVE_SLACK):
        unit = "rho" if budget.rho is not None else "epsilon"
        raise Unsolvable(
            f"no {unknown} spends the budget ({budget}) in these epochs: attainable are {unit} from "
            f"{cost(at(axis[0])):.6g} to {cost(at(axis[1])):.6g}; change epochs, the schedule's other values or the budget"
        )
    return at(found)


def _sigma0_axis(schedule: Schedule) -> tuple[float, float]:
    inner = schedule.schedule if isinstance(schedule, schedules.Hold) else schedule
    largest = math.inf
    if isinstance(inner, schedules.PolynomialDecay):
        largest = -math.log(inner.sigma_end * (1 + 1e-9))
    return -math.log(1e9), min(-math.log(1e-3), largest)


def _admitted_by_bisection(cost: Callable[[float], float], budget: Budget, low: float, high: float) -> float:
    """A position that is admitted if `low` is, near the last such one."""
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= budget.limit else (low, middle)
    return low


def _dearest_admitted(
    cost: Callable[[float], float], budget: Budget, low: float, end: float, tolerance: float
) -> tuple[float, float]:
    """The position up to `end` whose cost is as near below the limit as the tolerance asks, and that cost.

    First outwards until the limit is passed, in strides that would suffice if ε were proportional to 1/σ, then secant
    steps on ln cost within the bracket, every fourth one a bisection, because cost may be flat, or infinite. What is
    returned is admitted, if `low` is.
    """
    below, stride = cost(low), 0.0
    if below > budget.limit:
        return low, below
    while True:
        stride = max(1.2 * stride, math.log(budget.limit / max(below, 1e-300)), 1e-3)
        high = min(low + min(stride, 2.0), end)
        if (above := cost(high)) > budget.limit:
            break
        low, below = high, above
        if high == end:
            return low, below
    for iteration in range(200):
        if below >= (1 - tolerance) * budget.limit or high - low < 1e-15 * max(abs(low), abs(high), 1e-3):
            break
        share = 0.5
        if iteration % 4 < 3 and below > 0 and math.isfinite(above):
            # Aim a little below the limit: a landing above it gives no usable answer.
            target = math.log(budget.limit) + math.log1p(-tolerance / 2)
            share = (target - math.log(below)) / (math.log(above) - math.log(below))
        middle = low + min(max(share, 1e-3), 1 - 1e-3) * (high - low)
        spent = cost(middle)
        low, below, high, above = (middle, spent, high, above) if spent <= budget.limit else (low, below, middle, spent)
    return low, below
