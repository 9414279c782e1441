"""δ as a function of ε, and back, from the masses of a tilted sum."""

import math

import numpy as np

from apportion.accounting.loss_distribution.slopes import Array

# e^x is formed only for exponents up to this.
_MAX_EXPONENT = 500.0


def log_hockey_constant(order: Array) -> Array:
    """ln of c = max over x ≥ 1 of x^−λ·(x − 1) = (1 − 1/λ)^(λ−1)/λ, for λ > 1.

    δ(ε) ≤ c·e^((1−λ)ε)·E_Q[Y^λ], the tight conversion from Rényi divergence (Asoodeh et al. 2020).
    """
    return np.asarray((order - 1) * np.log1p(-1 / order) - np.log(order))


class Profile:
    """δ(ε) ≈ Σ over s > ε of masses·e^(log_scale − λs)·(e^s − e^ε), λ = `order`, on points `first`, `first` + `step`, ….

    `slack` bounds the summed error of the masses: by the constant above it moves δ by at most
    slack·c·e^(log_scale + (1−λ)ε), which an upper bound adds and a lower one subtracts. `infinite` is added to δ.
    """

    def __init__(
        self,
        *,
        first: float,
        step: float,
        masses: Array,
        order: float,
        log_scale: float,
        slack: float,
        infinite: float,
        upper: bool,
    ) -> None:
        self.order, self.log_scale, self.infinite, self.upper = order, log_scale, infinite, upper
        points = first + step * np.arange(len(masses))
        centre = float(points @ masses) / float(masses.sum())
        near = np.abs(points - centre) * (order - 1) <= _MAX_EXPONENT
        # Too far from the centre for e^((1−λ)s): to the right that mass becomes slack; to the left δ is not known.
        self.slack = slack + float(masses[~near & (points > centre)].sum())
        self._known_from = -math.inf if near[0] else float(points[near][0])
        self.points, self._step = points[near], step
        self._log_unit = log_scale + (1 - order) * centre
        # Masses under P, in that unit.
        self._masses = masses[near] * np.exp((1 - order) * (self.points - centre))
        # At a node s: Σ over s' > s of masses·e^(s − s'), and δ = Σ masses·(1 − e^(s − s')). All terms are positive.
        self._discounted = _discounted(self._masses, step)
        gained = -math.expm1(-step) * (self._discounted[1:] + self._masses[1:])
        self._value = np.append(np.cumsum(gained[::-1])[::-1], 0.0)

    def delta(self, epsilon: float) -> float:
        """A bound on δ at `epsilon`, on the side this profile was made for."""
        margin = self.margin(epsilon)
        if not self.upper:
            return max(self._raw(epsilon) - margin, 0.0)
        if epsilon < self._known_from:
            return 1.0
        return min(self._raw(epsilon) + margin + self.infinite, 1.0)

    def epsilon(self, delta: float) -> float:
        """The ε ≥ 0 at which the bound crosses `delta`: from above, or from below."""
        value = self._value * self._unit
        margin = self._margin(self.points)
        if not self.upper:
            beyond = np.flatnonzero(value - margin > delta)
            if not len(beyond):
                return 0.0
            index = int(beyond[-1])
            return max(self._cross(index, delta + float(margin[index])), 0.0)
        within = np.flatnonzero(value + margin + self.infinite <= delta)
        if not len(within):
            return self._beyond(delta)
        index = int(within[0])
        if index == 0:
            return max(float(self.points[0]), 0.0)
        # Inside the cell the margin at its left end stands for the whole cell, as it falls with ε.
        inside = self._cross(index - 1, delta - self.infinite - float(margin[index - 1]))
        return max(min(inside, float(self.points[index])), 0.0)

    def margin(self, epsilon: float) -> float:
        """How much of δ at `epsilon` is allowance for windows and rounding."""
        return float(self._margin(np.array([epsilon]))[0])

    def _beyond(self, delta: float) -> float:
        """To the right of the window only the margin and the infinite part are left."""
        if delta <= self.infinite:
            return math.inf
        constant = float(log_hockey_constant(np.array(self.order)))
        needed = self.log_scale + constant + math.log(self.slack / (delta - self.infinite))
        return max(float(self.points[-1]), needed / (self.order - 1), 0.0)

    def _cross(self, index: int, delta: float) -> float:
        """Where δ falls to `delta` between node `index` and the next; it is straight in e^ε there."""
        if self._discounted[index] == 0:
            return float(self.points[index])
        excess = float(self._value[index]) - max(delta, 0.0) / self._unit
        within = math.log1p(max(excess / float(self._discounted[index]), 0.0))
        return float(self.points[index]) + min(within, self._step)

    def _raw(self, epsilon: float) -> float:
        index = int(np.searchsorted(self.points, epsilon, side="right")) - 1
        if index >= 0:
            fall = math.expm1(min(epsilon - self.points[index], self._step)) * self._discounted[index]
            return max(float(self._value[index] - fall), 0.0) * self._unit
        rise = -math.expm1(epsilon - self.points[0]) * (self._masses[0] + self._discounted[0])
        return float(self._value[0] + rise) * self._unit

    @property
    def _unit(self) -> float:
        return math.exp(max(min(self._log_unit, 700.0), -700.0))

    def _margin(self, epsilon: Array) -> Array:
        exponent = self.log_scale + (1 - self.order) * epsilon + float(log_hockey_constant(np.array(self.order)))
        return np.asarray(self.slack * np.exp(np.minimum(exponent, 700.0)))


def _discounted(masses: Array, step: float) -> Array:
    """Σ over j > i of masses[j]·e^((i − j)·step), in blocks short enough for e^(j·step)."""
    size = max(int(_MAX_EXPONENT / 2 / step), 1)
    result = np.empty_like(masses)
    carried = 0.0  # the sum as seen from the first node of the block to the right, that node included
    for start in range((len(masses) - 1) // size * size, -1, -size):
        block = masses[start : start + size]
        away = step * np.arange(len(block))
        inner = np.cumsum((block * np.exp(-away))[::-1])[::-1]
        result[start : start + size] = (np.append(inner[1:], 0.0) + carried * math.exp(-step * len(block))) * np.exp(
            away
        )
        carried = float(inner[0]) + carried * math.exp(-step * len(block))
    return result
