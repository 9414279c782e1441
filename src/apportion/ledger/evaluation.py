"""The evaluation after a release: noisy counts and tables, which follow the event that pays for them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apportion.errors import LedgerError
from apportion.events import GaussianRelease
from apportion.ledger.outcomes import is_count
from apportion.ledger.recorded_event import SIGMA_TOLERANCE, RecordedEvent
from apportion.ledger.recorded_plan import RecordedPlan
from apportion.stages import PrivateEvaluation

# The dimensions of the noisy tables: true × predicted class; right, wrong × bins; class × (in it, not in it) × bins.
_TABLE_DIMENSIONS = {"confusion": 2, "calibration": 2, "auroc": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Noisy counts of right and wrong answers on held-out records, and the noise multiplier that they were paid with.

    `tables` are the noisy tables behind other scores, by measure; None in ledgers from before there were any.
    """

    right: int
    wrong: int
    sigma: float
    tables: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        tables = {} if self.tables is None else {"tables": dict(self.tables)}
        return {"right": self.right, "wrong": self.wrong, "sigma": self.sigma, **tables}


def checked_evaluation(
    body: Mapping[str, Any], index: int, the_plan: RecordedPlan, paid: RecordedEvent | None
) -> Evaluation:
    """Counts follow, immediately, the event that pays for them: record, then release."""
    event = None if paid is None else paid.event
    if paid is None or not isinstance(event, GaussianRelease) or event.purpose != PrivateEvaluation.kind:
        raise LedgerError(f"line {index}: an evaluation must directly follow the event that pays for it")
    if event.replace_one < math.sqrt(2) * (1 - SIGMA_TOLERANCE):
        raise LedgerError(
            f"line {index}: a replaced record moves two counts, but the event pays for less (replace_one)"
        )
    right, wrong = body["right"], body["wrong"]
    if not (is_count(right) and is_count(wrong)):
        raise LedgerError(f"line {index}: the counts of an evaluation must be whole numbers")
    tables = body.get("tables")
    if "tables" in body:
        _check_tables(tables, index)
    planned = None if paid.component is None else the_plan.components[paid.component]
    if isinstance(planned, PrivateEvaluation) and set(tables or {}) != set(planned.measures):
        raise LedgerError(f"line {index}: the tables of the evaluation are not the measures that the plan declares")
    return Evaluation(right=right, wrong=wrong, sigma=event.sigma, tables=tables)


def _check_tables(tables: Any, index: int) -> None:
    if not isinstance(tables, dict) or not set(tables) <= set(_TABLE_DIMENSIONS):
        raise LedgerError(f"line {index}: the tables of an evaluation are {', '.join(_TABLE_DIMENSIONS)}")
    for name, table in tables.items():
        shape = _shape(table, _TABLE_DIMENSIONS[name], index)
        square = name != "confusion" or shape[0] == shape[1]
        if not square or min(shape) < 1 or (name != "confusion" and shape[-2] != 2):
            raise LedgerError(f"line {index}: the table {name} has not the shape of one")


def _shape(table: Any, dimensions: int, index: int) -> tuple[int, ...]:
    """Of nested lists of whole numbers, all of one length in each dimension."""
    if not isinstance(table, list):
        raise LedgerError(f"line {index}: a table of an evaluation must be nested lists of whole numbers")
    if dimensions == 1:
        if not all(is_count(item) for item in table):
            raise LedgerError(f"line {index}: the counts of an evaluation must be whole numbers")
        return (len(table),)
    shapes = {_shape(item, dimensions - 1, index) for item in table}
    if len(shapes) != 1:
        raise LedgerError(f"line {index}: the rows of a table must have one length")
    return (len(table), *shapes.pop())
