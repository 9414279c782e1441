"""δ as a function of ε, and back, from the masses of a tilted sum."""

import math
from dataclasses import dataclass, field

import numpy as np

from apportion.accounting.loss_distribution.slopes import Array

# e^x is formed only for exponents up to this.
_MAX_EXPONENT = 500.0


def log_hockey_constant(order: Array) -> Array:
    """ln of c = max over x ≥ 1 of x^−λ·(x − 1) = (1 − 1/λ)^(λ−1)/λ, for λ > 1.

    δ(ε) ≤ c·e^((1−λ)ε)·E_Q[Y^λ], the tight conversion from Rényi divergence (Asoodeh et al. 2020).
    """
    return np.asarray((order - 1) * np.log1p(-1 / order) - np.log(order))


@dataclass(slots=True)
class Profile:
    """δ(ε) ≈ Σ over s > ε of masses·e^(log_scale − λs)·(e^s − e^ε), λ = `order`.

    `slack` bounds the summed error of the masses: by the constant above it moves δ by at most
    slack·c·e^(log_scale + (1−λ)ε), which an upper bound adds and a lower one subtracts. `infinite` is added to δ.
    """

    points: Array
    masses: Array
    order: float
    log_scale: float
    slack: float
    infinite: float
    upper: bool
    _cut: bool = False
    _value: Array = field(init=False)
    _slope: Array = field(init=False)
    _log_unit: float = field(init=False)

    def __post_init__(self) -> None:
        centre = float(self.points @ self.masses) / float(self.masses.sum())
        near = np.abs(self.points - centre) <= _MAX_EXPONENT / self.order
        if not near.all():
            # Too far from the centre for e^(−λs): to the right that mass becomes slack; to the left δ is unknown there.
            self.slack += float(self.masses[~near & (self.points > centre)].sum())
            self._cut = not near[0]
            self.points, self.masses = self.points[near], self.masses[near]
        away = self.points - centre
        under_q = self.masses * np.exp(-self.order * away)
        # All terms are positive, and summed from the right: H at a node is H at the next plus width times slope.
        self._slope = np.cumsum(under_q[::-1])[::-1]
        widths = np.exp(away[:-1]) * np.expm1(np.diff(self.points))
        self._value = np.append(np.cumsum((widths * self._slope[1:])[::-1])[::-1], 0.0)
        self._log_unit = self.log_scale + (1 - self.order) * centre
        self._centre = centre

    _centre: float = field(init=False)

    def delta(self, epsilon: float) -> float:
        """A bound on δ at `epsilon`, on the side this profile was made for."""
        margin = float(self._margin(np.array([epsilon]))[0])
        if not self.upper:
            return max(self._raw(epsilon) - margin, 0.0)
        if self._cut and epsilon < self.points[0]:
            return 1.0
        return float(min(self._raw(epsilon) + margin + self.infinite, 1.0))

    def epsilon(self, delta: float) -> float:
        """The ε ≥ 0 at which the bound crosses `delta`: from above, or from below; ∞ if not in the window."""
        value = self._scaled(self._value)
        margin = self._margin(self.points)
        if self.upper:
            within = np.flatnonzero(value + margin + self.infinite <= delta)
            if not len(within):
                return math.inf
            index = int(within[0])
            if index == 0:
                return max(float(self.points[0]), 0.0)
            # Inside the cell the margin at its left end stands for the whole cell, as it falls with ε.
            inside = self._cross(index - 1, delta - self.infinite - float(margin[index - 1]))
            return max(min(inside, float(self.points[index])), 0.0)
        beyond = np.flatnonzero(value - margin > delta)
        if not len(beyond):
            return 0.0
        index = int(beyond[-1])
        return max(self._cross(index, delta + float(margin[index])), float(self.points[index]), 0.0)

    def _cross(self, index: int, delta: float) -> float:
        """Where the straight line of H between nodes `index` and the next meets `delta`; it is straight in e^ε."""
        fall = math.exp(self._centre - self.points[index]) / self._slope[min(index + 1, len(self._slope) - 1)]
        excess = self._value[index] - max(delta, 0.0) * math.exp(-max(min(self._log_unit, 700.0), -700.0))
        return float(self.points[index]) + math.log1p(max(excess * fall, 0.0))

    def _raw(self, epsilon: float) -> float:
        index = int(np.searchsorted(self.points, epsilon, side="right"))
        if index == len(self.points):
            return 0.0
        width = math.exp(epsilon - self._centre) * math.expm1(self.points[index] - epsilon)
        return float(self._scaled(self._value[index] + width * self._slope[index]))

    def _scaled(self, value: Array) -> Array:
        return np.asarray(value * math.exp(max(min(self._log_unit, 700.0), -700.0)))

    def _margin(self, epsilon: Array) -> Array:
        exponent = self.log_scale + (1 - self.order) * epsilon + float(log_hockey_constant(np.array(self.order)))
        return np.asarray(self.slack * np.exp(np.minimum(exponent, 700.0)))
