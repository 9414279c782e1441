"""Epochs and batches as the user's own loop sees them: tokens, each of which is used once."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from apportion.errors import BatchMisused
from apportion.plan import Slot
from apportion.training.records import Part, Units, joined


class Batch:
    """A one-use token for one step. What it holds is private, and cannot be exchanged.

    Looking at `inputs` or `targets` brings the whole batch into memory; a step alone does not.
    """

    __slots__ = ("_kept", "_parts", "_units", "_used")

    def __init__(self, parts: Iterable[Part], units: Units | None = None) -> None:
        self._parts, self._units, self._used = parts, units, False
        self._kept: list[Part] | None = None

    @property
    def inputs(self) -> Tensor:
        return joined(self._all())[0]

    @property
    def targets(self) -> Tensor:
        return joined(self._all())[1]

    def _all(self) -> list[Part]:
        if self._kept is None:
            self._kept = list(self._parts)
        if not self._kept:
            raise BatchMisused("this batch was read from a stream and stepped: its examples are gone")
        return self._kept

    def take(self) -> Iterable[Part]:
        """What a step uses up."""
        self._used = True
        return self._parts if self._kept is None else self._kept

    @property
    def units(self) -> Units | None:
        """Of a batch of persons: whose its records are."""
        return self._units

    @property
    def used(self) -> bool:
        return self._used


class Epoch:
    """One slot of the plan in use: iterate over it once."""

    def __init__(self, slot: Slot, batches: Callable[["Epoch"], Iterator[Batch]]) -> None:
        self._slot = slot
        self._batches = batches
        self._started = False

    @property
    def index(self) -> int:
        return self._slot.index

    @property
    def sigma(self) -> float:
        return self._slot.sigma

    @property
    def charged(self) -> float:
        """What σ amounts to after clipping: with per-layer clipping it may be smaller, see `apportion.PerLayer`."""
        return self._slot.charged

    def __iter__(self) -> Iterator[Batch]:
        if self._started:
            raise BatchMisused(f"epoch {self.index} was iterated already: an epoch runs once")
        self._started = True
        return self._batches(self)
