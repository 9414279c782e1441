"""A look into one run directory: everything the page shows, private metrics included."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion import accounting, events, ledger, stages
from apportion.accounting import Guarantee
from apportion.accounting.interpretation import Profile, profile_of_event, profile_of_pair
from apportion.adaptive import AdaptivePlan
from apportion.bundle.files import LEDGER
from apportion.errors import CertificationError, RunError, UnpricedEvent
from apportion.events import Composed, Event
from apportion.ledger import Ledger
from apportion.plan import NonPrivatePlan, rho_of
from apportion.selection_plan import SelectionPlan

METRICS = "metrics.jsonl"
_MOST_PRICED = 8  # prefixes of a run: pricing each may take a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`guarantees` pairs a number of epochs with what they cost; the last pair is the whole plan."""

    name: str
    ledger: Ledger
    metrics: tuple[dict[str, Any], ...]
    sigmas: tuple[float, ...]
    rho: tuple[float, ...]
    guarantees: tuple[tuple[int, tuple[Guarantee, ...]], ...]
    profile: Profile | None

    @property
    def private(self) -> bool:
        return bool(self.guarantees)

    @property
    def guarantee(self) -> Guarantee:
        """The tightest proven guarantee of everything that the ledger promises."""
        return self.guarantees[-1][1][0]

    def metric(self, *path: str) -> list[tuple[float, float]]:
        """(epoch, value) of one internal metric, where it was recorded."""
        points = []
        for line in self.metrics:
            value: Any = line
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            if isinstance(value, int | float) and isinstance(line.get("epoch"), int):
                points.append((float(line["epoch"]), float(value)))
        return points


def look(run: Path) -> Look:
    path = run / LEDGER
    if not path.is_file():
        raise RunError(f"{run} is not a run directory: it holds no {LEDGER}")
    recorded = ledger.parse_intact_part(path.read_bytes())
    if isinstance(recorded.plan, SelectionPlan):
        raise RunError(
            f"{run} is a selection: how its candidates went stays secret, so there is nothing to draw; see: apportion "
            "status, and the model card that apportion publish writes"
        )
    private = not isinstance(recorded.plan, NonPrivatePlan)
    slots = _slot_events(recorded)
    found = _over_epochs(slots, recorded) if private else ()
    return Look(
        name=run.resolve().name,
        ledger=recorded,
        metrics=_metrics(run / METRICS),
        sigmas=tuple(getattr(event, "sigma", 0.0) for event in slots),
        rho=_spent(slots, recorded) if private else (),
        guarantees=found,
        profile=_profile(recorded, found[-1][1][0]) if found else None,
    )


def _slot_events(recorded: Ledger) -> tuple[Event, ...]:
    """The planned epochs; of an adaptive plan those that were run."""
    if isinstance(recorded.plan, AdaptivePlan):
        return tuple(event.event for event in recorded.events if event.slot is not None)
    return tuple(slot.event for slot in recorded.plan.slots)


def _metrics(path: Path) -> tuple[dict[str, Any], ...]:
    """Lines that are whole; the last may have been cut off by a crash."""
    lines = []
    for text in path.read_text().splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return tuple(lines)


def _spent(slots: tuple[Event, ...], recorded: Ledger) -> tuple[float, ...]:
    total, curve = 0.0, []
    for event in slots:
        total += rho_of(event, recorded.plan.neighbours)  # type: ignore[union-attr]  # a private plan
        curve.append(total)
    return tuple(curve)


def _over_epochs(slots: tuple[Event, ...], recorded: Ledger) -> tuple[tuple[int, tuple[Guarantee, ...]], ...]:
    """ε after some of the epochs, and last after all that is certified."""
    plan = recorded.plan
    assert not isinstance(plan, NonPrivatePlan)
    count = len(slots)
    if isinstance(plan, AdaptivePlan):
        return ((count, plan.guarantees(plan.delta)),)
    some = sorted({max(1, round(count * i / _MOST_PRICED)) for i in range(1, _MOST_PRICED)} - {count})
    others = stages.events_of(plan.components)
    priced = [(n, Composed(events=(*others, *slots[:n]))) for n in some]
    try:
        return tuple(
            (n, accounting.guarantees(event, plan.delta, plan.neighbours))
            for n, event in [*priced, (count, recorded.certified_event)]
        )
    except UnpricedEvent as error:
        raise CertificationError(str(error)) from error


def _profile(recorded: Ledger, best: Guarantee) -> Profile:
    """What an attacker can reach, from the loss distribution of what is certified where there is one."""
    if isinstance(recorded.plan, AdaptivePlan) and recorded.plan.floor is None:
        return profile_of_pair(best.epsilon, best.delta)
    return profile_of_event(recorded.certified_event, best.adjacency, best.epsilon, best.delta)


def event_counts(recorded: Ledger) -> dict[str, int]:
    """How many events of each kind the ledger holds."""
    counts: dict[str, int] = {}
    for entry in recorded.events:
        kind = events.to_json(entry.event)["kind"]
        counts[kind] = counts.get(kind, 0) + 1
    return counts
