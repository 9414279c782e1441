"""V = exp(μt − μ²/2), t ~ N(0, 1), on a grid of values: a lattice 1 + d·j up to a cut, and growing cells beyond it.

All positions are kept as x = v − 1, so that a V close to 1 loses no digits.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from apportion.accounting.loss_distribution.slopes import LINEAR, Array, Sides, below_tangents, masses, masses_of_hull


@dataclass(frozen=True, slots=True)
class ValueGrid:
    """`lattice` in units of d, with cells that grow far from 1; `tail` as positions beyond it."""

    d: float
    lattice: Array
    tail: Array
    mu: float

    @staticmethod
    def of(mu: float, d: float, bottom: float, cut: float, top: float, cell: float) -> "ValueGrid":
        """From x = `bottom` to `top`: a lattice up to `cut`, then cells that are the part `cell` of their value."""
        end = math.ceil(cut / d)
        above, width = [0], 1
        while above[-1] < end:  # cells grow slowly, or lower hulls would lose the nodes beside a jump
            width = max(1, min(int(cell * (1 / d + above[-1])), width + 1 + width // 4)) if len(above) > 64 else 1
            above.append(min(above[-1] + width, end))
        lattice = np.append(np.arange(math.floor(bottom / d), 0), above)
        start = d * float(lattice[-1])
        count = max(math.ceil(math.log((1 + top) / (1 + start)) / math.log1p(cell)), 0)
        tail = np.expm1(math.log1p(start) + math.log1p(cell) * np.arange(1, count + 1))
        return ValueGrid(d, lattice, tail, mu)

    def spread(self) -> tuple[Array, float, float]:
        """(weights, infinite, lost): V moved to its neighbours, keeping its mean.

        Above the top, V goes to the top and to ∞: `infinite` is the mean that goes there. Below the bottom it is left
        out: `lost` is its mass, zero if the bottom is v = 0.
        """
        right, left = self._sides()
        sides = Sides(right, self._calls(right, right), left, self._puts(left, left))
        weights = np.maximum(masses(sides, LINEAR), 0.0)
        lost = float(ndtr(math.log1p(-left[-1]) / self.mu + self.mu / 2)) if left[-1] < 1 else 0.0
        weights[0] = max(weights[0] - lost, 0.0)
        return weights, max(float(sides.calls[-1]), 0.0), lost

    def contract(self) -> Array:
        """Weights under the lines that touch E(V − v)₊ in the middle of each cell."""
        right, left = self._sides()
        calls, puts = below_tangents(right, self._calls), below_tangents(left, self._puts)
        return masses_of_hull(Sides(right, calls, left, puts), LINEAR)

    def _sides(self) -> tuple[Array, Array]:
        centre = -int(self.lattice[0])
        right = np.append(self.d * self.lattice[centre:], self.tail)
        return right, -self.d * self.lattice[centre::-1]

    def _calls(self, touch: Array, at: Array) -> Array:
        """The line touching E(V − v)₊."""
        t = np.log1p(touch) / self.mu + self.mu / 2
        return np.asarray(ndtr(self.mu - t) - (1 + at) * ndtr(-t))

    def _puts(self, touch: Array, at: Array) -> Array:
        """The line touching E(v − V)₊; distances are 1 − v."""
        with np.errstate(divide="ignore"):
            t = np.log1p(-np.minimum(touch, 1.0)) / self.mu + self.mu / 2
        return np.asarray((1 - at) * ndtr(t) - ndtr(t - self.mu))


def value_at(mu: float, t: float) -> float:
    """V − 1 at t, capped where e^x would overflow."""
    return math.expm1(min(mu * t - mu * mu / 2, 600.0))


def quantile(mass: float) -> float:
    """The t > 0 with Q(T > t) = mass."""
    return -float(ndtri(mass))
