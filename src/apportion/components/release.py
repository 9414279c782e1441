"""From a private statistic to a released one: the event on disk first, then noise, in whole numbers throughout.

A statistic is a vector of whole numbers (counts, or sums in fixed point), so that it is computed without rounding
errors, its sensitivity is exact, and statistic + round(noise) = round(statistic + noise): the low bits of floating point
carry nothing.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.errors import DataError, InvalidArgument, RunError
from apportion.randomness import RandomStream
from apportion.recording import LedgerWriter
from apportion.stages import Component

Whole = NDArray[np.int64]
# (how many, standard deviation, stream) → whole numbers distributed as round(N(0, deviation²))
WholeNormals = Callable[[int, float, RandomStream], Whole]

_ROWS = 4096
_CELLS = 1 << 22  # of a piece: what is copied while one is worked on stays small
_MOST_DEVIATION = 2.0**49  # 8.6 of them stay below 2^53


def rounded_normals(count: int, deviation: float, stream: RandomStream) -> Whole:
    return np.rint(deviation * stream.normals(count)).astype(np.int64)


class Releaser:
    """Adds noise to the components of one ledger, each recorded before its noise is drawn.

    `stream` is that of the run (by default a fresh one); `normals` draws noise, on a grid exactly.
    """

    def __init__(
        self, ledger: LedgerWriter, stream: RandomStream | None = None, normals: WholeNormals | None = None
    ) -> None:
        if not isinstance(ledger, LedgerWriter):
            raise RunError(f"a component is released into a ledger: pass an open LedgerWriter, got {ledger!r:.80}")
        self._ledger = ledger
        self._stream = RandomStream() if stream is None else stream
        self._normals = normals or rounded_normals
        if not self._stream.secure and ledger.randomness == "secure":
            raise RunError("this ledger says that its randomness is secure: a seeded stream cannot be used for it")
        if ledger.noise == "grid" and normals is None:
            raise RunError("this plan's noise is on a grid: pass the exact normals of apportion.training.grid")

    def record(self, component: Component, *deviations: float) -> None:
        """After this the component is paid for, so everything that can be refused is refused before.

        `deviations` are those with which `noisy` will be called: with larger ones the noise, in floating point, would be
        coarser than whole numbers, and show the low bits of what it covers.
        """
        if max(deviations) > _MOST_DEVIATION:
            raise InvalidArgument(f"sigma = {component.sigma:g} is too large for this many features")
        self._ledger.take_component(component)

    def noisy(self, values: Whole, deviation: float) -> Whole:
        """`values` plus rounded N(0, deviation²); without noise for a deviation of 0, whose event costs infinitely."""
        if not deviation:
            return values
        return values + self._normals(values.size, deviation, self._stream).reshape(values.shape)


def chunks_of(data: Any, rows: int = _ROWS) -> Iterator[NDArray[np.float64]]:
    """Two-dimensional pieces of an array (a memory map, a tensor), or of an iterable of such pieces; rows flattened."""
    if hasattr(data, "shape") and hasattr(data, "__getitem__"):
        if len(data.shape) < 2:
            raise DataError(f"data must have rows and columns, got shape {tuple(data.shape)}")
        pieces: Any = (data[start : start + rows] for start in range(0, data.shape[0], rows))
    else:
        pieces = iter(data)
    for piece in pieces:
        array = _matrix(piece)
        few = max(64, min(rows, _CELLS // max(1, array.shape[1])))
        for start in range(0, len(array), few):
            yield array[start : start + few].astype(np.float64)


def _matrix(piece: ArrayLike) -> NDArray[Any]:
    try:
        array = np.asarray(piece)
        if array.ndim >= 2 and array.dtype.kind in "fiub":
            return array.reshape(len(array), -1)
    except (TypeError, ValueError) as error:
        raise DataError(f"data must be numeric arrays of rows: {error}") from error
    raise DataError(f"data must be numeric arrays of rows, got {array.dtype} of shape {array.shape}")
