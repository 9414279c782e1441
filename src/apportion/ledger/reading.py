"""A whole ledger, read and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion import events, stages
from apportion.adaptive import AdaptivePlan
from apportion.errors import LedgerError
from apportion.events import Event
from apportion.ledger.chain import intact_part, parse_records
from apportion.ledger.evaluation import Evaluation, checked_evaluation
from apportion.ledger.outcomes import (
    Choice,
    RecordedScore,
    check_chosen,
    checked_choice,
    checked_score,
    checked_weights,
)
from apportion.ledger.recorded_event import RecordedEvent, check_cap, checked_event, prepares
from apportion.ledger.recorded_plan import Randomness, RecordedPlan, checked_header
from apportion.plan import NonPrivatePlan, TrainingPlan
from apportion.selection_plan import SelectionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A whole ledger, read and checked: a valid chain, whose epochs are a prefix of its plan.

    Of an adaptive plan: every σ follows from the scores before it, and the whole stays within the cap.
    """

    run: str
    plan: RecordedPlan
    randomness: Randomness
    declared: Mapping[str, str]
    events: tuple[RecordedEvent, ...]
    scores: tuple[RecordedScore, ...]
    weights: str | None
    evaluations: tuple[Evaluation, ...]
    head: str
    choice: Choice | None = None

    @property
    def training(self) -> TrainingPlan | AdaptivePlan:
        """The plan by which the released model was trained: after a selection, the chosen candidate's."""
        assert not isinstance(self.plan, NonPrivatePlan)
        if not isinstance(self.plan, SelectionPlan):
            return self.plan
        if self.choice is None or self.choice.candidate is None:
            raise LedgerError("the selection has not chosen a candidate")
        return self.plan.candidates[self.choice.candidate].released

    @property
    def used_slots(self) -> int:
        return sum(recorded.slot is not None for recorded in self.events)

    @property
    def used_components(self) -> int:
        return sum(recorded.component is not None for recorded in self.events)

    @property
    def released(self) -> bool:
        return self.weights is not None

    @property
    def certified_event(self) -> Event:
        """What must be paid for: all that is recorded, and every component and slot of the plan that is not.

        Of an adaptive plan only its floor, if it has one, can be priced like this.
        """
        if isinstance(self.plan, AdaptivePlan):
            return self.plan.floor_event
        recorded = tuple(recorded.event for recorded in self.events)
        unused = tuple(slot.event for slot in self.plan.slots[self.used_slots :])
        return events.Composed(events=recorded + unused + self.pending_events)

    @property
    def pending_events(self) -> tuple[Event, ...]:
        """Of the plan's components that have not run."""
        return stages.events_of(self.plan.components[self.used_components :])


def parse(data: bytes) -> Ledger:
    """Read a ledger, refusing anything that is not a complete and consistent chain."""
    return _interpret(parse_records(data))


def parse_intact_part(data: bytes) -> Ledger:
    """Like `parse`, but a last line that a crash tore or garbled is left out of account."""
    return parse(intact_part(data)[0])


def read(path: Path) -> Ledger:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {path}: {error}") from error


def _interpret(records: list[dict[str, Any]]) -> Ledger:
    if records[0]["kind"] != "plan":
        raise LedgerError("the first line must be the plan")
    header = records[0]["body"]
    the_plan = checked_header(header)
    recorded: list[RecordedEvent] = []
    scores: list[RecordedScore] = []
    evaluations: list[Evaluation] = []
    weights, used, components = None, 0, 0
    choice: Choice | None = None
    for index, record in enumerate(records[1:], start=1):
        kind, body = record["kind"], record["body"]
        if kind == "plan":
            raise LedgerError(f"line {index}: a second plan")
        if kind == "evaluation":
            paid = recorded[-1] if weights is not None and records[index - 1]["kind"] == "event" else None
            evaluations.append(checked_evaluation(body, index, the_plan, paid))
        elif kind == "event":
            if weights is not None and body["slot"] is not None:
                raise LedgerError(f"line {index}: follows the release of the weights, after which no slot can be taken")
            recorded.append(checked_event(body, index, the_plan, (used, components), scores))
            # Not after any slot: one that stands for a torn line may come before the components.
            if (scores or weights is not None) and prepares(recorded[-1], the_plan):
                raise LedgerError(f"line {index}: prepares the training, but follows its scores or its release")
            used += body["slot"] is not None
            components += recorded[-1].component is not None
            if isinstance(the_plan, SelectionPlan) and used == 2 and (choice is None or choice.candidate is None):
                raise LedgerError(f"line {index}: trains a winner again before one was chosen")
        elif weights is not None:
            raise LedgerError(f"line {index}: follows the release of the weights, after which only scores are paid for")
        elif kind == "choice":
            if choice is not None:
                raise LedgerError(f"line {index}: a second choice, but one was paid for")
            choice = checked_choice(body, index, the_plan, used)
        elif kind == "score":
            if isinstance(the_plan, SelectionPlan):
                raise LedgerError(f"line {index}: scores a trial, but a selection pays for its choice alone")
            scores.append(checked_score(body, index, used - 1, scores))
        else:
            check_chosen(the_plan, index, used, choice)
            weights = checked_weights(body, index)
    check_cap(the_plan, recorded, stages.events_of(the_plan.components[components:]))
    return Ledger(
        run=header["run"],
        plan=the_plan,
        randomness=header["randomness"],
        declared=header["declared"],
        events=tuple(recorded),
        scores=tuple(scores),
        weights=weights,
        evaluations=tuple(evaluations),
        head=records[-1]["hash"],
        choice=choice,
    )
