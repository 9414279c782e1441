"""The ledger: an append-only chain of JSON lines, each on disk before anything computed with its noise is used.

    line 0       plan      the whole plan, how randomness was made, and what was declared public
    line 1 … n   event     one mechanism that ran; an epoch names the plan's slot that it takes, a component its number
                 choice    which candidate a private selection chose, and its noisy score if that is part of the output
                 score     what the model scored after a slot, on public data; adaptive noise follows from these
    then         release   the hash of the weights that were released: no slot is taken after it
    perhaps      event, evaluation   a private score: its cost, then the noisy counts that were released

Every line carries its index, the hash of the line before it and the hash of itself. The ledger holds no clock time, host
name, realised batch size or other realised quantity of the private data, so it can be published as it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from apportion import adaptive, canonical, events, selection_plan, stages
from apportion.adaptive import AdaptivePlan, Plan
from apportion.errors import InvalidArgument, LedgerError, UnpricedEvent
from apportion.events import Event, PoissonLaw
from apportion.plan import NonPrivatePlan, TrainingPlan
from apportion.selection_plan import RepeatRuns, SelectionPlan
from apportion.stages import PrivateEvaluation
from apportion.units import Person

FORMAT = 1
START = "0" * 64
RecordedPlan = Plan | SelectionPlan
Randomness = Literal["secure", "seeded-for-research-only"]
# A recorded σ may differ from the recomputed one by this much, because exp and pow differ between platforms.
SIGMA_TOLERANCE = 1e-12

_BODY_FIELDS = {
    "plan": {"format", "run", "plan", "randomness", "declared"},
    "event": {"slot", "event"},
    "score": {"slot", "score"},
    "choice": {"candidate", "right", "wrong"},
    "release": {"what", "weights"},
    "evaluation": {"right", "wrong"},
}
_OPTIONAL_FIELDS = {"event": {"component"}, "evaluation": {"tables"}}
EVALUATION = "evaluation"  # the purpose of the event that pays for an evaluation
MOST_COUNTED = 1 << 53
NOT_FOR_PERSONS = (
    "the plan protects persons, but scores, looks and components are priced for one record: none can be released beside "
    "the training"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    slot: int | None
    event: Event
    component: int | None = None


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
    if not data.endswith(b"\n"):
        raise LedgerError("the last line is torn: it does not end with a newline" if data else "the ledger is empty")
    records = []
    previous = START
    for index, line in enumerate(data[:-1].split(b"\n")):
        record = _parse_record(line, index, previous)
        records.append(record)
        previous = record["hash"]
    return _interpret(records)


def parse_intact_part(data: bytes) -> Ledger:
    """Like `parse`, but a last line that a crash tore or garbled is left out of account."""
    return parse(intact_part(data)[0])


def intact_part(data: bytes) -> tuple[bytes, bytes]:
    """A ledger up to its last intact line, and what a crash left after it: a line that is torn or was never synced.

    Only the very last line may be damaged; `parse` refuses damage anywhere else.
    """
    whole, torn = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
    if whole and not torn:
        start = whole.rfind(b"\n", 0, len(whole) - 1) + 1
        if not _is_sealed(whole[start:-1]):
            whole, torn = whole[:start], whole[start:]
    if not whole:
        raise LedgerError("the ledger holds no complete line: nothing was spent; remove the directory and start again")
    return whole, torn


def _is_sealed(line: bytes) -> bool:
    """Whether a line carries its own hash: a line that was written to the end does."""
    try:
        record = canonical.loads(line)
    except InvalidArgument:
        return False
    return isinstance(record, dict) and "hash" in record and record["hash"] == seal(record)


def read(path: Path) -> Ledger:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {path}: {error}") from error


def _parse_record(line: bytes, index: int, previous: str) -> dict[str, Any]:
    try:
        record = canonical.loads(line)
    except InvalidArgument as error:
        raise LedgerError(f"line {index}: {error}") from None
    if not isinstance(record, dict) or set(record) != {"index", "previous", "kind", "body", "hash"}:
        raise LedgerError(f"line {index}: a record has exactly the fields index, previous, kind, body and hash")
    if canonical.dumps(record).encode() != line:
        raise LedgerError(f"line {index}: not in canonical form")
    if record["index"] != index or isinstance(record["index"], bool):
        raise LedgerError(f"line {index}: numbered {record['index']!r:.40}; a line was dropped, added or moved")
    if record["previous"] != previous:
        raise LedgerError(f"line {index}: does not follow the line before it (hash mismatch)")
    if record["hash"] != seal(record):
        raise LedgerError(f"line {index}: was edited (its hash does not match its content)")
    kind, body = record["kind"], record["body"]
    if not isinstance(kind, str) or kind not in _BODY_FIELDS:
        raise LedgerError(f"line {index}: unknown kind {kind!r:.40}")
    if not isinstance(body, dict) or set(body) - _OPTIONAL_FIELDS.get(kind, set()) != _BODY_FIELDS[kind]:
        raise LedgerError(f"line {index}: {kind} must have the fields {sorted(_BODY_FIELDS[kind])}")
    return record


def seal(record: Mapping[str, Any]) -> str:
    return canonical.digest({name: value for name, value in record.items() if name != "hash"})


def _interpret(records: list[dict[str, Any]]) -> Ledger:
    if records[0]["kind"] != "plan":
        raise LedgerError("the first line must be the plan")
    header = records[0]["body"]
    the_plan = _checked_header(header)
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
            evaluations.append(_checked_evaluation(body, index, the_plan, paid))
        elif kind == "event":
            if weights is not None and body["slot"] is not None:
                raise LedgerError(f"line {index}: follows the release of the weights, after which no slot can be taken")
            recorded.append(_checked_event(body, index, the_plan, (used, components), scores))
            # Not after any slot: one that stands for a torn line may come before the components.
            if (scores or weights is not None) and _prepares(recorded[-1], the_plan):
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
            choice = _checked_choice(body, index, the_plan, used)
        elif kind == "score":
            scores.append(_checked_score(body, index, used - 1, scores))
        else:
            _check_chosen(the_plan, index, used, choice)
            weights = _checked_weights(body, index)
    _check_cap(the_plan, recorded, stages.events_of(the_plan.components[components:]))
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


def _checked_header(header: Mapping[str, Any]) -> RecordedPlan:
    if header["format"] != FORMAT:
        raise LedgerError(f"ledger format {header['format']!r:.40} is not known to this version (it reads {FORMAT})")
    if header["randomness"] not in ("secure", "seeded-for-research-only"):
        raise LedgerError(f"unknown randomness {header['randomness']!r:.40}")
    if not _is_hex(header["run"], 32):
        raise LedgerError(f"run must be 32 hexadecimal digits, got {header['run']!r:.40}")
    declared = header["declared"]
    if not isinstance(declared, dict) or not all(isinstance(value, str) for value in declared.values()):
        raise LedgerError("declared must map names to texts")
    try:
        return plan_from_json(header["plan"])
    except Exception as error:
        raise LedgerError(f"the plan in the first line is not valid: {error}") from error


def plan_from_json(data: Any) -> RecordedPlan:
    """The inverse of every recorded plan's `to_json`."""
    if isinstance(data, Mapping) and "selection" in data:
        return selection_plan.from_json(data)
    return adaptive.from_json(data)


def _checked_choice(body: Mapping[str, Any], index: int, the_plan: RecordedPlan, used: int) -> Choice:
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
    elif not all(_is_count(count) if repeated else count is None for count in counts):
        raise LedgerError(f"line {index}: a choice has two noisy counts if runs were repeated, and none otherwise")
    return Choice(candidate=candidate, right=counts[0], wrong=counts[1])


def _check_chosen(the_plan: RecordedPlan, index: int, used: int, choice: Choice | None) -> None:
    if isinstance(the_plan, SelectionPlan) and (
        choice is None or choice.candidate is None or used < len(the_plan.slots)
    ):
        raise LedgerError(f"line {index}: weights are released before the selection has ended")


def _is_count(value: Any) -> bool:
    return type(value) is int and abs(value) <= MOST_COUNTED


def _checked_weights(body: Mapping[str, Any], index: int) -> str:
    if body["what"] != "final-weights" or not _is_hex(body["weights"], 64):
        raise LedgerError(f"line {index}: a release names final-weights and their SHA-256")
    return str(body["weights"])


def _checked_evaluation(
    body: Mapping[str, Any], index: int, the_plan: RecordedPlan, paid: RecordedEvent | None
) -> Evaluation:
    """Counts follow, immediately, the event that pays for them: record, then release."""
    event = None if paid is None else paid.event
    if paid is None or not isinstance(event, events.GaussianRelease) or event.purpose != EVALUATION:
        raise LedgerError(f"line {index}: an evaluation must directly follow the event that pays for it")
    if event.replace_one < math.sqrt(2) * (1 - SIGMA_TOLERANCE):
        raise LedgerError(
            f"line {index}: a replaced record moves two counts, but the event pays for less (replace_one)"
        )
    right, wrong = body["right"], body["wrong"]
    if not (_is_count(right) and _is_count(wrong)):
        raise LedgerError(f"line {index}: the counts of an evaluation must be whole numbers")
    tables = body.get("tables")
    if tables is not None or "tables" in body:
        _check_tables(tables, index)
    planned = None if paid.component is None else the_plan.components[paid.component]
    if isinstance(planned, PrivateEvaluation) and set(tables or {}) != set(planned.measures):
        raise LedgerError(f"line {index}: the tables of the evaluation are not the measures that the plan declares")
    return Evaluation(right=right, wrong=wrong, sigma=event.sigma, tables=tables)


# The dimensions of the noisy tables: true × predicted class; right, wrong × bins; class × (in it, not in it) × bins.
_TABLE_DIMENSIONS = {"confusion": 2, "calibration": 2, "auroc": 3}


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
        if any(type(item) is not int or abs(item) > MOST_COUNTED for item in table):
            raise LedgerError(f"line {index}: the counts of an evaluation must be whole numbers")
        return (len(table),)
    shapes = {_shape(item, dimensions - 1, index) for item in table}
    if len(shapes) != 1:
        raise LedgerError(f"line {index}: the rows of a table must have one length")
    return (len(table), *shapes.pop())


def _checked_score(body: Mapping[str, Any], index: int, latest: int, scores: Sequence[RecordedScore]) -> RecordedScore:
    slot, score = body["slot"], body["score"]
    if type(slot) is not int or slot != latest or latest < 0 or (scores and scores[-1].slot == slot):
        raise LedgerError(f"line {index}: a score belongs to the latest slot, which is scored once, got {slot!r:.40}")
    if type(score) is not float or not math.isfinite(score):
        raise LedgerError(f"line {index}: a score is a decimal number, got {score!r:.40}")
    return RecordedScore(slot=slot, score=score)


def protects_persons(the_plan: RecordedPlan) -> bool:
    return isinstance(the_plan, TrainingPlan | AdaptivePlan) and isinstance(the_plan.unit, Person)


def _checked_event(
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


def _prepares(entry: RecordedEvent, the_plan: RecordedPlan) -> bool:
    if entry.component is not None:
        return stages.prepares(the_plan.components[entry.component])
    named = stages.COMPONENTS.get(getattr(entry.event, "purpose", ""))
    return named is not None and named is not PrivateEvaluation


def _planned(the_plan: RecordedPlan, slot: int, scores: Sequence[RecordedScore], index: int) -> Event:
    """What the plan says for this slot, after these scores. Whether an adaptive plan could afford it is checked last."""
    most = most_slots(the_plan)
    if most is not None and slot >= most:
        raise LedgerError(f"line {index}: the plan has only {most} slots")
    if isinstance(the_plan, AdaptivePlan):
        return the_plan.slot([score.score for score in scores], slot).event
    return the_plan.slots[slot].event


def _check_cap(the_plan: RecordedPlan, recorded: Sequence[RecordedEvent], pending: tuple[Event, ...]) -> None:
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


def most_slots(the_plan: RecordedPlan) -> int | None:
    """How many slots the plan has, if it fixes a number."""
    return len(the_plan.slots) if isinstance(the_plan, SelectionPlan) else adaptive.most_slots(the_plan)


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


def _is_hex(value: Any, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and set(value) <= set("0123456789abcdef")
