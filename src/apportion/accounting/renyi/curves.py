"""Prices of the Rényi accountant: what each mechanism costs as a function of the order."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apportion.accounting.accountant import Cost
from apportion.accounting.renyi import allocation, sampled_gaussian, selection
from apportion.events import PoissonLaw, TruncatedNegativeBinomial


class Curve(ABC):
    """D(α), valid at every order by itself, in both directions."""

    __slots__ = ()

    @abstractmethod
    def divergences(self, orders: np.ndarray) -> np.ndarray:
        """D at increasing orders > 1, from above."""

    @property
    def mu_squared(self) -> float:
        """μ² of a Gaussian release that dominates the mechanism; infinite if there is none."""
        return math.inf


@dataclass(frozen=True, slots=True)
class Release(Curve):
    """N(0, 1) against N(μ, 1): D = αμ²/2 (Bun–Steinke 2016, Prop. 1.6; van Erven–Harremoës 2014)."""

    mu: float

    def divergences(self, orders: np.ndarray) -> np.ndarray:
        return orders * (self.mu * self.mu / 2)

    @property
    def mu_squared(self) -> float:
        return self.mu * self.mu


@dataclass(frozen=True, slots=True)
class SampledRelease(Curve):
    """One step on a Poisson sample."""

    sigma: float
    rate: float

    def divergences(self, orders: np.ndarray) -> np.ndarray:
        return sampled_gaussian.divergences(self.sigma, self.rate, tuple(orders.tolist()))

    @property
    def mu_squared(self) -> float:
        return 1 / (self.sigma * self.sigma)


@dataclass(frozen=True, slots=True)
class Allocation(Curve):
    """One epoch over secret random bins."""

    sigma: float
    batches: int

    def divergences(self, orders: np.ndarray) -> np.ndarray:
        return allocation.divergences(self.sigma, self.batches, orders)

    @property
    def mu_squared(self) -> float:
        return 1 / (self.sigma * self.sigma)


@dataclass(frozen=True, slots=True)
class BoundedRange(Curve):
    """Log-probabilities whose change between neighbours has range η: D ≤ min(αη²/8, η) (Cesar–Rogers 2021;
    the second because the probabilities sum to 1 on both sides, so that no single one moves by more than η)."""

    range: float

    def divergences(self, orders: np.ndarray) -> np.ndarray:
        return np.asarray(np.minimum(orders * (self.range * self.range / 8), self.range))


@dataclass(frozen=True, slots=True)
class Selected(Curve):
    """The best of a random, secret number of runs."""

    base: Cost[Curve]
    runs: TruncatedNegativeBinomial | PoissonLaw

    def divergences(self, orders: np.ndarray) -> np.ndarray:
        return selection.divergences(
            lambda inner: total(self.base, inner), total_mu_squared(self.base), self.runs, orders
        )


def total(cost: Cost[Curve], orders: np.ndarray) -> np.ndarray:
    """The composed curve: divergences add up order by order (Mironov 2017, Prop. 1); of disjoint parts the largest."""
    with np.errstate(over="ignore"):  # an infinite divergence is a valid, useless bound
        return cost.fold(
            value=lambda curve: curve.divergences(orders),
            weighted_sum=lambda terms: np.sum([times * values for times, values in terms] or [0 * orders], axis=0),
            largest=lambda values: np.max(values, axis=0),
        )


def total_mu_squared(cost: Cost[Curve]) -> float:
    """μ² of a Gaussian release that dominates all of `cost`; infinite if there is none."""

    def weighted_sum(terms: Sequence[tuple[int, float]]) -> float:
        return math.fsum(times * mu_squared for times, mu_squared in terms)

    return cost.fold(
        value=lambda curve: curve.mu_squared, weighted_sum=weighted_sum, largest=lambda values: max(values)
    )
