"""Adaptive plans: the noise follows public scores, and the plan promises a cap instead of a list of slots.

What is certified is the cap (or the floor), never the realised sum: how much was spent may itself depend on the data
through earlier outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from apportion import _checks, accounting, batching, by_epoch, clipping, plan, schedules, stages, units
from apportion.accounting import conversions
from apportion.accounting.filters import Filter, GaussianFilter, RenyiFilter, ZeroConcentratedFilter
from apportion.accounting.renyi import Renyi
from apportion.batching import Batching, Poisson
from apportion.budget import RELATIVE_SLACK, Budget
from apportion.by_epoch import ByEpoch
from apportion.clipping import FLAT, Clipping
from apportion.errors import BudgetExhausted, InvalidArgument, UnpricedEvent
from apportion.events import Adjacency, Composed, Event
from apportion.plan import MOST_EPOCHS, Noise, NonPrivatePlan, Slot, TrainingPlan
from apportion.schedules import Schedule, ValidationDecay
from apportion.stages import Component
from apportion.units import EXAMPLE, Unit

_ORDERS = 1 + 2.0 ** np.arange(-2, 10, 0.25)


@dataclass(frozen=True, kw_only=True)
class AdaptivePlan:
    """Epochs whose noise follows `schedule`, as long as the total stays within the budget.

    `epochs` ends a run that the cap would let go on. An interrupted epoch is paid for; there are no spare ones to buy.

    The cap: a rho budget caps Σρ (and with it Σ1/σ²), an epsilon budget caps Σ1/σ² at μ²(ε, δ). With Poisson batching,
    or with an `order`, it is the Rényi divergence at that one order, the only cap that credits secret sampling;
    `order="auto"` picks a good one now, from public values.

    The floor: if every σ is at least `floor(epoch)`, the noise above it is post-processing, and a run of `epochs` epochs
    is certified as that fixed schedule by any accountant. With a floor, σ is the larger of the two, and no cap is needed.

    `components` are paid for first: what they cost is kept back under the cap, or composed with the floor.
    """

    budget: Budget
    examples: int
    batching: Batching
    schedule: ValidationDecay
    clip: float | ByEpoch[float]
    epochs: int | None = None
    order: float | Literal["auto"] | None = None
    floor: Schedule | None = None
    adjacency: Adjacency | None = None
    noise: Noise = "float"
    clipping: Clipping = FLAT
    components: tuple[Component, ...] = ()
    unit: Unit = EXAMPLE

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", stages.checked(self.components))
        _checks.choice("noise", self.noise, get_args(Noise))
        if not isinstance(self.schedule, ValidationDecay):
            raise InvalidArgument(
                f"an adaptive plan needs a ValidationDecay, got {self.schedule!r:.80}; use TrainingPlan"
            )
        object.__setattr__(self, "adjacency", plan.checked_adjacency(self.batching, self.adjacency))
        object.__setattr__(self, "examples", _checks.count("examples", self.examples))
        object.__setattr__(self, "clip", by_epoch.checked(_checks.positive, "clip", self.clip))
        clipping.require_clipping(self.clipping)
        units.require_unit(self.unit)
        plan.refuse_components_for_persons(self.unit, self.components)
        if self.epochs is not None:
            object.__setattr__(self, "epochs", _checks.count("epochs", self.epochs))
        plan.refuse_rho_with_poisson(self.budget, self.batching)
        self._check_floor() if self.floor is not None else self._check_cap()

    def _check_floor(self) -> None:
        if self.epochs is None or self.epochs > MOST_EPOCHS or self.order is not None:
            raise InvalidArgument("a floor is certified over a fixed number of epochs: give epochs, and no order")
        assert self.floor is not None
        if self.floor.unknowns():
            raise InvalidArgument(f"the floor's {self.floor.unknowns()[0]} is not given")
        spent = plan.spent(self.budget, self.floor_event, self.neighbours)
        if not self.budget.admits(spent):
            raise BudgetExhausted(f"the floor costs {spent:.6g}, more than the budget ({self.budget}); raise the floor")

    def _check_cap(self) -> None:
        order = self.order
        if order == "auto" or (order is None and isinstance(self.batching, Poisson)):
            order = suggested_order(self.budget, self.batching, self.schedule, self.neighbours, self.clipping)
        if order is not None:
            if self.budget.epsilon is None:
                raise InvalidArgument(
                    "an order belongs to an epsilon budget; a rho budget is capped at all orders at once"
                )
            order = _checks.number("order", order)
        object.__setattr__(self, "order", order)
        if self.next_slot(stages.events_of(self.components), ()) is None:
            beside = " beside the components" if self.components else ""
            raise BudgetExhausted(
                f"not even one epoch at sigma0 = {self.schedule.sigma0:g} fits the budget ({self.budget}){beside}"
            )

    @cached_property
    def caps(self) -> tuple[Filter, ...]:
        """Every event must be admitted by all of them; each gives a guarantee. Empty if there is a floor."""
        if self.floor is not None:
            return ()
        if self.budget.rho is not None:
            # The same cap in two units, because every epoch is a Gaussian release: both guarantees hold.
            return (
                GaussianFilter(mu_squared=2 * self.budget.rho, adjacency=self.neighbours),
                ZeroConcentratedFilter(rho=self.budget.rho, adjacency=self.neighbours),
            )
        epsilon, delta = self.budget.limit, self.delta
        if self.order is None:
            return (GaussianFilter.of_budget(epsilon=epsilon, delta=delta, adjacency=self.neighbours),)
        assert isinstance(self.order, float)
        cap = float(_divergence_caps(epsilon, delta, np.array([self.order]))[0])
        if not cap > 0:
            raise InvalidArgument(
                f"order {self.order:g} leaves nothing to spend of the budget ({self.budget}); raise it"
            )
        return (RenyiFilter(order=self.order, divergence=cap, adjacency=self.neighbours),)

    def next_slot(self, spent: Sequence[Event], scores: Sequence[float], used: int = 0) -> Slot | None:
        """The next epoch after `used` epochs, `spent` events in all and these scores; None where the plan ends."""
        if used >= (MOST_EPOCHS if self.floor is None or self.epochs is None else self.epochs):
            return None
        slot = self.slot(scores, used)
        return slot if self.admits(slot.event, spent) else None

    def slot(self, scores: Sequence[float], index: int) -> Slot:
        """The epoch with this index, after these scores, whether or not it is admitted."""
        return plan.slot(index, self.sigma(scores, index), self.batching, self.clipping)

    def sigma(self, scores: Sequence[float], index: int) -> float:
        return max(self.schedule(scores), 0.0 if self.floor is None else self.floor(index))

    def admits(self, event: Event, spent: Sequence[Event]) -> bool:
        """Whether `event` may still happen. With a floor, epochs always may; anything else is not in the plan."""
        return all(cap.admits(event, spent) for cap in self.caps)

    @property
    def floor_event(self) -> Event:
        """What is certified if there is a floor: the components, and the floor, epoch by epoch."""
        if self.floor is None:
            raise UnpricedEvent(
                "the noise of this run was chosen while it ran, so no accountant may compose what was realised (a loss "
                "distribution along the realised path is not a valid bound): what holds is the cap of the plan. To have "
                "such a run certified by any accountant, declare a floor schedule in the plan beforehand"
            )
        assert self.epochs is not None
        floors = [(index, self.clipping.charged(self.floor(index))) for index in range(self.epochs)]
        epochs = (self.batching.at(index).event(charged) for index, charged in floors)
        return Composed(events=(*stages.events_of(self.components), *epochs))

    def guarantees(self, delta: float) -> tuple[accounting.Guarantee, ...]:
        """What holds however the noise was chosen, tightest first."""
        if self.floor is not None:
            return accounting.guarantees(self.floor_event, delta, self.neighbours)
        return tuple(sorted((cap.guarantee(delta) for cap in self.caps), key=lambda found: found.epsilon))

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

    @property
    def rho(self) -> float | None:
        """The ρ that is promised, where the cap or the floor bounds one."""
        if self.floor is not None:
            return plan.rho_of(self.floor_event, self.neighbours)
        cap = self.caps[0]
        return cap.mu_squared / 2 if isinstance(cap, GaussianFilter) else None

    def to_json(self) -> dict[str, Any]:
        return {
            "adaptive": True,
            "budget": self.budget.to_json(),
            "examples": self.examples,
            "batching": batching.to_json(self.batching),
            "schedule": self.schedule.to_json(),
            "epochs": self.epochs,
            "order": self.order,
            "floor": None if self.floor is None else self.floor.to_json(),
            "clip": by_epoch.to_json(self.clip),
            "adjacency": self.adjacency,
            "unit": self.unit.to_json(),
            **plan.noise_to_json(self.noise),
            **clipping.to_plan_json(self.clipping),
            **stages.to_json(self.components),
        }


Plan = TrainingPlan | NonPrivatePlan | AdaptivePlan

_FIELDS = {
    "adaptive", "budget", "examples", "batching", "schedule", "epochs", "order", "floor", "clip", "adjacency", "unit",
}  # fmt: skip


def from_json(data: Any) -> Plan:
    """The inverse of every plan's `to_json`; unknown or missing fields are refused."""
    if not isinstance(data, Mapping) or "adaptive" not in data:
        return plan.from_json(data)
    data, components = stages.from_json(data)
    data, noise = plan.noise_from_json(data)
    data, clipped = plan.clipping_from_json(data)
    plan.require_fields("an adaptive plan", data, _FIELDS)
    if data["adaptive"] is not True or data["order"] == "auto":
        raise InvalidArgument("an adaptive plan says adaptive = true and a number or null as order")
    return AdaptivePlan(
        budget=plan.budget_from_json(data["budget"]),
        examples=data["examples"],
        batching=batching.from_json(data["batching"]),
        schedule=ValidationDecay.from_json(data["schedule"]),
        epochs=data["epochs"],
        order=data["order"],
        floor=None if data["floor"] is None else schedules.from_json(data["floor"]),
        clip=by_epoch.from_json(data["clip"]),
        adjacency=data["adjacency"],
        noise=noise,
        clipping=clipped,
        components=components,
        unit=units.from_json(data["unit"]),
    )


def suggested_order(
    budget: Budget,
    sampled: Batching,
    schedule: ValidationDecay,
    adjacency: Adjacency,
    clipping: Clipping = FLAT,
) -> float:
    """The Rényi order at which the budget buys most epochs once the noise has fallen for the first time."""
    if budget.epsilon is None:
        raise InvalidArgument("an order belongs to an epsilon budget")
    accountant, event = Renyi(adjacency), sampled.at(0).event(clipping.charged(schedule.sigma0 * schedule.decay))
    caps = _divergence_caps(budget.epsilon, budget.stated_delta, _ORDERS)
    affordable = [
        (cap / accountant.divergence(event, order), order) for cap, order in zip(caps, _ORDERS, strict=True) if cap > 0
    ]
    if not affordable:
        raise BudgetExhausted(f"no Rényi order leaves anything to spend of the budget ({budget})")
    return float(max(affordable)[1])


def adaptive_plan(
    *,
    budget: Budget,
    batching: Batching,
    schedule: ValidationDecay,
    epochs: int | None,
    floor: float | None,
    order: float | None,
    adjacency: Adjacency | None,
    **rest: Any,
) -> AdaptivePlan:
    """A plan with a constant floor, or a cap; its order, if none is given, is chosen now by what buys most epochs.

    `rest` are the further fields of an adaptive plan.
    """
    if floor is None and order is None:
        order = best_order(
            budget, batching, schedule, plan.checked_adjacency(batching, adjacency), rest.get("clipping", FLAT)
        )
    return AdaptivePlan(
        budget=budget,
        batching=batching,
        schedule=schedule,
        epochs=epochs,
        floor=None if floor is None else schedules.Uniform(sigma0=floor),
        order=order,
        adjacency=adjacency,
        **rest,
    )


def best_order(
    budget: Budget,
    sampled: Batching,
    schedule: ValidationDecay,
    adjacency: Adjacency,
    clipping: Clipping = FLAT,
) -> float | None:
    """The order of the cap that buys most epochs once the noise has fallen for the first time.

    None where the caps that need no order buy as many: those of a rho budget, or on Σ1/σ².
    """
    if budget.epsilon is None:
        return None
    try:
        order = suggested_order(budget, sampled, schedule, adjacency, clipping)
    except BudgetExhausted:
        return None
    if isinstance(sampled, Poisson):
        return order
    event, delta = sampled.at(0).event(clipping.charged(schedule.sigma0 * schedule.decay)), budget.stated_delta
    amplified = float(_divergence_caps(budget.epsilon, delta, np.array([order]))[0])
    amplified /= Renyi(adjacency).divergence(event, order)
    plain = GaussianFilter.of_budget(epsilon=budget.epsilon, delta=delta, adjacency=adjacency)
    return order if amplified > plain.cap / plain.cost((event,)) else None


def _divergence_caps(epsilon: float, delta: float, orders: np.ndarray) -> np.ndarray:
    """The largest divergence at each order whose conversion is (ε, δ); negative where there is none."""
    far = 1e3  # beyond where the conversion is cut off at zero
    offset = conversions.epsilons_of_divergences(orders, np.full_like(orders, far), delta) - far
    return np.asarray((epsilon - offset) / (1 + 4 * RELATIVE_SLACK))


def next_slot(the_plan: Plan, spent: Sequence[Event], scores: Sequence[float], used: int) -> Slot | None:
    """The slot that comes next in any plan; None where it ends."""
    if isinstance(the_plan, AdaptivePlan):
        return the_plan.next_slot(spent, scores, used)
    return the_plan.slots[used] if used < len(the_plan.slots) else None


def most_slots(the_plan: Plan) -> int | None:
    """How many slots the plan has, if it fixes a number."""
    if not isinstance(the_plan, AdaptivePlan):
        return len(the_plan.slots)
    return the_plan.epochs if the_plan.floor is not None else None
