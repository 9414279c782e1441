"""The certificate: what a ledger proves, recomputed from the ledger alone; as JSON and in plain words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apportion import accounting, batching, by_epoch, canonical, events
from apportion._version import VERSION
from apportion.accounting import Guarantee, Renyi
from apportion.accounting.conversions import mu_of_epsilon
from apportion.adaptive import AdaptivePlan
from apportion.budget import DEFAULT_DELTA
from apportion.errors import CertificationError, UnpricedEvent
from apportion.events import Adjacency, Event, ExponentialMechanism, GaussianRelease, RepeatAndSelect
from apportion.ledger import Ledger, most_slots
from apportion.plain_words import ADJACENCY_IN_WORDS, words
from apportion.plan import Noise, NonPrivatePlan, TrainingPlan, rho_of
from apportion.publication import Publication
from apportion.selection_plan import SelectionPlan
from apportion.units import Person, Unit

__all__ = [
    "ADJACENCY_IN_WORDS",
    "CLAIM_TOLERANCE",
    "FORMAT",
    "NOT_COVERED",
    "Certificate",
    "certify",
    "round_up",
    "words",
]

FORMAT = 1
SIGNIFICANT_DIGITS = 4

# Claimed ε may fall short of a recomputed upper bound by this much: other platforms round differently.
CLAIM_TOLERANCE = 1e-6

FLOATING_POINT = "floating-point effects: the noise is Gaussian in 64-bit floating point, not on an exact grid"
GROUPS = "groups: a person with several examples is protected less, the more examples there are"
GROUPS_OF_PERSONS = (
    "groups: a person is all records with one id; someone with several ids, or of whom other persons' records tell, is "
    "protected less"
)
NOT_COVERED = (
    "what was learned from the same data before or outside this run (earlier runs, tuning by hand, looking at the data)",
    "that the publisher ran the recorded code on the declared data: the certificate proves arithmetic, not honesty",
    "copies or earlier states of the run directory from which other models were released",
    GROUPS,
    FLOATING_POINT,
    "timing and other side channels on the training machine",
)


def round_up(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """The smallest decimal of `digits` significant digits that is not below `value`.

    >>> round_up(1.28251), round_up(0.43627), round_up(2.0)
    (1.283, 0.4363, 2.0)
    """
    if value == 0 or not math.isfinite(value):
        return value
    exponent = math.floor(math.log10(abs(value))) - digits + 1
    rounded = float(f"{math.ceil(value / 10.0**exponent)}e{exponent}")
    return rounded if rounded >= value else float(f"{math.ceil(value / 10.0**exponent) + 1}e{exponent}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The guarantees of one ledger, tightest first. `unsafe` lists why it should not be relied upon, if anything.

    Everything but `publication`, the publisher's statements, follows from the ledger.
    """

    ledger: Ledger
    guarantees: tuple[Guarantee, ...]
    adjacency: Adjacency
    delta: float
    unsafe: tuple[str, ...]
    publication: Publication = field(default_factory=Publication)

    @property
    def guarantee(self) -> Guarantee:
        return self.guarantees[0]

    @property
    def epsilon(self) -> float:
        """What is claimed: the tightest proven ε, rounded up at the fourth significant digit."""
        return round_up(self.guarantee.epsilon)

    def to_json(self) -> dict[str, Any]:
        """After a selection, what is said about the training is said about that of the chosen candidate."""
        whole, plan = self.ledger.plan, self.ledger.training
        assert not isinstance(whole, NonPrivatePlan)
        return {
            "format": FORMAT,
            **self._claims(plan),
            **_selection(self.ledger),
            "schedule": plan.schedule.to_json(),
            "sigmas": _sigmas(self.ledger),
            "adaptive": _adaptive(plan) if isinstance(plan, AdaptivePlan) else None,
            "budget": whole.budget.to_json(),
            "batching": batching.to_json(plan.batching),
            "clip": by_epoch.to_json(plan.clip),
            "clipping": plan.clipping.to_json(),
            **_person(plan.unit),
            "examples": whole.examples,
            "steps": sum(plan.batching.at(index).steps for index in range(_planned_epochs(self.ledger))),
            "slots": {"planned": _planned_slots(self.ledger), "used": self.ledger.used_slots},
            "released": "final-weights",
            "evaluations": [evaluation.to_json() for evaluation in self.ledger.evaluations],
            "components": _components(self.ledger, self.adjacency),
            "randomness": self.ledger.randomness,
            "declared": dict(self.ledger.declared),
            "publication": self.publication.to_json(),
            "floating_point": "covered" if whole.noise == "grid" else "not covered",
            "not_covered": _not_covered(whole.noise, plan.unit),
            "unsafe": list(self.unsafe),
            "versions": {"apportion": VERSION},
            "run": self.ledger.run,
            "plan": canonical.digest(whole.to_json()),
            "ledger": self.ledger.head,
            "weights": self.ledger.weights,
        }

    def _claims(self, plan: TrainingPlan | AdaptivePlan) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "unit": plan.unit.kind,
            "accountant": self.guarantee.accountant,
            "status": self.guarantee.status,
            "guarantees": [
                {"accountant": g.accountant, "epsilon": round_up(g.epsilon), "status": g.status}
                for g in self.guarantees
            ],
            "rho": _total_rho(self.ledger, self.adjacency),
        }

    def in_words(self) -> str:
        return words(self.to_json())


def certify(
    ledger: Ledger,
    delta: float | None = None,
    accountant: str | None = None,
    publication: Publication | None = None,
) -> Certificate:
    """What the ledger proves, by every valid accountant, tightest first; or by the one that is named.

    Guarantees: prices all that was recorded and every slot of the plan, run or not, because a decision to stop early may
    have depended on what was seen (the ledger's run is post-processing of the full plan). Of an adaptive plan, what is
    certified is its cap, or its floor if it declares one: never what was realised.
    """
    plan = ledger.plan
    if isinstance(plan, NonPrivatePlan):
        raise CertificationError(
            "this run was trained without privacy (its cost is infinite): nothing can be certified"
        )
    delta = plan.delta if delta is None else delta
    try:
        found = (
            plan.guarantees(delta)
            if isinstance(plan, AdaptivePlan)
            else accounting.guarantees(ledger.certified_event, delta, plan.neighbours, lower_bounds=False)
        )
    except UnpricedEvent as error:
        raise CertificationError(str(error)) from error
    finite = tuple(guarantee for guarantee in found if math.isfinite(guarantee.epsilon))
    if not finite:
        raise CertificationError("the ledger records something whose cost is infinite: nothing can be certified")
    if accountant is not None:
        finite = _only(accountant, finite, ledger)
    unsafe = []
    if ledger.randomness != "secure":
        unsafe.append("randomness was seeded for research: whoever knows the seed can remove the noise")
    return Certificate(
        ledger=ledger,
        guarantees=finite,
        adjacency=plan.neighbours,
        delta=delta,
        unsafe=tuple(unsafe),
        publication=publication or Publication(),
    )


def _only(accountant: str, found: tuple[Guarantee, ...], ledger: Ledger) -> tuple[Guarantee, ...]:
    chosen = tuple(guarantee for guarantee in found if guarantee.accountant == accountant)
    if not chosen:
        names = ", ".join(guarantee.accountant for guarantee in found)
        why = "it has no proven price for every event of this ledger"
        if isinstance(ledger.plan, AdaptivePlan):
            why = (
                "its noise was chosen while it ran, and composing what was realised (above all a loss distribution along "
                "the realised path) is no valid bound; what holds is the plan's cap, or a floor declared beforehand"
            )
        raise CertificationError(f"{accountant} cannot certify this run: {why}. Valid here: {names}")
    return chosen


def _not_covered(noise: Noise, unit: Unit) -> list[str]:
    items = [item for item in NOT_COVERED if noise != "grid" or item != FLOATING_POINT]
    return [GROUPS_OF_PERSONS if item == GROUPS and isinstance(unit, Person) else item for item in items]


def _sigmas(ledger: Ledger) -> list[float]:
    """The planned ones; of an adaptive plan the recorded ones, which follow from its recorded public scores."""
    if isinstance(ledger.training, TrainingPlan):
        return list(ledger.training.sigmas)
    charged = [events.to_json(recorded.event)["sigma"] for recorded in ledger.events if recorded.slot is not None]
    return [sigma / ledger.training.clipping.charged(1.0) for sigma in charged]


def _planned_slots(ledger: Ledger) -> int:
    most = most_slots(ledger.plan)
    return ledger.used_slots if most is None else most


def _planned_epochs(ledger: Ledger) -> int:
    """Those that the released model may have seen."""
    return len(ledger.training.slots) if isinstance(ledger.training, TrainingPlan) else _planned_slots(ledger)


def _selection(ledger: Ledger) -> dict[str, Any]:
    """How the configuration was chosen; absent where there was nothing to choose."""
    plan, choice = ledger.plan, ledger.choice
    if not isinstance(plan, SelectionPlan) or choice is None or choice.candidate is None:
        return {}
    return {
        "selection": {
            "method": plan.method.to_json(),
            "score_share": plan.score_share,
            "candidates": [candidate.name for candidate in plan.candidates],
            "chosen": choice.candidate,
            "configuration": plan.candidates[choice.candidate].description,
            "score": None if choice.right is None else {"right": choice.right, "wrong": choice.wrong},
            "retrained": plan.retrains,
        }
    }


def _person(unit: Unit) -> dict[str, Any]:
    """What of a person's records takes part; absent where examples are protected."""
    if not isinstance(unit, Person):
        return {}
    return {"person": {"gradient": unit.gradient, "most_records": unit.most_records}}


def _adaptive(plan: AdaptivePlan) -> dict[str, Any]:
    """What is certified instead of slots."""
    floor = None if plan.floor is None else plan.floor.to_json()
    return {"caps": [cap.to_json() for cap in plan.caps], "floor": floor}


def _total_rho(ledger: Ledger, adjacency: Adjacency) -> float | None:
    """The unamplified zCDP parameter of all that is certified, where there is one."""
    if isinstance(ledger.plan, AdaptivePlan):
        return None if ledger.plan.rho is None else round_up(ledger.plan.rho)
    try:
        return round_up(rho_of(ledger.certified_event, adjacency))
    except UnpricedEvent:
        return None


def _components(ledger: Ledger, adjacency: Adjacency) -> list[dict[str, Any]]:
    """What the loss was spent on, by unamplified ρ: the plan's slots together, then all else by its purpose."""
    slots = [recorded.event for recorded in ledger.events if recorded.slot is not None]
    if not isinstance(ledger.plan, AdaptivePlan):
        slots = [slot.event for slot in ledger.plan.slots]
    purposes = ["training"] * len(slots)
    if isinstance(ledger.plan, SelectionPlan):
        purposes[0] = "selection"
    others = [recorded.event for recorded in ledger.events if recorded.slot is None] + list(ledger.pending_events)
    spent: dict[str, list[float]] = {}
    for purpose, event in zip([*purposes, *map(_purpose, others)], [*slots, *others], strict=True):
        spent.setdefault(purpose, []).append(_priced(event, adjacency))
    total = math.fsum(price for prices in spent.values() for price in prices) or 1.0
    return [
        {"purpose": purpose, "events": len(prices), "share": round(math.fsum(prices) / total, 4)}
        for purpose, prices in spent.items()
    ]


def _priced(event: Event, adjacency: Adjacency) -> float:
    """ρ, or that of the Gaussian release that costs the same ε: shares are a guide, the guarantee prices everything."""
    try:
        return rho_of(event, adjacency)
    except UnpricedEvent:
        epsilon = Renyi(adjacency).guarantee(event, DEFAULT_DELTA).epsilon
        return mu_of_epsilon(epsilon, DEFAULT_DELTA) ** 2 / 2 if math.isfinite(epsilon) else 0.0


_PURPOSES: Mapping[type, str] = {ExponentialMechanism: "selection", RepeatAndSelect: "selection"}


def _purpose(event: Event) -> str:
    if isinstance(event, GaussianRelease) and event.purpose:
        return event.purpose
    return _PURPOSES.get(type(event), "other")
