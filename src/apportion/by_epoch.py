"""A public value that changes with the epoch: which one holds depends on the epoch's index and on nothing else."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from apportion import _checks
from apportion.errors import InvalidArgument

T = TypeVar("T")

MOST_VALUES = 10_000


@dataclass(frozen=True, slots=True, init=False)
class ByEpoch(Generic[T]):
    """Each value holds from its epoch (counted from 0) until the next one takes over.

    >>> clip = ByEpoch({0: 1.0, 10: 0.5})
    >>> clip(0), clip(9), clip(10), clip(500)
    (1.0, 1.0, 0.5, 0.5)
    >>> ByEpoch.of(lambda epoch: 100 // (1 + epoch // 2), epochs=4)
    ByEpoch({0: 100, 2: 50})
    """

    starts: tuple[int, ...]
    values: tuple[T, ...]

    def __init__(self, values: Mapping[int, T]) -> None:
        if not isinstance(values, Mapping) or 0 not in values:
            raise InvalidArgument(
                f"ByEpoch must map first epochs to values, beginning with epoch 0; got {values!r:.80}"
            )
        if len(values) > MOST_VALUES:
            raise InvalidArgument(f"ByEpoch holds at most {MOST_VALUES:,} values, got {len(values):,}")
        ordered = sorted((_checks.count("epoch", epoch, least=0), value) for epoch, value in values.items())
        object.__setattr__(self, "starts", tuple(epoch for epoch, _ in ordered))
        object.__setattr__(self, "values", tuple(value for _, value in ordered))

    @staticmethod
    def of(function: Callable[[int], T], epochs: int) -> "ByEpoch[T]":
        """The values of a function of the epoch, worked out now; the last one holds for whatever comes after `epochs`."""
        every = [function(epoch) for epoch in range(_checks.count("epochs", epochs))]
        return ByEpoch({i: value for i, value in enumerate(every) if i == 0 or value != every[i - 1]})

    def __call__(self, epoch: int) -> T:
        return self.values[bisect_right(self.starts, _checks.count("epoch", epoch, least=0)) - 1]

    def checked(self, check: Callable[[str, Any], T], name: str) -> "ByEpoch[T]":
        return ByEpoch({start: check(name, value) for start, value in zip(self.starts, self.values, strict=True)})

    def __repr__(self) -> str:
        return f"ByEpoch({dict(zip(self.starts, self.values, strict=True))})"


def checked(check: Callable[[str, Any], T], name: str, value: Any) -> T | ByEpoch[T]:
    """A value, or every value of a `ByEpoch`, as `check` returns it."""
    return value.checked(check, name) if isinstance(value, ByEpoch) else check(name, value)


def at(value: T | ByEpoch[T], epoch: int) -> T:
    return value(epoch) if isinstance(value, ByEpoch) else value


def fixed(name: str, value: T | ByEpoch[T]) -> T:
    """The value, where there can be only one."""
    if isinstance(value, ByEpoch):
        raise InvalidArgument(f"{name} differs from epoch to epoch; ask for one epoch's, with at(epoch)")
    return value


def to_json(value: Any) -> Any:
    if not isinstance(value, ByEpoch):
        return value
    return [{"from": start, "value": one} for start, one in zip(value.starts, value.values, strict=True)]


def from_json(data: Any) -> Any:
    """The inverse of `to_json`; epochs must come in order, each once."""
    if not isinstance(data, list):
        return data
    if not all(isinstance(entry, Mapping) and set(entry) == {"from", "value"} for entry in data):
        raise InvalidArgument(f"values by epoch must each have 'from' and 'value', got {data!r:.80}")
    found = ByEpoch({_checks.count("from", entry["from"], least=0): entry["value"] for entry in data})
    if to_json(found) != data:
        raise InvalidArgument(f"values by epoch must be in order, got {data!r:.80}")
    return found


def parse(text: str, number: Callable[[str], T], name: str) -> T | ByEpoch[T]:
    """`100`, or by epoch `0:100,20:50`, as typed on a command line."""
    try:
        if ":" not in text:
            return number(text)
        pairs = [entry.split(":") for entry in text.split(",")]
        values = {int(start): number(value) for start, value in pairs}
    except ValueError:
        raise InvalidArgument(f"{name} must be a number, or by epoch like 0:100,20:50; got {text!r:.60}") from None
    if len(values) != len(pairs):
        raise InvalidArgument(f"{name} names an epoch twice: {text!r:.60}")
    return ByEpoch(values)
