"""What became of a run, beside its events: the score of an epoch, the choice of a selection, the released weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion.errors import LedgerError
from apportion.events import PoissonLaw
from apportion.ledger.chain import is_hex
from apportion.ledger.recorded_plan import RecordedPlan
from apportion.selection_plan import RepeatRuns, SelectionPlan

MOST_COUNTED = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedScore:
    slot: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a selection released: a candidate, and its noisy score where runs were repeated. None: there was no run."""

    candidate: int | None
    right: int | None
    wrong: int | None


def checked_score(body: Mapping[str, Any], index: int, latest: int, scores: Sequence[RecordedScore]) -> RecordedScore:
    slot, score = body["slot"], body["score"]
    if type(slot) is not int or slot != latest or latest < 0 or (scores and scores[-1].slot == slot):
        raise LedgerError(f"line {index}: a score belongs to the latest slot, which is scored once, got {slot!r:.40}")
    if type(score) is not float or not math.isfinite(score):
        raise LedgerError(f"line {index}: a score is a decimal number, got {score!r:.40}")
    return RecordedScore(slot=slot, score=score)


def checked_choice(body: Mapping[str, Any], index: int, the_plan: RecordedPlan, used: int) -> Choice:
    """One candidate of the plan, after the selection was paid for; a score only where it is part of what was paid."""
    if not isinstance(the_plan, SelectionPlan) or used != 1:
        raise LedgerError(f"line {index}: a choice must follow the event of a selection, which pays for it")
    candidate, counts = body["candidate"], (body["right"], body["wrong"])
    repeated = isinstance(the_plan.method, RepeatRuns)
    if candidate is None:
        may_be_empty = isinstance(the_plan.method, RepeatRuns) and isinstance(the_plan.method.runs, PoissonLaw)
        if not may_be_empty or counts != (None, None):
            raise LedgerError(f"line {index}: only a Poisson number of runs can end without a candidate")
    elif type(candidate) is not int or not 0 <= candidate < len(the_plan.candidates):
        raise LedgerError(f"line {index}: chose {candidate!r:.40}, which is no candidate of the plan")
    elif not all(is_count(count) if repeated else count is None for count in counts):
        raise LedgerError(f"line {index}: a choice has two noisy counts if runs were repeated, and none otherwise")
    return Choice(candidate=candidate, right=counts[0], wrong=counts[1])


def check_chosen(the_plan: RecordedPlan, index: int, used: int, choice: Choice | None) -> None:
    if isinstance(the_plan, SelectionPlan) and (
        choice is None or choice.candidate is None or used < len(the_plan.slots)
    ):
        raise LedgerError(f"line {index}: weights are released before the selection has ended")


def checked_weights(body: Mapping[str, Any], index: int) -> str:
    if body["what"] != "final-weights" or not is_hex(body["weights"], 64):
        raise LedgerError(f"line {index}: a release names final-weights and their SHA-256")
    return str(body["weights"])


def is_count(value: Any) -> bool:
    return type(value) is int and abs(value) <= MOST_COUNTED
