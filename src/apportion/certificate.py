"""The certificate: what a ledger proves, recomputed from the ledger alone; as JSON and in plain words."""

import math
from dataclasses import dataclass
from typing import Any

from apportion import accounting, batching, events
from apportion.accounting import Guarantee
from apportion.adaptive import AdaptivePlan, most_slots
from apportion.errors import CertificationError, UnpricedEvent
from apportion.events import Adjacency
from apportion.ledger import Ledger
from apportion.plan import NonPrivatePlan, TrainingPlan, rho_of

FORMAT = 1
SIGNIFICANT_DIGITS = 4

# Claimed ε may fall short of a recomputed upper bound by this much: other platforms round differently.
CLAIM_TOLERANCE = 1e-6

ADJACENCY_IN_WORDS: dict[Adjacency, str] = {
    "add-remove": "one {unit} is added to the data or removed from it",
    "zero-out": "one {unit}'s contribution is removed, while the number of {unit}s is public",
    "replace-one": "one {unit} is replaced by another",
}

FLOATING_POINT = "floating-point effects: the noise is Gaussian in 64-bit floating point, not on an exact grid"
NOT_COVERED = (
    "what was learned from the same data before or outside this run (earlier runs, tuning by hand, looking at the data)",
    "that the publisher ran the recorded code on the declared data: the certificate proves arithmetic, not honesty",
    "copies or earlier states of the run directory from which other models were released",
    "groups: a person with several examples is protected less, the more examples there are",
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
    """The guarantees of one ledger, tightest first. `unsafe` lists why it should not be relied upon, if anything."""

    ledger: Ledger
    guarantees: tuple[Guarantee, ...]
    adjacency: Adjacency
    delta: float
    unsafe: tuple[str, ...]

    @property
    def guarantee(self) -> Guarantee:
        return self.guarantees[0]

    @property
    def epsilon(self) -> float:
        """What is claimed: the tightest proven ε, rounded up at the fourth significant digit."""
        return round_up(self.guarantee.epsilon)

    def to_json(self) -> dict[str, Any]:
        plan = self.ledger.plan
        assert isinstance(plan, TrainingPlan | AdaptivePlan)
        return {
            "format": FORMAT,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "unit": "example",
            "accountant": self.guarantee.accountant,
            "status": self.guarantee.status,
            "guarantees": [
                {"accountant": g.accountant, "epsilon": round_up(g.epsilon), "status": g.status}
                for g in self.guarantees
            ],
            "rho": _rho(self.ledger, self.adjacency),
            "batching": batching.to_json(plan.batching),
            "schedule": plan.schedule.to_json(),
            "sigmas": _sigmas(self.ledger),
            "clip": plan.clip,
            "clipping": "flat",
            "examples": plan.examples,
            "steps": plan.batching.steps * _planned_slots(self.ledger),
            "slots": {"planned": _planned_slots(self.ledger), "used": self.ledger.used_slots},
            "adaptive": None if isinstance(plan, TrainingPlan) else _adaptive(plan),
            "released": "final-weights",
            "randomness": self.ledger.randomness,
            "declared": dict(self.ledger.declared),
            "floating_point": "covered" if plan.noise == "grid" else "not covered",
            "not_covered": [item for item in NOT_COVERED if plan.noise != "grid" or item != FLOATING_POINT],
            "unsafe": list(self.unsafe),
            "run": self.ledger.run,
            "ledger": self.ledger.head,
            "weights": self.ledger.weights,
        }

    def in_words(self) -> str:
        return words(self.to_json())


def certify(ledger: Ledger, delta: float | None = None, accountant: str | None = None) -> Certificate:
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
            else accounting.guarantees(ledger.certified_event, delta, plan.neighbours)
        )
    except UnpricedEvent as error:
        raise CertificationError(str(error)) from error
    if accountant is not None:
        found = _only(accountant, found, ledger)
    unsafe = []
    if ledger.randomness != "secure":
        unsafe.append("randomness was seeded for research: whoever knows the seed can remove the noise")
    return Certificate(ledger=ledger, guarantees=found, adjacency=plan.neighbours, delta=delta, unsafe=tuple(unsafe))


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


def _rho(ledger: Ledger, adjacency: Adjacency) -> float | None:
    if isinstance(ledger.plan, AdaptivePlan):
        return None if ledger.plan.rho is None else round_up(ledger.plan.rho)
    return round_up(rho_of(ledger.certified_event, adjacency))


def _sigmas(ledger: Ledger) -> list[float]:
    """The planned ones; of an adaptive plan the recorded ones, which follow from its recorded public scores."""
    if isinstance(ledger.plan, TrainingPlan):
        return list(ledger.plan.sigmas)
    return [events.to_json(recorded.event)["sigma"] for recorded in ledger.events if recorded.slot is not None]


def _planned_slots(ledger: Ledger) -> int:
    most = most_slots(ledger.plan)
    return ledger.used_slots if most is None else most


def _adaptive(plan: AdaptivePlan) -> dict[str, Any]:
    """What is certified instead of slots."""
    floor = None if plan.floor is None else plan.floor.to_json()
    return {"caps": [cap.to_json() for cap in plan.caps], "floor": floor}


def words(certificate: dict[str, Any]) -> str:
    """A certificate's JSON in plain words (Markdown), a pure function of that JSON so that anyone can regenerate it."""
    unit, sigmas = certificate["unit"], certificate["sigmas"]
    neighbours = ADJACENCY_IN_WORDS[certificate["adjacency"]].format(unit=unit)
    epsilon, delta = certificate["epsilon"], certificate["delta"]
    odds = math.exp(epsilon)
    lines = [f"**UNSAFE: {reason}.**\n" for reason in certificate["unsafe"]]
    lines += [
        f"**(ε, δ) = ({epsilon:g}, {delta:g})-differential privacy** for the released weights, where neighbouring data "
        f"sets differ in that {neighbours}.",
        "",
        f"In words: whatever is concluded from the published weights would have been concluded with nearly the same "
        f"probability had any one {unit} not been there: at most e^ε = {odds:.4g} times as likely, except with "
        f"probability about δ = {delta:g}.",
        "",
        f"- Unit of privacy: one {unit}. Adjacency: {certificate['adjacency']}.",
        f"- Proven by: {certificate['accountant']} accounting of {_what_is_certified(certificate)}.",
        f"- Batching: {batching_in_words(certificate['batching'])}; {certificate['steps']} steps in all.",
        f"- Noise multiplier: {certificate['schedule']['kind']} schedule{_range(sigmas)}; "
        f"every example's gradient clipped to L2 norm {certificate['clip']:g}.",
        f"- Declared number of examples: {certificate['examples']}.",
        f"- Released: {certificate['released'].replace('-', ' ')}, nothing else computed from the data.",
        f"- Randomness: {certificate['randomness'].replace('-', ' ')}.",
        f"- Floating-point effects of the noise: {_floating_point_in_words(certificate)}.",
        "",
        "The same run under other accountants (all proven; the smallest is the claim):",
        "",
        "| accountant | ε |",
        "| --- | --- |",
        *(f"| {g['accountant']} | {g['epsilon']:g} |" for g in certificate["guarantees"]),
        "",
        "Not covered:",
        "",
        *(f"- {item}" for item in certificate["not_covered"]),
    ]
    return "\n".join(lines) + "\n"


def _what_is_certified(certificate: dict[str, Any]) -> str:
    slots, adaptive = certificate["slots"], certificate["adaptive"]
    if adaptive is None:
        used = f"{slots['used']} were used; stopping early does not lower the cost"
        return f"all {slots['planned']} planned epochs ({used})"
    if adaptive["floor"] is not None:
        return f"the floor below which the noise was not allowed to fall, over all {slots['planned']} planned epochs"
    return (
        f"the cap under which the noise followed public scores ({slots['used']} epochs; the cap counts, not their sum)"
    )


def _floating_point_in_words(certificate: dict[str, Any]) -> str:
    if certificate["floating_point"] == "covered":
        return "covered (sums rounded to a public grid, rounded Gaussian noise drawn exactly, the rounding paid for)"
    return "not covered"


def _range(sigmas: list[float]) -> str:
    return f" from {sigmas[0]:.4g} to {sigmas[-1]:.4g}" if sigmas else ", never used"


def batching_in_words(data: dict[str, Any]) -> str:
    match data:
        case {"kind": "shuffle", "batches": batches}:
            return f"reshuffled every epoch and cut into {batches} batches of fixed size (no amplification)"
        case {"kind": "partition", "batches": batches}:
            return f"every epoch each example falls independently into one of {batches} secret batches"
        case {"kind": "poisson", "rate": rate}:
            return f"every step each example is drawn independently with probability {rate:g}"
        case _:
            raise AssertionError(f"no words for {data}")
