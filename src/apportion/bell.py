"""Normal random numbers from random words: the area under the bell curve, cut into slices.

Rectangles are laid under the density φ of the standard normal, centred on 0, one on top of another, all of the same area and
as wide as fits. A random word chooses one of the 4096 by its last 12 bits and, as a signed number, a place in it: a product
is all it takes. What they leave uncovered, 3/4099, is left to rare values, for which a point there is drawn by rejection:
from the corners beside the rectangles, the cap above them, the two tails. Which values are rare is drawn beforehand, as
distances from one to the next, so that nobody has to look for them.

The loop over the words is compiled by Numba when noise is first drawn. A verifier draws none, and needs no Numba.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from apportion.errors import RunError

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Fill = Callable[[NDArray[np.uint8]], None]

SLICES = 1 << 12
AREA, RARE = 1 / (SLICES + 3), 3 / (SLICES + 3)  # of a rectangle, and of what they leave
PIECE = 1 << 15  # words at a time: with fewer, calls cost more than the cache saves
FEW, MANY, MANY_FROM = 1 << 10, 1 << 12, 1 << 20  # candidates for rare values at a time, and values from which on
GUIDE = 15  # bits that lead to a box, or to the one before it
_PEAK = 1 / math.sqrt(2 * math.pi)
_HALF = AREA / 2
_LAST_BITS = SLICES - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rare:
    """Rare values that are yet to come, at scale 1, and their places, counted from the first value of all."""

    drawn: int = 0  # values so far
    last: int = -1  # of these places
    places: Places = field(default_factory=lambda: np.empty(0, np.int64))
    values: Floats = field(default_factory=lambda: np.empty(0))


class Bell:
    """Draws normals. Keeps its working memory and some of the rare values, each for use once.

    What belongs together is assigned at once: an interruption anywhere leaves either the state before or the one after.
    """

    def __init__(self) -> None:
        self._words = np.empty(PIECE, np.int64)
        self._scaled: tuple[float, Floats] = math.nan, np.empty(0)  # the last scale, and widths at that scale
        self._ahead = _Rare()

    def add(self, out: NDArray[np.floating], scale: float, fill: Fill, factor: float = 1.0) -> None:
        """Add independent N(0, scale²) to `out`, float32 or float64; `fill` overwrites bytes with random ones.

        All arithmetic is float64, and a noise of ordinary size takes all the values that float64 has there. From a coarser
        set it could be recognised: whoever sees a noisy sum would subtract the two sums in question, and only the true one
        leaves something in the set. What is noisy is rounded to the type of `out` and then multiplied by `factor`, there.
        """
        if scale != self._scaled[0]:
            self._scaled = scale, widths() * (scale * 2.0**-63)
        at, rare = self._rare_among(len(out), fill)
        with_rare, rounded_factor = out[at] + scale * rare, out.dtype.type(factor)
        add, scaled_widths = compiled(), self._scaled[1]
        for start in range(0, len(out), PIECE):
            piece = out[start : start + PIECE]
            words = self._words[: len(piece)]
            fill(words.view(np.uint8))
            add(piece, words, scaled_widths, rounded_factor)
        out[at] = with_rare.astype(out.dtype) * rounded_factor

    def _rare_among(self, count: int, fill: Fill) -> tuple[Places, Floats]:
        """Which of the next `count` values are rare, and what they are when the scale is 1."""
        ahead = self._ahead
        drawn, end, last, places, values = ahead.drawn, ahead.drawn + count, ahead.last, ahead.places, ahead.values
        while last < end:
            words = np.empty((4, FEW if count < MANY_FROM else MANY), np.uint64)
            fill(words.view(np.uint8).reshape(-1))
            points = outside(words[:3])
            more = last + np.cumsum(distances(words[3, : len(points)]))
            places, values, last = np.append(places, more), np.append(values, points), int(more[-1])
        found = int(np.searchsorted(places, end))
        self._ahead = _Rare(drawn=end, last=last, places=places[found:], values=values[found:])
        return places[:found] - drawn, values[:found]


def add_words(out: NDArray[np.floating], words: Places, scaled_widths: Floats, factor: np.floating) -> None:
    """What the words choose, a slice and a place in it, added to `out` and rounded to its type, there times `factor`."""
    for i in range(len(out)):
        word = words[i]
        out[i] += word * scaled_widths[word & _LAST_BITS]
        out[i] *= factor


@cache
def compiled() -> Callable[[NDArray[np.floating], Places, Floats, np.floating], None]:
    """`add_words`, compiled for each type of `out` when it is first called with it."""
    try:
        from numba import njit
    except ImportError as error:
        raise RunError(f"drawing noise needs Numba: pip install 'apportion[train]' ({error})") from error
    made: Callable[[NDArray[np.floating], Places, Floats, np.floating], None] = njit(add_words)
    return made


def distances(words: NDArray[np.uint64]) -> Places:
    """From one rare value to the next: k with probability RARE·(1 − RARE)^(k − 1), by one word each.

    Small uniforms, of which the large distances come, have all their 53 bits.
    """
    uniforms = (words.astype(np.float64) + 0.5) * 2.0**-64
    return 1 + np.floor(np.log(uniforms) / math.log1p(-RARE)).astype(np.int64)


def outside(words: NDArray[np.uint64]) -> Floats:
    """Points under the curve and in no rectangle, from three words each: by rejection, hence fewer than asked.

    A corner lies in the box between its rectangle, the next narrower one and their heights; the cap in a box; a tail under
    φ(t)e^(−t(x − t)), t being the largest width, of which the part e^(−(x − t)²/2) is under the curve.
    """
    lefts, breadths, bottoms, heights, ends = _boxes()
    across, up = unit_interval(words[1]), unit_interval(words[2])
    chosen = chosen_boxes(words[0], unit_interval(words[0]) * ends[-1])
    place = lefts.take(chosen) + across * breadths.take(chosen)
    under = bottoms.take(chosen) + up * heights.take(chosen) < density(place)
    tail = np.flatnonzero(chosen == len(ends) - 1)
    beyond = -np.log(across[tail]) / lefts[-1]
    place[tail] = lefts[-1] + beyond
    under[tail] = up[tail] < np.exp(-beyond * beyond / 2)
    signs = 1.0 - 2.0 * (words[0, under] & np.uint64(1))  # a bit that unit_interval leaves out
    points: Floats = signs * place[under]
    return points


def chosen_boxes(words: NDArray[np.uint64], areas: Floats) -> Places:
    """The first box up to whose end all boxes have at least that area; `areas` are what the words say of all."""
    chosen: Places = _guide().take(words >> np.uint64(64 - GUIDE))
    chosen += _boxes()[-1].take(chosen) < areas
    return chosen


def widths() -> Floats:
    """Half the width of every rectangle, from the bottom up."""
    return _rectangles()[0]


@cache
def _rectangles() -> tuple[Floats, Floats]:
    """Half the width of every rectangle, and the height of its top, from the bottom up.

    Each has its upper corners on the curve: x(φ(x) − y) is half the area, y being the height at which it stands. This has
    two solutions, or none when the cap is reached; the wider one is found by Newton's method from above.
    """
    found, tops = [], []
    height, lost = 0.0, 0.0  # of all so far, and what rounding took from it
    width = _next_width(6.0, height)
    while width is not None:
        found.append(width)
        parts = (height, lost, _HALF / width)
        height = math.fsum(parts)
        lost = math.fsum((*parts, -height))
        tops.append(height)
        width = _next_width(width, height)
    return np.array(found), np.array(tops)


def _next_width(below: float, height: float) -> float | None:
    """Half the width of the rectangle that stands at this height, on one of half the width `below`."""
    if height + _HALF / below >= _PEAK:
        return None
    width = math.sqrt(-2 * math.log((height + _HALF / below) / _PEAK))
    for _ in range(60):
        curve = _PEAK * math.exp(-width * width / 2)
        slope = curve - height - width * width * curve
        if slope >= 0:
            return None
        step = (width * (curve - height) - _HALF) / slope
        if step >= width:
            return None
        width -= step
        if abs(step) < 1e-15 * width:
            break
    return width if width < below else None


@cache
def _boxes() -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Of every box around what is outside: left, breadth, bottom, height, and all areas up to its own. Last is the tail."""
    x, y = _rectangles()
    lefts, rights = np.concatenate([x[1:], [0.0, x[0]]]), np.concatenate([x[:-1], [x[-1], x[0]]])
    bottoms, tops = np.concatenate([y[:-1], [y[-1], 0.0]]), np.concatenate([y[1:], [_PEAK, y[0]]])
    areas = (rights - lefts) * (tops - bottoms)
    areas[-1] = y[0] / x[0]
    return lefts, rights - lefts, bottoms, tops - bottoms, np.cumsum(areas)


@cache
def _guide() -> Places:
    """The first box that ends in or after every 2^GUIDEth of all areas; no two end in the same, so the next is the last."""
    ends = _boxes()[-1]
    found: Places = np.searchsorted(ends, np.arange(1 << GUIDE) * (ends[-1] / (1 << GUIDE)))
    return found


def density(x: Floats) -> Floats:
    """φ(x)."""
    return _PEAK * np.exp(-x * x / 2)


def unit_interval(words: NDArray[np.uint64]) -> Floats:
    """Uniforms in (0, 1], from the upper 53 bits of each word, at the middles of the cells (the last rounds up to 1)."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
