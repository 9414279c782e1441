"""Sums of independent lattice values by FFT, precise far into both tails; and sums of a few large values directly.

A plain FFT leaves the same rounding error everywhere, more than the masses far out. Passes under exponential tilts put
the centre, the right and the left end of the window in turn where the transform is precise; each position is then read
from the pass with the smallest bound on its error.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import fft

from apportion.accounting.loss_distribution.fourier import EPS, power, rounding
from apportion.accounting.loss_distribution.slopes import Array

_TILTS = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0])
# The transform reaches this much farther than the window, so that tilted sums do not fold back into it.
_REACH = 0.8
_SHIFTS = np.geomspace(0.5, 40.0, 14)


@dataclass(frozen=True, slots=True)
class Chernoff:
    """At most e^−log_tail of a sum lies above `high` (under P or Q) or below `low` (under Q); the tilts that show it."""

    low: float
    high: float
    down: float
    up: float

    @staticmethod
    def of(x: Array, weights: Array, fewest: int, most: int, log_tail: float) -> "Chernoff":
        """For every sum of `fewest` to `most` values: the bound's exponent is linear in their number."""
        scale = math.sqrt(2 * log_tail / (most * float(weights @ (x * x))))
        largest = 500 / max(x[-1], -x[0])
        up = np.minimum(np.append(_TILTS * scale, np.array([15.0, 25.0, 40.0]) / x[-1]), largest)
        down = np.minimum(_TILTS * scale, largest)
        rising, falling = np.exp(np.outer(up, x)), np.exp(-np.outer(down, x))
        under_q, under_p = np.log(rising @ weights), np.log(rising @ (weights * (1 + x)))
        others = np.maximum((fewest - 1) * under_q, (most - 1) * under_q)
        highs = (np.maximum(under_p, under_q) + others + log_tail) / up
        below = np.log(falling @ weights)
        lows = -(np.maximum(fewest * below, most * below) + log_tail) / down
        best_up, best_down = int(np.argmin(highs)), int(np.argmax(lows))
        return Chernoff(float(lows[best_down]), float(highs[best_up]), float(down[best_down]), float(up[best_up]))


class LatticeSums:
    """Sums of up to `count` independent values d·lattice[j] with the given weights, within a window."""

    def __init__(self, lattice: Array, weights: Array, d: float, window: Chernoff, count: int) -> None:
        self.lattice, self.weights, self.d = lattice, weights, d
        low, high = window.low + _REACH * min(window.low, 0.0), window.high + _REACH * max(window.high, 0.0)
        self.first = max(math.floor(low / d), count * int(lattice[0]))
        last = min(math.ceil(high / d), count * int(lattice[-1]))
        self.length = fft.next_fast_len(max(last - self.first, int(lattice[-1] - lattice[0])) + 1, real=True)
        self.window = window
        self._count = count
        self._prepared: list[_Tilted] = []

    def of(self, count: int, upper: bool) -> tuple[Array, Array]:
        """(positions, masses under Q) inside the window, each mass from above or from below."""
        if not self._prepared:
            tilts = (0.0, 0.75 * self.window.up, -0.75 * self.window.down)
            self._prepared = [self._tilted(tilt) for tilt in tilts]
        low, high = self._inside()
        best, error = np.zeros(high - low), np.full(high - low, np.inf)
        for tilted in self._prepared:
            masses, off, folded = self._pass(tilted, count)
            unit = np.exp(np.minimum(count * tilted.log_total + tilted.falling[low:high], 300.0))
            allowed = (off + folded) * unit
            better = allowed < error
            best = np.where(better, (masses[low:high] + (off if upper else -off - folded)) * unit, best)
            error = np.where(better, allowed, error)
        # Folding only adds mass, so an upper bound need not allow for it.
        return self.d * np.arange(self.first + low, self.first + high), np.maximum(best, 0.0)

    def _inside(self) -> tuple[int, int]:
        """Where the window begins and ends among the positions."""
        low = math.ceil(self.window.low / self.d) - self.first
        high = math.floor(self.window.high / self.d) - self.first + 1
        return min(max(low, 0), self.length), min(max(high, 0), self.length)

    def _tilted(self, tilt: float) -> "_Tilted":
        x = self.d * self.lattice
        tilted = self.weights * np.exp(tilt * x)
        total = float(tilted.sum())
        tilted = tilted / total
        placed = np.zeros(self.length)
        placed[self.lattice % self.length] = tilted
        deviation = math.sqrt(self._count * float(tilted @ (x - float(tilted @ x)) ** 2))
        shifts = np.minimum(_SHIFTS / max(deviation, self.d / 100), 500 / np.max(np.abs(x)))
        return _Tilted(
            log_total=math.log(total),
            falling=-tilt * self.d * np.arange(self.first, self.first + self.length),
            characteristic=fft.rfft(placed),
            shifts=shifts,
            log_rising=np.log(np.exp(np.outer(shifts, x)) @ tilted),
            log_falling=np.log(np.exp(-np.outer(shifts, x)) @ tilted),
        )

    def _pass(self, tilted: "_Tilted", count: int) -> tuple[Array, float, float]:
        """(tilted masses, rounding error of each, mass that folds into the window)."""
        error = rounding(self.length) + 4 * EPS
        rest = (np.abs(tilted.characteristic) + error) ** (count - 1)
        product = power(tilted.characteristic, count)
        masses = np.roll(fft.irfft(product, self.length), -(self.first % self.length))
        off = 2 / self.length * float(count * error * rest.sum() + rounding(self.length) * np.abs(product).sum())
        return masses, off, self._outside(tilted, count)

    def _outside(self, tilted: "_Tilted", count: int) -> float:
        """Mass of the tilted sum outside the transform's reach (Chernoff); none where the sum cannot go."""
        end, outside = self.first + self.length, 0.0
        if end <= count * self.lattice[-1]:
            above = count * tilted.log_rising - tilted.shifts * self.d * end
            outside += math.exp(min(float(np.min(above)), 0.0))
        if self.first > count * self.lattice[0]:
            below = count * tilted.log_falling + tilted.shifts * self.d * (self.first - 1)
            outside += math.exp(min(float(np.min(below)), 0.0))
        return outside


@dataclass(frozen=True, slots=True)
class _Tilted:
    """One value under a tilt: what sums of any number of them share."""

    log_total: float
    falling: Array
    characteristic: Array
    shifts: Array
    log_rising: Array
    log_falling: Array


def pairwise(x: Array, weights: Array, more_x: Array, more_weights: Array) -> tuple[Array, Array]:
    """All sums of one of each, with their weights."""
    return np.add.outer(x, more_x).ravel(), np.multiply.outer(weights, more_weights).ravel()


def gathered(x: Array, weights: Array, nodes: Array, upper: bool) -> tuple[Array, Array]:
    """The same law on few points: from above on the nodes, keeping means; from below at the mean of each cell.

    Guarantees: convex order, as everywhere here: moving to both neighbours spreads, averaging contracts.
    """
    cell = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(nodes) - 2)
    if upper:
        share = np.clip((x - nodes[cell]) / (nodes[cell + 1] - nodes[cell]), 0.0, 1.0)
        right = np.bincount(cell + 1, weights * share, len(nodes))
        return nodes, right + np.bincount(cell, weights * (1 - share), len(nodes))
    mass = np.bincount(cell, weights, len(nodes))
    moment = np.bincount(cell, weights * x, len(nodes))
    filled = mass > 0
    return moment[filled] / mass[filled], mass[filled]
