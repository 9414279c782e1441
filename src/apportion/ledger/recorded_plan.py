"""The first line of a ledger: the plan, of whatever kind, and how randomness was made."""

from collections.abc import Mapping
from typing import Any, Literal

from apportion import adaptive, selection_plan
from apportion.adaptive import AdaptivePlan, Plan
from apportion.errors import LedgerError
from apportion.ledger.chain import is_hex
from apportion.plan import TrainingPlan
from apportion.selection_plan import SelectionPlan
from apportion.units import Person

FORMAT = 1
RecordedPlan = Plan | SelectionPlan
Randomness = Literal["secure", "seeded-for-research-only"]
NOT_FOR_PERSONS = (
    "the plan protects persons, but scores, looks and components are priced for one record: none can be released beside "
    "the training"
)


def checked_header(header: Mapping[str, Any]) -> RecordedPlan:
    if header["format"] != FORMAT:
        raise LedgerError(f"ledger format {header['format']!r:.40} is not known to this version (it reads {FORMAT})")
    if header["randomness"] not in ("secure", "seeded-for-research-only"):
        raise LedgerError(f"unknown randomness {header['randomness']!r:.40}")
    if not is_hex(header["run"], 32):
        raise LedgerError(f"run must be 32 hexadecimal digits, got {header['run']!r:.40}")
    declared = header["declared"]
    if not isinstance(declared, dict) or not all(isinstance(value, str) for value in declared.values()):
        raise LedgerError("declared must map names to texts")
    try:
        return _plan_from_json(header["plan"])
    except Exception as error:
        raise LedgerError(f"the plan in the first line is not valid: {error}") from error


def _plan_from_json(data: Any) -> RecordedPlan:
    """The inverse of every recorded plan's `to_json`."""
    if isinstance(data, Mapping) and "selection" in data:
        return selection_plan.from_json(data)
    return adaptive.from_json(data)


def most_slots(the_plan: RecordedPlan) -> int | None:
    """How many slots the plan has, if it fixes a number."""
    return len(the_plan.slots) if isinstance(the_plan, SelectionPlan) else adaptive.most_slots(the_plan)


def protects_persons(the_plan: RecordedPlan) -> bool:
    return isinstance(the_plan, TrainingPlan | AdaptivePlan) and isinstance(the_plan.unit, Person)
