"""The lines of a ledger: each has its index, its kind, the hash of the line before it and the hash of itself."""

from collections.abc import Mapping
from typing import Any

from apportion import canonical
from apportion.errors import InvalidArgument, LedgerError

START = "0" * 64

_BODY_FIELDS = {
    "plan": {"format", "run", "plan", "randomness", "declared"},
    "event": {"slot", "event"},
    "score": {"slot", "score"},
    "choice": {"candidate", "right", "wrong"},
    "release": {"what", "weights"},
    "evaluation": {"right", "wrong"},
}
_OPTIONAL_FIELDS = {"event": {"component"}, "evaluation": {"tables"}}


def parse_records(data: bytes) -> list[dict[str, Any]]:
    """Every line, of a chain that is complete and unbroken; whether the lines agree with the plan is not looked at."""
    if not data.endswith(b"\n"):
        raise LedgerError("the last line is torn: it does not end with a newline" if data else "the ledger is empty")
    records = []
    previous = START
    for index, line in enumerate(data[:-1].split(b"\n")):
        record = _parse_record(line, index, previous)
        records.append(record)
        previous = record["hash"]
    return records


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


def is_hex(value: Any, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and set(value) <= set("0123456789abcdef")
