"""The plan: everything public, fixed before the data is touched; and the solvers for its one unknown.

A plan is a fixed list of slots (epoch, σ_e). What is certified is all of them, run or not.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from apportion import _checks, accounting, batching, schedules
from apportion.accounting.zcdp import ZeroConcentrated
from apportion.batching import Batching, Poisson, Shuffle
from apportion.budget import RELATIVE_SLACK, Budget
from apportion.errors import BudgetExhausted, InvalidArgument, Unsolvable
from apportion.events import Adjacency, Composed, Event, NonPrivate
from apportion.schedules import Schedule

Unknown = Literal["sigma0", "decay", "epochs"]
Noise = Literal["float", "grid"]
Spent = Callable[[Budget, Event, Adjacency], float]

MOST_EPOCHS = 1_000_000
LEAST_SPENT = 0.999  # a solved sigma0 or decay spends at least this share of the budget
_RHO_TOLERANCE = 1e-13
_EPSILON_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One epoch's worth of permission: its index, its noise multiplier, and the event that using it is."""

    index: int
    sigma: float
    event: Event


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Batching + schedule + clip + epochs + budget. A plan that exceeds its budget cannot exist.

    `examples` is the declared number of records (units): it fixes the nominal batch size. `spare_epochs` buys slots
    beyond `epochs`, to be used if an epoch is interrupted; they are paid for, used or not. `adjacency` defaults to what
    the batching supports, `add-remove` or, for Shuffle, `zero-out`; say `zero-out` if `examples` was read off the data.
    `noise="grid"` releases sums on a public grid only, so that floating point is covered by the guarantee; it is slower.
    """

    budget: Budget
    examples: int
    batching: Batching
    schedule: Schedule
    epochs: int
    clip: float
    spare_epochs: int = 0
    adjacency: Adjacency | None = None
    noise: Noise = "float"

    def __post_init__(self) -> None:
        _checks.choice("noise", self.noise, get_args(Noise))
        object.__setattr__(self, "adjacency", checked_adjacency(self.batching, self.adjacency))
        object.__setattr__(self, "examples", _checks.count("examples", self.examples))
        object.__setattr__(self, "epochs", _checks.count("epochs", self.epochs))
        object.__setattr__(self, "spare_epochs", _checks.count("spare_epochs", self.spare_epochs, least=0))
        object.__setattr__(self, "clip", _checks.positive("clip", self.clip))
        if self.epochs + self.spare_epochs > MOST_EPOCHS:
            raise InvalidArgument(f"epochs must be at most {MOST_EPOCHS:,}, got {self.epochs + self.spare_epochs:,}")
        refuse_adaptive(self.schedule)
        if self.schedule.unknowns():
            unknown = self.schedule.unknowns()[0]
            raise InvalidArgument(f"the schedule's {unknown} is not given; use apportion.solve(...) to find it")
        refuse_rho_with_poisson(self.budget, self.batching)
        cost = spent(self.budget, self.event, self.neighbours)
        if not self.budget.admits(cost):
            unit = "rho" if self.budget.rho is not None else "epsilon"
            raise BudgetExhausted(
                f"{self.epochs + self.spare_epochs} epochs of this schedule cost {unit} = {cost:.6g}, more than the budget "
                f"({self.budget}); use apportion.solve(...), more noise or fewer epochs"
            )

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        sigmas = (self.schedule(index) for index in range(self.epochs + self.spare_epochs))
        return tuple(Slot(index=i, sigma=s, event=self.batching.event(s)) for i, s in enumerate(sigmas))

    @property
    def event(self) -> Event:
        """What is certified: every slot."""
        return Composed(events=tuple(slot.event for slot in self.slots))

    @property
    def sigmas(self) -> tuple[float, ...]:
        return tuple(slot.sigma for slot in self.slots)

    @property
    def neighbours(self) -> Adjacency:
        assert self.adjacency is not None
        return self.adjacency

    @property
    def delta(self) -> float:
        return self.budget.stated_delta

    @property
    def nominal_batch_size(self) -> float:
        return self.batching.nominal_batch_size(self.examples)

    @cached_property
    def rho(self) -> float:
        """Σ over slots of the unamplified ρ."""
        return rho_of(self.event, self.neighbours)

    @cached_property
    def guarantee(self) -> accounting.Guarantee:
        """The tightest proven guarantee of the whole plan."""
        return accounting.tightest(self.event, self.delta, self.neighbours)

    def to_json(self) -> dict[str, Any]:
        return {
            "budget": self.budget.to_json(),
            "examples": self.examples,
            "batching": batching.to_json(self.batching),
            "schedule": self.schedule.to_json(),
            "epochs": self.epochs,
            "spare_epochs": self.spare_epochs,
            "clip": self.clip,
            "adjacency": self.adjacency,
            "unit": "example",
            **noise_to_json(self.noise),
        }


@dataclass(frozen=True, kw_only=True)
class NonPrivatePlan:
    """For baselines: the same loop with neither clipping nor noise. Its cost is infinite and it cannot be published."""

    examples: int
    batching: Batching
    epochs: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", _checks.count("examples", self.examples))
        object.__setattr__(self, "epochs", _checks.count("epochs", self.epochs))

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(Slot(index=index, sigma=0.0, event=NonPrivate()) for index in range(self.epochs))

    @property
    def event(self) -> Event:
        return Composed(events=tuple(slot.event for slot in self.slots))

    @property
    def nominal_batch_size(self) -> float:
        return self.batching.nominal_batch_size(self.examples)

    def to_json(self) -> dict[str, Any]:
        return {
            "non_private": True,
            "examples": self.examples,
            "batching": batching.to_json(self.batching),
            "epochs": self.epochs,
        }


Plan = TrainingPlan | NonPrivatePlan

_PLAN_FIELDS = {
    "budget", "examples", "batching", "schedule", "epochs", "spare_epochs", "clip", "adjacency", "unit",
}  # fmt: skip
_NON_PRIVATE_FIELDS = {"non_private", "examples", "batching", "epochs"}


def from_json(data: Any) -> Plan:
    """The inverse of `to_json`; unknown or missing fields are refused."""
    if not isinstance(data, Mapping):
        raise InvalidArgument(f"a plan must be a JSON object, got {data!r:.80}")
    if data.get("non_private") is True:
        require_fields("a non-private plan", data, _NON_PRIVATE_FIELDS)
        return NonPrivatePlan(
            examples=data["examples"], batching=batching.from_json(data["batching"]), epochs=data["epochs"]
        )
    data, noise = noise_from_json(data)
    require_fields("a plan", data, _PLAN_FIELDS)
    if data["unit"] != "example":
        raise InvalidArgument(f"unit must be 'example', got {data['unit']!r:.80}")
    return TrainingPlan(
        budget=budget_from_json(data["budget"]),
        examples=data["examples"],
        batching=batching.from_json(data["batching"]),
        schedule=schedules.from_json(data["schedule"]),
        epochs=data["epochs"],
        spare_epochs=data["spare_epochs"],
        clip=data["clip"],
        adjacency=data["adjacency"],
        noise=noise,
    )


def noise_to_json(noise: Noise) -> dict[str, Any]:
    """Named only where it is not the default, so that plans written before there was a choice stay valid."""
    return {} if noise == "float" else {"noise": noise}


def noise_from_json(data: Mapping[str, Any]) -> tuple[dict[str, Any], Noise]:
    """A plan's other fields, and how its noise is made."""
    others = dict(data)
    noise = others.pop("noise", None)
    if noise not in (None, "grid"):
        raise InvalidArgument(f"noise must be 'grid' or left out, got {noise!r:.80}")
    return others, "float" if noise is None else "grid"


def budget_from_json(data: Any) -> Budget:
    if not isinstance(data, Mapping) or set(data) not in ({"rho", "delta"}, {"epsilon", "delta"}):
        raise InvalidArgument(f"budget must have rho and delta, or epsilon and delta, got {data!r:.80}")
    return Budget(**data)


def require_fields(what: str, data: Mapping[str, Any], expected: set[str]) -> None:
    if set(data) != expected:
        raise InvalidArgument(f"{what} must have the fields {sorted(expected)}, got {sorted(map(str, data))!r:.300}")


def rho_of(event: Event, adjacency: Adjacency) -> float:
    accountant = ZeroConcentrated(adjacency)
    return accountant.rho(accountant.cost(event))


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


def checked_adjacency(batching: Batching, adjacency: Adjacency | None) -> Adjacency:
    if adjacency is None:
        return batching.adjacency
    _checks.choice("adjacency", adjacency, ("add-remove", "zero-out", "replace-one"))
    if isinstance(batching, Shuffle) and adjacency == "add-remove":
        raise InvalidArgument("adjacency add-remove is not covered by Shuffle; use zero-out, or Partition batching")
    return adjacency


def refuse_adaptive(schedule: Any) -> None:
    if isinstance(schedule, schedules.ValidationDecay):
        raise InvalidArgument(
            "the noise of ValidationDecay is not known beforehand: make an apportion.AdaptivePlan of it"
        )


def refuse_rho_with_poisson(budget: Budget, batching: Batching) -> None:
    if budget.rho is not None and isinstance(batching, Poisson):
        raise InvalidArgument(
            "a rho budget takes no account of Poisson sampling: give epsilon and delta (--epsilon, --delta) instead"
        )


def spent(budget: Budget, event: Event, adjacency: Adjacency) -> float:
    """What `event` spends, in the budget's own unit."""
    if budget.rho is not None:
        return rho_of(event, adjacency)
    return accounting.certifying_epsilon(event, budget.stated_delta, adjacency)


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
