"""Sizes beyond which a stranger's claims are refused unread, so that verification ends in bounded time and memory.

They leave room for any run that can have happened: the largest language models took 10⁷ steps. `deadline` is the last
resort against plans that are within the limits and still take too long to price.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from apportion import canonical
from apportion.errors import BundleError

MOST_SLOTS = 100_000
MOST_EXAMPLES = 10**15
MOST_BATCHES = 10**9
LEAST_RATE = 1e-9
MOST_REPEATS = 10**12
MOST_DISTINCT_PARTS = 1_000
RING_EVERY = 0.02  # seconds


class TooSlow(BundleError):
    """Verification was stopped at its time limit."""


def refuse_absurd(ledger: bytes) -> None:
    """Look at the sizes in a ledger before a plan is built from them. Shapes are the ledger's own business."""
    for line in ledger.split(b"\n"):
        record = canonical.loads(line) if line else None
        body = record.get("body") if isinstance(record, dict) else None
        if isinstance(body, dict):
            _refuse_plan(body.get("plan"))
            _refuse_event(body.get("event"))


def _refuse_plan(plan: Any) -> None:
    if not isinstance(plan, dict):
        return
    slots = _whole(plan.get("epochs")) + _whole(plan.get("spare_epochs"))
    if slots > MOST_SLOTS:
        raise BundleError(f"the plan has more than {MOST_SLOTS:,} epochs: too many to be checked")
    if _whole(plan.get("examples")) > MOST_EXAMPLES:
        raise BundleError(f"the plan declares more than {MOST_EXAMPLES:.0e} examples")
    _refuse_size(plan.get("batching"))
    candidates = plan.get("candidates")
    for candidate in candidates if isinstance(candidates, list) else ():
        if isinstance(candidate, dict):
            _refuse_plan(candidate.get("trial"))
            _refuse_plan(candidate.get("retraining"))


def _refuse_event(event: Any) -> None:
    """Every number in an event tree that multiplies work; nesting is bounded by the parser."""
    if isinstance(event, list):
        if len(event) > MOST_SLOTS:
            raise BundleError(f"an event has more than {MOST_SLOTS:,} parts")
        for part in event:
            _refuse_event(part)
    elif isinstance(event, dict):
        _refuse_size(event)
        if _whole(event.get("count")) > MOST_REPEATS:
            raise BundleError(f"an event is repeated more than {MOST_REPEATS:.0e} times")
        for name in ("parts", "options"):
            listed = event.get(name)
            if isinstance(listed, list) and len(listed) > MOST_DISTINCT_PARTS:
                raise BundleError(f"an event has more than {MOST_DISTINCT_PARTS:,} {name}")
        for value in event.values():
            _refuse_event(value)


def _refuse_size(mechanism: Any) -> None:
    if not isinstance(mechanism, dict):
        return
    sizes = [*_by_epoch(mechanism.get("batches")), mechanism.get("steps")]
    if max(map(_whole, sizes)) > MOST_BATCHES:
        raise BundleError(f"more than {MOST_BATCHES:.0e} batches or steps in an epoch")
    if any(isinstance(rate, float) and 0 < rate < LEAST_RATE for rate in _by_epoch(mechanism.get("rate"))):
        raise BundleError(f"a sampling rate below {LEAST_RATE:g} means more steps than can be checked")


def _by_epoch(size: Any) -> list[Any]:
    """A size, or all those of a size that changes with the epoch."""
    return [entry.get("value") for entry in size if isinstance(entry, dict)] if isinstance(size, list) else [size]


def _whole(value: Any) -> int:
    return value if type(value) is int else 0


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Raise `TooSlow` after so many seconds. For the main thread of a program: it uses the alarm signal.

    What is raised inside somebody's finaliser or callback of the garbage collector is lost, with a complaint on stderr.
    So the alarm rings on until it finds code of ours running, and for a second at most.
    """
    rings = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal rings
        rings += 1
        if rings * RING_EVERY < 1 and not _is_ours(frame):
            return
        rings = 0
        signal.setitimer(signal.ITIMER_REAL, 1, RING_EVERY)  # time to leave, and again if this one was lost
        raise TooSlow(
            f"not finished after {seconds} s and stopped; if you trust the sizes in it, allow more with --seconds"
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, RING_EVERY)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_ours(frame: FrameType | None) -> bool:
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == __name__.partition(".")[0]
