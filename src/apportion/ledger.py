"""The ledger: an append-only chain of JSON lines, each on disk before anything computed with its noise is used.

    line 0       plan      the whole plan, how randomness was made, and what was declared public
    line 1 … n   event     one mechanism that ran; an epoch names the plan's slot that it takes
    then         release   the hash of the weights that were released: no slot is taken after it
    perhaps      event, evaluation   a private score: its cost, then the noisy counts that were released

Every line carries its index, the hash of the line before it and the hash of itself. The ledger holds no clock time, host
name, realised batch size or other realised quantity, so it can be published as it is.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from apportion import canonical, events, plan
from apportion.durable import sync_directory
from apportion.errors import InvalidArgument, LedgerError
from apportion.events import Event
from apportion.plan import Plan

FORMAT = 1
START = "0" * 64
Randomness = Literal["secure", "seeded-for-research-only"]
# A recorded σ may differ from the recomputed one by this much, because exp and pow differ between platforms.
SIGMA_TOLERANCE = 1e-12

_BODY_FIELDS = {
    "plan": {"format", "run", "plan", "randomness", "declared"},
    "event": {"slot", "event"},
    "release": {"what", "weights"},
    "evaluation": {"right", "wrong"},
}
EVALUATION = "evaluation"  # the purpose of the event that pays for an evaluation
MOST_COUNTED = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    slot: int | None
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Noisy counts of right and wrong answers on held-out records, and the noise multiplier that they were paid with."""

    right: int
    wrong: int
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A whole ledger, read and checked: what it holds is a valid chain, and its epochs are a prefix of its plan."""

    run: str
    plan: Plan
    randomness: Randomness
    declared: Mapping[str, str]
    events: tuple[RecordedEvent, ...]
    weights: str | None
    evaluations: tuple[Evaluation, ...]
    head: str

    @property
    def used_slots(self) -> int:
        return sum(recorded.slot is not None for recorded in self.events)

    @property
    def released(self) -> bool:
        return self.weights is not None

    @property
    def certified_event(self) -> Event:
        """What must be paid for: all that is recorded, and every slot of the plan that is not."""
        recorded = tuple(recorded.event for recorded in self.events)
        unused = tuple(slot.event for slot in self.plan.slots[self.used_slots :])
        return events.Composed(events=recorded + unused)


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


def parse_whole_lines(data: bytes) -> Ledger:
    """Like `parse`, but a torn last line is left out of account."""
    return parse(data[: data.rfind(b"\n") + 1])


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
    if record["hash"] != _hash(record):
        raise LedgerError(f"line {index}: was edited (its hash does not match its content)")
    kind, body = record["kind"], record["body"]
    if not isinstance(kind, str) or kind not in _BODY_FIELDS:
        raise LedgerError(f"line {index}: unknown kind {kind!r:.40}")
    if not isinstance(body, dict) or set(body) != _BODY_FIELDS[kind]:
        raise LedgerError(f"line {index}: {kind} must have the fields {sorted(_BODY_FIELDS[kind])}")
    return record


def _hash(record: Mapping[str, Any]) -> str:
    return canonical.digest({name: value for name, value in record.items() if name != "hash"})


def _interpret(records: list[dict[str, Any]]) -> Ledger:
    if records[0]["kind"] != "plan":
        raise LedgerError("the first line must be the plan")
    header = records[0]["body"]
    the_plan = _checked_header(header)
    recorded: list[RecordedEvent] = []
    evaluations: list[Evaluation] = []
    weights, used = None, 0
    for index, record in enumerate(records[1:], start=1):
        kind, body = record["kind"], record["body"]
        if kind == "plan":
            raise LedgerError(f"line {index}: a second plan")
        if kind == "evaluation":
            paid = recorded[-1].event if weights is not None and records[index - 1]["kind"] == "event" else None
            evaluations.append(_checked_evaluation(body, index, paid))
        elif kind == "event":
            if weights is not None and body["slot"] is not None:
                raise LedgerError(f"line {index}: follows the release of the weights, after which no slot can be taken")
            recorded.append(_checked_event(body, index, the_plan, used))
            used += body["slot"] is not None
        elif weights is not None:
            raise LedgerError(f"line {index}: follows the release of the weights and releases others")
        else:
            weights = _checked_weights(body, index)
    return Ledger(
        run=header["run"],
        plan=the_plan,
        randomness=header["randomness"],
        declared=header["declared"],
        events=tuple(recorded),
        weights=weights,
        evaluations=tuple(evaluations),
        head=records[-1]["hash"],
    )


def _checked_header(header: Mapping[str, Any]) -> Plan:
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
        return plan.from_json(header["plan"])
    except Exception as error:
        raise LedgerError(f"the plan in the first line is not valid: {error}") from error


def _checked_weights(body: Mapping[str, Any], index: int) -> str:
    if body["what"] != "final-weights" or not _is_hex(body["weights"], 64):
        raise LedgerError(f"line {index}: a release names final-weights and their SHA-256")
    return str(body["weights"])


def _checked_evaluation(body: Mapping[str, Any], index: int, paid: Event | None) -> Evaluation:
    """Counts follow, immediately, the event that pays for them: record, then release."""
    if not isinstance(paid, events.GaussianRelease) or paid.purpose != EVALUATION:
        raise LedgerError(f"line {index}: an evaluation must directly follow the event that pays for it")
    right, wrong = body["right"], body["wrong"]
    if type(right) is not int or type(wrong) is not int or max(abs(right), abs(wrong)) > MOST_COUNTED:
        raise LedgerError(f"line {index}: the counts of an evaluation must be whole numbers")
    return Evaluation(right=right, wrong=wrong, sigma=paid.sigma)


def _checked_event(body: Mapping[str, Any], index: int, the_plan: Plan, expected: int) -> RecordedEvent:
    try:
        event = events.from_json(body["event"])
    except InvalidArgument as error:
        raise LedgerError(f"line {index}: {error}") from None
    slot = body["slot"]
    if slot is not None:
        if slot != expected or isinstance(slot, bool):
            raise LedgerError(f"line {index}: takes slot {slot!r:.40}, but the next free slot is {expected}")
        if slot >= len(the_plan.slots):
            raise LedgerError(f"line {index}: the plan has only {len(the_plan.slots)} slots")
        if not _same_event(event, the_plan.slots[slot].event):
            raise LedgerError(f"line {index}: the event differs from what the plan says for slot {slot}")
    return RecordedEvent(slot=slot, event=event)


def _same_event(found: Event, planned: Event) -> bool:
    """Equal, except that σ may differ by the last bits of another platform's exp."""
    first, second = events.to_json(found), events.to_json(planned)
    sigma, planned_sigma = first.pop("sigma", 0.0), second.pop("sigma", 0.0)
    return first == second and abs(sigma - planned_sigma) <= SIGMA_TOLERANCE * planned_sigma


def _is_hex(value: Any, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and set(value) <= set("0123456789abcdef")


class LedgerWriter:
    """Appends to a ledger on disk. When a method returns, the line is durable."""

    def __init__(self, path: Path, *, run: str, index: int, head: str, used_slots: int, the_plan: Plan) -> None:
        self.path = path
        self.run = run
        self.used_slots = used_slots
        self._plan = the_plan
        self._index = index
        self._head = head
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  closed by close()

    @classmethod
    def create(
        cls, path: Path, *, the_plan: Plan, randomness: Randomness, declared: Mapping[str, str]
    ) -> "LedgerWriter":
        with open(path, "xb"):
            pass
        sync_directory(path.parent)
        run = secrets.token_hex(16)
        writer = cls(path, run=run, index=0, head=START, used_slots=0, the_plan=the_plan)
        writer._append(
            "plan",
            {
                "format": FORMAT,
                "run": run,
                "plan": the_plan.to_json(),
                "randomness": randomness,
                "declared": dict(declared),
            },
        )
        return writer

    @classmethod
    def reopen(cls, path: Path) -> "LedgerWriter":
        """Continue a ledger. A torn last line is replaced by the record of the slot it may have been: it is used up."""
        data = path.read_bytes()
        whole, torn = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
        ledger = parse_whole_lines(data)
        if torn:
            with open(path, "r+b") as file:
                file.truncate(len(whole))
                os.fsync(file.fileno())
        writer = cls(
            path,
            run=ledger.run,
            index=whole.count(b"\n"),
            head=ledger.head,
            used_slots=ledger.used_slots,
            the_plan=ledger.plan,
        )
        if torn and not ledger.released and ledger.used_slots < len(ledger.plan.slots):
            writer.take_slot()
        return writer

    def take_slot(self) -> plan.Slot:
        """Record the next slot as used, and return it."""
        slot = self._plan.slots[self.used_slots]
        self._append("event", {"slot": slot.index, "event": events.to_json(slot.event)})
        self.used_slots += 1
        return slot

    def append_event(self, event: Event) -> None:
        """Record a mechanism that is not one of the plan's slots: it is paid for on top of the plan."""
        self._append("event", {"slot": None, "event": events.to_json(event)})

    def append_release(self, weights: str) -> None:
        self._append("release", {"what": "final-weights", "weights": weights})

    def append_evaluation(self, right: int, wrong: int) -> None:
        """The noisy counts; the event that pays for them was appended just before."""
        self._append("evaluation", {"right": right, "wrong": wrong})

    def _append(self, kind: str, body: Mapping[str, Any]) -> None:
        content = {"index": self._index, "previous": self._head, "kind": kind, "body": body}
        record = {**content, "hash": _hash(content)}
        line = canonical.dumps(record).encode() + b"\n"
        written = self._file.write(line)
        if written != len(line):
            raise LedgerError(f"{self.path}: only part of a record could be written; is the disk full?")
        os.fsync(self._file.fileno())
        self._index += 1
        self._head = str(record["hash"])

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
