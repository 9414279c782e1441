"""One mechanism that ran, as a line of a ledger: it must be what the plan says, and fit under the plan's cap."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion import events, stages
from apportion.adaptive import AdaptivePlan
from apportion.errors import InvalidArgument, LedgerError, UnpricedEvent
from apportion.events import Event
from apportion.ledger.outcomes import RecordedScore
from apportion.ledger.recorded_plan import NOT_FOR_PERSONS, RecordedPlan, most_slots, protects_persons
from apportion.stages import PrivateEvaluation

# A recorded σ may differ from the recomputed one by this much, because exp and pow differ between platforms.
SIGMA_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    slot: int | None
    event: Event
    component: int | None = None


def checked_event(
    body: Mapping[str, Any],
    index: int,
    the_plan: RecordedPlan,
    expected: tuple[int, int],
    scores: Sequence[RecordedScore],
) -> RecordedEvent:
    """`expected` are the next free slot and the next free component."""
    try:
        event = events.from_json(body["event"])
    except InvalidArgument as error:
        raise LedgerError(f"line {index}: {error}") from None
    slot = body["slot"]
    if slot is None and protects_persons(the_plan):
        raise LedgerError(f"line {index}: {NOT_FOR_PERSONS}")
    if slot is not None:
        if type(slot) is not int or slot != expected[0]:
            raise LedgerError(f"line {index}: takes slot {slot!r:.40}, but the next free slot is {expected[0]}")
        if not _same_event(event, _planned(the_plan, slot, scores, index)):
            raise LedgerError(f"line {index}: the event differs from what the plan says for slot {slot}")
    if "component" not in body:
        return RecordedEvent(slot=slot, event=event)
    _check_component(body, index, the_plan, expected[1], event)
    return RecordedEvent(slot=slot, event=event, component=body["component"])


def _check_component(body: Mapping[str, Any], index: int, the_plan: RecordedPlan, expected: int, event: Event) -> None:
    component = body["component"]
    if type(component) is not int or component != expected or body["slot"] is not None:
        raise LedgerError(
            f"line {index}: is component {component!r:.40} and takes no slot, but the next component is {expected}"
        )
    if component >= len(the_plan.components):
        raise LedgerError(f"line {index}: the plan has only {len(the_plan.components)} components")
    if not _same_event(event, the_plan.components[component].event):
        raise LedgerError(f"line {index}: the event differs from what the plan says for component {component}")


def _planned(the_plan: RecordedPlan, slot: int, scores: Sequence[RecordedScore], index: int) -> Event:
    """What the plan says for this slot, after these scores. Whether an adaptive plan could afford it is checked last."""
    most = most_slots(the_plan)
    if most is not None and slot >= most:
        raise LedgerError(f"line {index}: the plan has only {most} slots")
    if isinstance(the_plan, AdaptivePlan):
        return the_plan.slot([score.score for score in scores], slot).event
    return the_plan.slots[slot].event


def _same_event(found: Event, planned: Event) -> bool:
    """Equal, except that σ may differ by the last bits of another platform's exp."""
    return _same(events.to_json(found), events.to_json(planned))


def _same(found: Any, planned: Any, name: str = "") -> bool:
    if isinstance(found, dict) and isinstance(planned, dict):
        return found.keys() == planned.keys() and all(_same(found[key], planned[key], key) for key in planned)
    if isinstance(found, list) and isinstance(planned, list):
        return len(found) == len(planned) and all(_same(a, b) for a, b in zip(found, planned, strict=True))
    if name == "sigma":
        return bool(abs(found - planned) <= SIGMA_TOLERANCE * planned)
    return bool(found == planned)


def prepares(entry: RecordedEvent, the_plan: RecordedPlan) -> bool:
    if entry.component is not None:
        return stages.prepares(the_plan.components[entry.component])
    named = stages.COMPONENTS.get(getattr(entry.event, "purpose", ""))
    return named is not None and named is not PrivateEvaluation


def check_cap(the_plan: RecordedPlan, recorded: Sequence[RecordedEvent], pending: tuple[Event, ...]) -> None:
    """All that an adaptive run did, and its components, count towards its cap; beside a floor nothing else may happen."""
    if not isinstance(the_plan, AdaptivePlan) or not recorded:
        return
    spent = [*pending, *(event.event for event in recorded)]
    if the_plan.floor is not None and any(event.slot is None and event.component is None for event in recorded):
        raise LedgerError("a plan with a floor holds epochs and components only, but another event is recorded")
    try:
        within = the_plan.admits(spent[-1], spent[:-1])
    except UnpricedEvent as error:
        raise LedgerError(f"an event does not fit the plan's cap: {error}") from None
    if not within:
        raise LedgerError("the recorded events exceed the cap of the plan")
