"""Rényi differential privacy: divergences add up order by order, and the best order is found at the end."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from apportion import _checks
from apportion.accounting.accountant import Accountant, Cost, Interval
from apportion.accounting.conversions import epsilons_of_divergences
from apportion.accounting.renyi.curves import (
    Allocation,
    BoundedRange,
    Curve,
    Release,
    SampledRelease,
    Selected,
    total,
)
from apportion.accounting.renyi.orders import LADDER, Minimum, minimum
from apportion.accounting.unamplified import releases
from apportion.accounting.zcdp import exponential_mechanism_range
from apportion.errors import InvalidArgument
from apportion.events import (
    Event,
    ExponentialMechanism,
    Leaf,
    PartitionEpoch,
    PoissonEpoch,
    RepeatAndSelect,
)

# Outside, sampling is not credited: the integrals would overflow or underflow where nothing is gained.
_SMALLEST, _LARGEST = 0.02, 1e7


class Renyi(Accountant[Curve]):
    """Prices are curves α ↦ D_α. Prices the whole grammar, far more tightly than basic composition.

    Guarantees: adaptive composition adds D_α (Mironov 2017, Prop. 1). Secret sampling is credited to Poisson steps and
    partition epochs under add-remove and zero-out only, and never to shuffled epochs.
    """

    name = "renyi"

    def price(self, leaf: Leaf) -> Cost[Curve]:
        amplified = self.adjacency != "replace-one" and _SMALLEST <= getattr(leaf, "sigma", 0.0) <= _LARGEST
        match leaf:
            case PoissonEpoch(sigma=sigma, rate=rate, steps=steps) if amplified:
                return Cost.of(SampledRelease(sigma, rate), steps)
            case PartitionEpoch(sigma=sigma, batches=batches) if amplified:
                return Cost.of(Allocation(sigma, batches))
            case ExponentialMechanism():
                return Cost.of(BoundedRange(exponential_mechanism_range(leaf, self.adjacency)))
            case RepeatAndSelect(base=base, runs=runs):
                inner = self.cost(base)
                return Cost(frozenset(), infinite=True) if inner.infinite else Cost.of(Selected(inner, runs))
        found = releases(leaf, self.adjacency)
        if isinstance(found, str):
            raise self.unpriced(leaf, found)
        mu, times = found
        return Cost.of(Release(mu), times)

    def epsilon(self, cost: Cost[Curve], delta: float) -> Interval:
        return Interval(upper=least_epsilon(cost, delta).value)

    def details(self, cost: Cost[Curve], delta: float) -> Mapping[str, Any]:
        return {"order": least_epsilon(cost, delta).order}

    def divergence(self, event: Event, order: float) -> float:
        """D at one order, from above: what a Rényi filter adds up."""
        if _checks.number("order", order) <= 1:
            raise InvalidArgument(f"order must be greater than 1, got {order!r}")
        cost = self.cost(event)
        return math.inf if cost.infinite else float(total(cost, np.array([float(order)]))[0])


@lru_cache(maxsize=256)
def least_epsilon(cost: Cost[Curve], delta: float) -> Minimum:
    """The least ε over orders, and its order.

    Guarantees: at each order Canonne–Kamath–Steinke 2020; and ε = 0 wherever √(D/2) ≤ δ, by Pinsker's inequality, since
    D grows with the order from the Kullback–Leibler divergence.
    """
    lowest = LADDER[:1]
    if math.sqrt(float(total(cost, lowest)[0]) / 2) <= delta:
        return Minimum(0.0, float(lowest[0]))
    found = minimum(lambda orders: total(cost, orders), offset=lambda orders: _conversion(orders, delta))
    order = np.array([found.order])
    return Minimum(float(epsilons_of_divergences(order, total(cost, order), delta)[0]), found.order)


def _conversion(orders: np.ndarray, delta: float) -> np.ndarray:
    """About what the conversion adds to D at each order; it may be negative, which the conversion itself cuts off."""
    shift = 100.0
    return epsilons_of_divergences(orders, np.full_like(orders, shift), delta) - shift
