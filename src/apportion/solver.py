"""The solver for a plan's one unknown: the noise, decay or number of epochs that spends a budget and no more."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from apportion import _checks, accounting, schedules, stages
from apportion.batching import Batching
from apportion.budget import RELATIVE_SLACK, Budget
from apportion.by_epoch import ByEpoch
from apportion.clipping import FLAT, Clipping
from apportion.errors import BudgetExhausted, InvalidArgument, Unsolvable
from apportion.events import Adjacency, Composed, Event, Repeated
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
from apportion.stages import Component
from apportion.units import EXAMPLE, Unit

Unknown = Literal["sigma0", "decay", "epochs"]
Spent = Callable[[Budget, Event, Adjacency], float]

LEAST_SPENT = 0.999  # a solved sigma0 or decay spends at least this share of the budget
_RHO_TOLERANCE = 1e-13
_EPSILON_TOLERANCE = 1e-4
_GROUPS = 8  # of epochs, when a cost is wanted roughly


def solve(
    *,
    budget: Budget,
    examples: int,
    batching: Batching,
    schedule: Schedule,
    epochs: int | None = None,
    clip: float | ByEpoch[float],
    spare_epochs: int = 0,
    adjacency: Adjacency | None = None,
    noise: Noise = "float",
    clipping: Clipping = FLAT,
    components: Sequence[Component] = (),
    unit: Unit = EXAMPLE,
) -> TrainingPlan:
    """The plan that spends `budget`, with the one unknown among sigma0, decay and epochs found.

    Leave exactly one out: `schedule.sigma0`, `schedule.decay` or `epochs`. A solved number of epochs is the most that
    fit; a solved sigma0 or decay spends at most all of the budget and at least 99.9 % of it. What `components` cost is
    part of what is spent.
    """
    refuse_adaptive(schedule)
    unknown = unknown_of(schedule, epochs)
    refuse_rho_with_poisson(budget, batching)
    spare = _checks.count("spare_epochs", spare_epochs, least=0)
    neighbours = checked_adjacency(batching, adjacency)
    others = stages.events_of(stages.checked(components))
    _refuse_unaffordable(budget, others, neighbours)

    def price(candidate: Schedule, slots: int, spent: Spent, groups: int | None = None) -> float:
        try:
            events = _events(batching, clipping, candidate, slots, groups or slots)
        except InvalidArgument:  # a noise multiplier that underflowed to zero: infinitely dear
            return math.inf
        return spent(budget, Composed(events=(*others, *events)), neighbours)

    if unknown == "epochs":
        about = _most_epochs(lambda slots: price(schedule, slots, spent, _GROUPS), budget, spare)
        epochs = _exactly_most_epochs(lambda slots: price(schedule, slots, spent), budget, spare, about)
    else:
        assert epochs is not None
        slots = _checks.count("epochs", epochs) + spare
        costs = Costs(
            exact=lambda candidate: price(candidate, slots, spent),
            rough=lambda candidate: price(candidate, slots, spent, _GROUPS),
            quick=lambda candidate: price(candidate, slots, _spent_without_amplification),
        )
        schedule = _solved_schedule(unknown, schedule, costs, budget)
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
        clipping=clipping,
        components=tuple(components),
        unit=unit,
    )


def _refuse_unaffordable(budget: Budget, others: tuple[Event, ...], adjacency: Adjacency) -> None:
    if others and not budget.admits(cost := spent(budget, Composed(events=others), adjacency)):
        unit = "rho" if budget.rho is not None else "epsilon"
        raise BudgetExhausted(
            f"the components alone cost {unit} = {cost:.6g}, more than the budget ({budget}): raise their sigma"
        )


def unknown_of(schedule: Schedule, epochs: int | None) -> Unknown:
    """Which one of sigma0, decay and epochs is left out; an error if none or several are."""
    missing = list(schedule.unknowns()) + (["epochs"] if epochs is None else [])
    if len(missing) != 1:
        names = "sigma0 and epochs" if schedule.kind == "uniform" else "sigma0, decay and epochs"
        found = f"missing: {', '.join(missing)}" if missing else "all are given"
        raise InvalidArgument(f"leave exactly one of {names} out, to be solved for ({found})")
    return missing[0]  # type: ignore[return-value]  # schedules have no other optional fields


def _exactly_most_epochs(cost: Callable[[int], float], budget: Budget, spare: int, about: int) -> int:
    """From a good guess, one by one: the most epochs that fit."""
    while about > 1 and not budget.admits(cost(about + spare)):
        about -= 1
    if not budget.admits(cost(about + spare)):
        raise BudgetExhausted(f"not even one epoch fits the budget ({budget}): it costs {cost(1 + spare):.6g}")
    while about < MOST_EPOCHS and budget.admits(cost(about + 1 + spare)):
        about += 1
    return about


@dataclass(frozen=True, slots=True)
class Costs:
    """What a candidate costs: as it will be certified; about, from a few groups of epochs; at most, in microseconds."""

    exact: Callable[[Schedule], float]
    rough: Callable[[Schedule], float]
    quick: Callable[[Schedule], float]


def _events(batching: Batching, clipping: Clipping, schedule: Schedule, slots: int, groups: int) -> tuple[Event, ...]:
    """The slots in order; if there are more than `groups`, as so many groups, each like the epoch in its middle."""
    ends = [round(slots * (i + 1) / groups) for i in range(groups)] if groups < slots else list(range(1, slots + 1))
    starts = [0, *ends[:-1]]
    middles = [(start + end - 1) // 2 for start, end in zip(starts, ends, strict=True)]
    return tuple(
        Repeated(event=batching.at(middle).event(clipping.charged(schedule(middle))), count=end - start)
        for start, end, middle in zip(starts, ends, middles, strict=True)
    )


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
    costs: Costs,
    budget: Budget,
) -> Schedule:
    """Search along one axis on which cost rises: ln(1/σ₀), or the schedule's own order of decays."""

    def at(position: float) -> Schedule:
        value = schedule.decay_at(position) if unknown == "decay" else math.exp(-position)
        return schedule.with_value(unknown, value)

    axis = (-25.0, 5.0) if unknown == "decay" else _sigma0_axis(schedule)
    tolerance = _RHO_TOLERANCE if budget.rho is not None else _EPSILON_TOLERANCE
    start = admitted_by_bisection(lambda position: costs.quick(at(position)), budget, *axis)
    found, spent = _guided(
        lambda position: costs.exact(at(position)),
        lambda position: costs.rough(at(position)),
        budget.limit,
        start,
        axis[1],
        tolerance,
    )
    if not LEAST_SPENT * budget.limit <= spent <= budget.limit * (1 + RELATIVE_SLACK):
        unit = "rho" if budget.rho is not None else "epsilon"
        raise Unsolvable(
            f"no {unknown} spends the budget ({budget}) in these epochs: attainable are {unit} from "
            f"{costs.exact(at(axis[0])):.6g} to {costs.exact(at(axis[1])):.6g}; change epochs, the schedule's other values "
            "or the budget"
        )
    return at(found)


def _sigma0_axis(schedule: Schedule) -> tuple[float, float]:
    inner = schedule.schedule if isinstance(schedule, schedules.Hold) else schedule
    largest = math.inf
    if isinstance(inner, schedules.PolynomialDecay):
        largest = -math.log(inner.sigma_end * (1 + 1e-9))
    return -math.log(1e9), min(-math.log(1e-3), largest)


def admitted_by_bisection(cost: Callable[[float], float], budget: Budget, low: float, high: float) -> float:
    """A position that is admitted if `low` is, near the last such one."""
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= budget.limit else (low, middle)
    return low


def _guided(
    exact: Callable[[float], float],
    rough: Callable[[float], float],
    limit: float,
    start: float,
    end: float,
    tolerance: float,
) -> tuple[float, float]:
    """`dearest_admitted` of the exact cost, with the rough one showing the way: their ratio hardly changes."""
    aim = limit
    for _ in range(4):
        found, _ = dearest_admitted(rough, aim, start, end, tolerance / 4)
        spent = exact(found)
        if (1 - tolerance) * limit <= spent <= limit:
            return found, spent
        if not 0 < spent < math.inf:
            break
        aim *= (1 - tolerance / 2) * limit / spent
    return dearest_admitted(exact, limit, start, end, tolerance)


def dearest_admitted(
    cost: Callable[[float], float], limit: float, low: float, end: float, tolerance: float
) -> tuple[float, float]:
    """The position up to `end` whose cost is as near below the limit as the tolerance asks, and that cost.

    First outwards until the limit is passed, in strides that would suffice if ε were proportional to 1/σ, then secant
    steps on ln cost; a bisection where they leave the bracket, and every fourth time, because cost may be flat, or
    infinite. What is returned is admitted, if `low` is.
    """
    below, growth = cost(low), 1.0
    if below > limit:
        return low, below
    while True:
        stride = max(growth * math.log(limit / max(below, 1e-300)), 1e-3 * growth)
        high = min(low + min(stride, 2.0), end)
        if (above := cost(high)) > limit:
            break
        low, below, growth = high, above, 1.5 * growth
        if high == end:
            return low, below
    # Aim a little below the limit: a landing above it gives no usable answer.
    target = limit * (1 - tolerance / 2)
    before, latest = (low, below), (high, above)
    for iteration in range(200):
        if below >= (1 - tolerance) * limit or high - low < 1e-15 * max(abs(low), abs(high), 1e-3):
            break
        middle = _secant(before, latest, target)
        if iteration % 4 == 3 or not low < middle < high:
            middle = (low + high) / 2
        before, latest = latest, (middle, cost(middle))
        if latest[1] <= limit:
            low, below = latest
        else:
            high = middle
    return low, below


def _secant(first: tuple[float, float], second: tuple[float, float], target: float) -> float:
    """Where the line through two points (position, ln cost) meets ln target; NaN if it does not."""
    if not (0 < first[1] < math.inf and 0 < second[1] < math.inf) or first[1] == second[1]:
        return math.nan
    slope = (second[0] - first[0]) / (math.log(second[1]) - math.log(first[1]))
    return second[0] + (math.log(target) - math.log(second[1])) * slope
