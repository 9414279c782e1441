"""The laws of Y = dP/dQ of single mechanisms, as the lines that touch H(g) = E_Q(Y − g)₊."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from apportion.accounting.loss_distribution.slopes import Array

# Beyond this logarithm e^s is no longer formed; below it products are exact to the last bits, which small μ needs.
_LARGE = 30.0


@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """Y = 1 − q + q·V with V = exp(μt − μ²/2), t ~ N(0, 1): a Gaussian release that a unit is part of with chance q.

    Guarantees: (1 − q)·N(0, 1) + q·N(μ, 1) against N(0, 1), and its mirror image, dominate the Poisson-sampled Gaussian
    under add-remove and zero-out (Zhu, Dong and Wang 2022, Thm. 11; Lebeda et al. 2405.20769 for both directions).
    """

    mu: float
    rate: float = 1.0
    missing: float = 0.0

    def calls(self, touch: Array, at: Array) -> Array:
        mu, q = self.mu, self.rate
        t = self._normal(touch)
        # v·Q(V > v) with v = 1 + (e^at − 1)/q, in the scale of V so that a small q costs no digits.
        paid = (1 + np.expm1(np.minimum(at, _LARGE)) / q) * ndtr(-t)
        large = at > _LARGE
        if np.any(large):
            log_v = at - math.log(q) + np.log1p((q - 1) * np.exp(-np.maximum(at, _LARGE)))
            paid = np.where(large, np.exp(np.minimum(log_v + log_ndtr(-t), 0.0)), paid)
        return np.asarray(q * (ndtr(mu - t) - paid))

    def puts(self, touch: Array, at: Array) -> Array:
        if self.rate == 1:  # V and 1/V have the same law, each under its own measure
            return self.calls(-touch, -at)
        q = self.rate
        t = self._normal(touch)  # −∞ where Y is never that small
        value = (q + np.expm1(at)) * ndtr(t) - q * ndtr(t - self.mu)
        return np.asarray(value * np.exp(-at))

    def support(self, tail: float) -> tuple[float, float]:
        t = -float(ndtri(tail))
        return min(self._log_ratio(-t), 0.0), max(self._log_ratio(t + self.mu), 0.0)

    def _log_ratio(self, t: float) -> float:
        exponent = self.mu * t - self.mu * self.mu / 2
        if self.rate == 1:
            return exponent
        if exponent > _LARGE:
            return float(np.logaddexp(math.log(self.rate) + exponent, math.log1p(-self.rate)))
        return math.log1p(self.rate * math.expm1(exponent))

    def _normal(self, s: Array) -> Array:
        """The t at which Y = e^s."""
        if self.rate == 1:
            return np.asarray(s / self.mu + self.mu / 2)
        excess = np.maximum(np.expm1(np.minimum(s, _LARGE)) / self.rate, -1.0)
        with np.errstate(divide="ignore"):
            log_v = np.log1p(excess)
        log_v = np.where(s > _LARGE, s - math.log(self.rate), log_v)
        return np.asarray(log_v / self.mu + self.mu / 2)


@dataclass(frozen=True, slots=True)
class RandomisedResponse:
    """Y = e^ε or e^−ε: dominates every ε-differentially private mechanism (Kairouz, Oh and Viswanath 2015)."""

    epsilon: float
    missing: float = 0.0

    def calls(self, touch: Array, at: Array) -> Array:
        chance = 1 / (1 + math.exp(-self.epsilon))
        line = -chance * np.expm1(np.minimum(at - self.epsilon, _LARGE))
        return np.asarray(np.where(touch < self.epsilon, line, 0.0))

    def puts(self, touch: Array, at: Array) -> Array:
        return self.calls(-touch, -at)

    def support(self, tail: float) -> tuple[float, float]:
        return -self.epsilon, self.epsilon


@dataclass(frozen=True, slots=True)
class Nothing:
    """Y = 1: a mechanism that says nothing, below every other."""

    missing: float = 0.0

    def calls(self, touch: Array, at: Array) -> Array:
        return np.zeros_like(touch)

    def puts(self, touch: Array, at: Array) -> Array:
        return np.zeros_like(touch)

    def support(self, tail: float) -> tuple[float, float]:
        return 0.0, 0.0


class Tabulated:
    """A law given by masses at 1 + x for ascending x ≥ −1: under P where x ≥ 0, under Q where x < 0."""

    def __init__(self, x: Array, weights: Array, missing: float) -> None:
        self.missing = missing
        centre = int(np.searchsorted(x, 0.0))
        self._above, self._below = x[centre:], -x[:centre][::-1]
        under_q = weights[centre:] / (1 + self._above)
        self._above_mass, self._above_excess = _outer_sums(under_q), _outer_sums(under_q * self._above)
        below = weights[:centre][::-1]
        self._below_mass, self._below_excess = _outer_sums(below), _outer_sums(below * self._below)

    def calls(self, touch: Array, at: Array) -> Array:
        index = np.searchsorted(self._above, np.expm1(touch), side="right")
        return np.asarray(self._above_excess[index] - np.expm1(at) * self._above_mass[index])

    def puts(self, touch: Array, at: Array) -> Array:
        index = np.searchsorted(self._below, -np.expm1(touch), side="right")
        return np.asarray((self._below_excess[index] + np.expm1(at) * self._below_mass[index]) * np.exp(-at))

    def support(self, tail: float) -> tuple[float, float]:
        above = self._above_mass + self._above_excess
        high = self._above[min(int(np.count_nonzero(above > tail)), len(self._above) - 1)]
        low = self._below[min(int(np.count_nonzero(self._below_mass > tail)), len(self._below) - 1)]
        return math.log1p(-min(float(low), 1 - 1e-12)), math.log1p(float(high))


def _outer_sums(values: Array) -> Array:
    """Σ over j ≥ i, with a zero at the end; summed from the small outer end inwards."""
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def deviation(mu: float) -> float:
    """√(π/2)·E|V − 1|: the standard deviation of V for small μ, and at most 2.6 however heavy the tail of V is."""
    return math.sqrt(2 * math.pi) * math.erf(mu / math.sqrt(8))
