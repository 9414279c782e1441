"""Normal random numbers from random words: the area under the bell curve, cut into slices.

Rectangles are laid under the density φ of the standard normal, centred on 0, one on top of another, each of area 2⁻¹² and as
wide as fits. A random word chooses a slice by its last 12 bits and, as a signed number, a place in it. 4093 of the 4096
slices are rectangles, so that a product is all it takes; the other three stand for what the rectangles leave uncovered,
from which a point is drawn by rejection: the corners beside them, the cap above them, the two tails.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Fill = Callable[[NDArray[np.uint8]], None]

SLICES = 1 << 12
PIECE = 1 << 15  # words at a time, so that everything stays in the cache
_PEAK = 1 / math.sqrt(2 * math.pi)
_HALF = 0.5 / SLICES  # of a slice's area


class Bell:
    """Draws normals. Keeps its working memory and some of the rare points off the rectangles, each for use once."""

    def __init__(self) -> None:
        self._bytes = np.empty(8 * PIECE, np.uint8)
        self._slice = np.empty(PIECE, np.int64)
        self._width, self._place = np.empty((2, PIECE))
        self._scale, self._widths = math.nan, np.zeros(SLICES)  # zero where a slice is no rectangle
        self._outside = np.empty(0)

    def add(self, out: Floats, scale: float, fill: Fill) -> None:
        """Add independent N(0, scale²) to `out`; `fill` overwrites bytes with random ones.

        All arithmetic is float64, and a noise of ordinary size takes all the values that float64 has there. From a coarser
        set it could be recognised: whoever sees a noisy sum would subtract the two sums in question, and only the true one
        leaves something in the set.
        """
        if scale != self._scale:
            self._scale, self._widths[: len(widths())] = scale, widths() * (scale * 2.0**-63)
        for start in range(0, len(out), PIECE):
            self._add(out[start : start + PIECE], scale, fill)

    def _add(self, out: Floats, scale: float, fill: Fill) -> None:
        size = len(out)
        fill(self._bytes[: 8 * size])
        words, chosen = self._bytes[: 8 * size].view(np.int64), self._slice[:size]
        width, place = self._width[:size], self._place[:size]
        np.bitwise_and(words, SLICES - 1, out=chosen)
        np.take(self._widths, chosen, out=width, mode="clip")  # "clip" is the fastest, and there is nothing to clip
        np.copyto(place, words)
        np.multiply(place, width, out=place)
        np.add(out, place, out=out)
        outside = np.flatnonzero(chosen >= len(widths()))
        out[outside] += scale * self._drawn_outside(len(outside), fill)

    def _drawn_outside(self, count: int, fill: Fill) -> Floats:
        while len(self._outside) < count:
            words = np.empty((3, 1024), np.uint64)
            fill(words.view(np.uint8).reshape(-1))
            self._outside = np.concatenate([self._outside, outside(words)])
        drawn, self._outside = self._outside[:count], self._outside[count:]
        return drawn


def outside(words: NDArray[np.uint64]) -> Floats:
    """Points under the curve and in no rectangle, from three words each: by rejection, hence fewer than asked.

    A corner lies in the box between its rectangle, the next narrower one and their heights; the cap in a box; a tail under
    φ(t)e^(−t(x − t)), t being the largest width, of which the part e^(−(x − t)²/2) is under the curve.
    """
    lefts, rights, bottoms, tops, areas = _boxes()
    ends = np.cumsum(areas)
    chosen = np.minimum(np.searchsorted(ends, unit_interval(words[0]) * ends[-1]), len(areas) - 1)
    across, up = unit_interval(words[1]), unit_interval(words[2])
    place = lefts[chosen] + across * (rights[chosen] - lefts[chosen])
    height = bottoms[chosen] + up * (tops[chosen] - bottoms[chosen])
    under = height < density(place)
    tail = chosen == len(areas) - 1
    beyond = -np.log(across[tail]) / lefts[-1]
    place[tail] = lefts[-1] + beyond
    under[tail] = up[tail] < np.exp(-beyond * beyond / 2)
    signs = 1.0 - 2.0 * (words[0] & np.uint64(1)).astype(np.float64)  # a bit that unit_interval leaves out
    points: Floats = (signs * place)[under]
    return points


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
    """Left, right, bottom and top of every box around what is outside, and its area: corners, cap, last the tail."""
    x, y = _rectangles()
    lefts, rights = np.concatenate([x[1:], [0.0, x[0]]]), np.concatenate([x[:-1], [x[-1], x[0]]])
    bottoms, tops = np.concatenate([y[:-1], [y[-1], 0.0]]), np.concatenate([y[1:], [_PEAK, y[0]]])
    areas = (rights - lefts) * (tops - bottoms)
    areas[-1] = y[0] / x[0]
    return lefts, rights, bottoms, tops, areas


def density(x: Floats) -> Floats:
    """φ(x)."""
    return _PEAK * np.exp(-x * x / 2)


def unit_interval(words: NDArray[np.uint64]) -> Floats:
    """Uniforms in (0, 1], from the upper 53 bits of each word, at the middles of the cells (the last rounds up to 1)."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
