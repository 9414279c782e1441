"""How an epoch's examples become batches, and the event that a pass with noisy sums then is.

Everything a step may depend on (number of steps, nominal batch size) comes from the plan's declared `examples`; which
records are in a batch is secret and drawn from a secure stream, afresh every epoch.

The number of batches, or the rate, may differ from epoch to epoch (`ByEpoch`): `at(epoch)` is the batching of one epoch,
and only that can be drawn from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from apportion import _checks, by_epoch
from apportion.by_epoch import ByEpoch
from apportion.errors import DataError, InvalidArgument
from apportion.events import Adjacency, PartitionEpoch, PoissonEpoch, ShuffleEpoch
from apportion.randomness import RandomStream

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """A random permutation, cut into `batches` batches whose sizes differ by at most one.

    The number of records must be public: a neighbour has one record zeroed, not removed.
    """

    kind: ClassVar[str] = "shuffle"
    adjacency: ClassVar[Adjacency] = "zero-out"
    batches: int | ByEpoch[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", by_epoch.checked(_checks.count, "batches", self.batches))

    def at(self, epoch: int) -> "Shuffle":
        return Shuffle(batches=self.batches(epoch)) if isinstance(self.batches, ByEpoch) else self

    @property
    def steps(self) -> int:
        return by_epoch.fixed("batches", self.batches)

    def nominal_batch_size(self, examples: int) -> float:
        return examples / self.steps

    def check_length(self, length: int, examples: int) -> None:
        if length != examples:
            raise DataError(
                f"Shuffle needs exactly the declared number of records: examples = {examples}, but the data holds {length}."
                " Declare the true number (it becomes public), or use Partition or Poisson, which take any length"
            )

    def draw(self, length: int, stream: RandomStream) -> Iterator[Indices]:
        yield from np.array_split(stream.permutation(length), self.steps)

    def event(self, sigma: float) -> ShuffleEpoch:
        return ShuffleEpoch(sigma=sigma, batches=self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Each record falls independently into one of `batches` bins: one pass over the data, like reshuffling.

    A record's bin does not depend on the presence of others, so adding or removing one is covered, with amplification.
    """

    kind: ClassVar[str] = "partition"
    adjacency: ClassVar[Adjacency] = "add-remove"
    batches: int | ByEpoch[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", by_epoch.checked(_checks.count, "batches", self.batches))

    def at(self, epoch: int) -> "Partition":
        return Partition(batches=self.batches(epoch)) if isinstance(self.batches, ByEpoch) else self

    @property
    def steps(self) -> int:
        return by_epoch.fixed("batches", self.batches)

    def nominal_batch_size(self, examples: int) -> float:
        return examples / self.steps

    def check_length(self, length: int, examples: int) -> None:
        """Any length will do: constants come from the declared number, never from this one."""

    def draw(self, length: int, stream: RandomStream) -> Iterator[Indices]:
        # In as few bytes as will do: sorted quickly, and data larger than memory has many records.
        bins = stream.below(self.steps, length).astype(np.min_scalar_type(self.steps - 1))
        order = np.argsort(bins, kind="stable")
        ends = np.cumsum(np.bincount(bins, minlength=self.steps))
        for batch in np.split(order, ends[:-1]):
            yield _in_random_order(batch, stream)

    def event(self, sigma: float) -> PartitionEpoch:
        return PartitionEpoch(sigma=sigma, batches=self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Each record enters each batch independently with probability `rate`; an epoch is round(1/rate) such batches."""

    kind: ClassVar[str] = "poisson"
    adjacency: ClassVar[Adjacency] = "add-remove"
    rate: float | ByEpoch[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", by_epoch.checked(_checks.rate, "rate", self.rate))

    def at(self, epoch: int) -> "Poisson":
        return Poisson(rate=self.rate(epoch)) if isinstance(self.rate, ByEpoch) else self

    @property
    def steps(self) -> int:
        return max(1, round(1 / by_epoch.fixed("rate", self.rate)))

    def nominal_batch_size(self, examples: int) -> float:
        return examples * by_epoch.fixed("rate", self.rate)

    def check_length(self, length: int, examples: int) -> None:
        """Any length will do: constants come from the declared number, never from this one."""

    def draw(self, length: int, stream: RandomStream) -> Iterator[Indices]:
        rate = by_epoch.fixed("rate", self.rate)
        for _ in range(self.steps):
            yield _in_random_order(np.flatnonzero(stream.coins(rate, length)), stream)

    def event(self, sigma: float) -> PoissonEpoch:
        return PoissonEpoch(sigma=sigma, rate=by_epoch.fixed("rate", self.rate), steps=self.steps)


def _in_random_order(batch: Indices, stream: RandomStream) -> Indices:
    """Sums are rounded on the way. In what order is not for whoever made the data to choose."""
    return batch[stream.permutation(len(batch))]


Batching = Shuffle | Partition | Poisson
KINDS: Mapping[str, type[Shuffle] | type[Partition] | type[Poisson]] = {
    cls.kind: cls for cls in (Shuffle, Partition, Poisson)
}


def to_json(batching: Batching) -> dict[str, Any]:
    name, size = ("rate", batching.rate) if isinstance(batching, Poisson) else ("batches", batching.batches)
    return {"kind": batching.kind, name: by_epoch.to_json(size)}


def from_json(data: Any) -> Batching:
    """The inverse of `to_json`; unknown kinds and fields are refused."""
    if not isinstance(data, Mapping) or data.get("kind") not in KINDS:
        raise InvalidArgument(f"unknown batching {data!r:.80}; known kinds: {', '.join(KINDS)}")
    cls = KINDS[data["kind"]]
    expected = {"kind", "rate"} if cls is Poisson else {"kind", "batches"}
    if set(data) != expected:
        raise InvalidArgument(f"{data['kind']} must have the fields {sorted(expected)}, got {sorted(data)!r:.200}")
    return cls(**{name: by_epoch.from_json(value) for name, value in data.items() if name != "kind"})
