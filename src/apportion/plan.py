"""The plan: everything public, fixed before the data is touched.

A plan is a fixed list of slots (epoch, σ_e). What is certified is all of them, run or not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from apportion import _checks, accounting, batching, by_epoch, clipping, schedules, stages, units
from apportion.accounting.zcdp import ZeroConcentrated
from apportion.batching import Batching, Poisson, Shuffle
from apportion.budget import Budget
from apportion.by_epoch import ByEpoch
from apportion.clipping import FLAT, Clipping
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.events import Adjacency, Composed, Event, NonPrivate
from apportion.schedules import Schedule
from apportion.stages import Component
from apportion.units import EXAMPLE, Person, Unit

Noise = Literal["float", "grid"]

MOST_EPOCHS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One epoch's worth of permission: its index, its noise multiplier, and the event that using it is.

    `charged` is the multiplier that the event states and that noise is scaled by; it differs from the schedule's only if
    the clipping says so.
    """

    index: int
    sigma: float
    charged: float
    event: Event


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Batching + schedule + clip + epochs + budget. A plan that exceeds its budget cannot exist.

    `examples` is the declared number of units (records, or persons if `unit` is `Person(...)`): it fixes the nominal batch
    size. `spare_epochs` buys slots beyond `epochs`, to be used if an epoch is interrupted; they are paid for, used or
    not. `adjacency` defaults to what the batching supports, `add-remove` or, for Shuffle, `zero-out`; say `zero-out` if
    `examples` was read off the data.
    `noise="grid"` releases sums on a public grid only, so that floating point is covered by the guarantee; it is slower.
    `clipping` is `Flat()`, `PerLayer(...)` or `Automatic()`. `clip`, and the batching's `batches` or `rate`, may be
    `ByEpoch({0: 1.0, 10: 0.5})`: public functions of the epoch's index.
    `components` are the other private steps of the pipeline, in the order in which they run; the budget covers them too.
    """

    budget: Budget
    examples: int
    batching: Batching
    schedule: Schedule
    epochs: int
    clip: float | ByEpoch[float]
    clipping: Clipping = FLAT
    spare_epochs: int = 0
    adjacency: Adjacency | None = None
    noise: Noise = "float"
    components: tuple[Component, ...] = ()
    unit: Unit = EXAMPLE

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", stages.checked(self.components))
        _checks.choice("noise", self.noise, get_args(Noise))
        object.__setattr__(self, "adjacency", checked_adjacency(self.batching, self.adjacency))
        object.__setattr__(self, "examples", _checks.count("examples", self.examples))
        object.__setattr__(self, "epochs", _checks.count("epochs", self.epochs))
        object.__setattr__(self, "spare_epochs", _checks.count("spare_epochs", self.spare_epochs, least=0))
        object.__setattr__(self, "clip", by_epoch.checked(_checks.positive, "clip", self.clip))
        clipping.require_clipping(self.clipping)
        units.require_unit(self.unit)
        refuse_components_for_persons(self.unit, self.components)
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
            others = f" and {len(self.components)} components" if self.components else ""
            raise BudgetExhausted(
                f"{self.epochs + self.spare_epochs} epochs of this schedule{others} cost {unit} = {cost:.6g}, more than the "
                f"budget ({self.budget}); use apportion.solve(...), more noise or fewer epochs"
            )

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        indices = range(self.epochs + self.spare_epochs)
        return tuple(slot(index, self.schedule(index), self.batching, self.clipping) for index in indices)

    @property
    def event(self) -> Event:
        """What is certified: every component and every slot."""
        return Composed(events=(*stages.events_of(self.components), *(slot.event for slot in self.slots)))

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
        """Of the first epoch; if it changes with the epoch, ask `batching.at(epoch)`."""
        return self.batching.at(0).nominal_batch_size(self.examples)

    @cached_property
    def rho(self) -> float:
        """Σ over components and slots of the unamplified ρ."""
        return rho_of(self.event, self.neighbours)

    @cached_property
    def guarantee(self) -> accounting.Guarantee:
        """The tightest proven guarantee of the whole plan."""
        return accounting.guarantees(self.event, self.delta, self.neighbours, lower_bounds=False)[0]

    def to_json(self) -> dict[str, Any]:
        return {
            "budget": self.budget.to_json(),
            "examples": self.examples,
            "batching": batching.to_json(self.batching),
            "schedule": self.schedule.to_json(),
            "epochs": self.epochs,
            "spare_epochs": self.spare_epochs,
            "clip": by_epoch.to_json(self.clip),
            "adjacency": self.adjacency,
            "unit": self.unit.to_json(),
            **noise_to_json(self.noise),
            **clipping.to_plan_json(self.clipping),
            **stages.to_json(self.components),
        }


def slot(index: int, sigma: float, batching: Batching, clipping: Clipping) -> Slot:
    charged = clipping.charged(sigma)
    return Slot(index=index, sigma=sigma, charged=charged, event=batching.at(index).event(charged))


@dataclass(frozen=True, kw_only=True)
class NonPrivatePlan:
    """For baselines: the same loop with neither clipping nor noise. Its cost is infinite and it cannot be published."""

    examples: int
    batching: Batching
    epochs: int
    components: tuple[Component, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", stages.checked(self.components))
        object.__setattr__(self, "examples", _checks.count("examples", self.examples))
        object.__setattr__(self, "epochs", _checks.count("epochs", self.epochs))

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(Slot(index=index, sigma=0.0, charged=0.0, event=NonPrivate()) for index in range(self.epochs))

    @property
    def event(self) -> Event:
        return Composed(events=(*stages.events_of(self.components), *(slot.event for slot in self.slots)))

    @property
    def nominal_batch_size(self) -> float:
        """Of the first epoch; if it changes with the epoch, ask `batching.at(epoch)`."""
        return self.batching.at(0).nominal_batch_size(self.examples)

    def to_json(self) -> dict[str, Any]:
        return {
            "non_private": True,
            "examples": self.examples,
            "batching": batching.to_json(self.batching),
            "epochs": self.epochs,
            **stages.to_json(self.components),
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
    data, components = stages.from_json(data)
    if data.get("non_private") is True:
        require_fields("a non-private plan", data, _NON_PRIVATE_FIELDS)
        return NonPrivatePlan(
            examples=data["examples"],
            batching=batching.from_json(data["batching"]),
            epochs=data["epochs"],
            components=components,
        )
    data, noise = noise_from_json(data)
    data, clipped = clipping_from_json(data)
    require_fields("a plan", data, _PLAN_FIELDS)
    return TrainingPlan(
        budget=budget_from_json(data["budget"]),
        examples=data["examples"],
        batching=batching.from_json(data["batching"]),
        schedule=schedules.from_json(data["schedule"]),
        epochs=data["epochs"],
        spare_epochs=data["spare_epochs"],
        clip=by_epoch.from_json(data["clip"]),
        adjacency=data["adjacency"],
        noise=noise,
        clipping=clipped,
        components=components,
        unit=units.from_json(data["unit"]),
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


def clipping_from_json(data: Mapping[str, Any]) -> tuple[dict[str, Any], Clipping]:
    """A plan's other fields, and how it clips: flat unless it says otherwise."""
    others = dict(data)
    found = clipping.from_json(others.pop("clipping", FLAT.kind))
    if "clipping" in data and found == FLAT:
        raise InvalidArgument("flat clipping is the default and left out")
    return others, found


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


def refuse_components_for_persons(unit: Unit, components: Sequence[Component]) -> None:
    if components and isinstance(unit, Person):
        raise InvalidArgument(
            "the components of a pipeline are priced for one record, not for all records of a person: leave them out, or "
            "protect examples"
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
