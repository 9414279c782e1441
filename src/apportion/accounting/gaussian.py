"""Gaussian differential privacy: μ² adds up, and the conversion is exact (Dong, Roth and Su, 2019)."""

import math
from collections.abc import Mapping
from typing import Any

from apportion.accounting import conversions
from apportion.accounting.accountant import Accountant, Cost, Interval, sum_of_floats
from apportion.accounting.unamplified import releases
from apportion.events import Leaf


class Gaussian(Accountant[float]):
    """Prices are μ². Exact for Gaussian releases and disjoint batches; no credit for secret sampling.

    Guarantees: adaptive composition of μᵢ-GDP mechanisms is √(Σμᵢ²)-GDP (Dong–Roth–Su, Cor. 3.3); the largest μ of
    disjoint parts dominates them all, because trade-off functions of Gaussians are ordered by μ.
    """

    name = "gaussian"

    def price(self, leaf: Leaf) -> Cost[float]:
        found = releases(leaf, self.adjacency)
        if isinstance(found, str):
            raise self.unpriced(leaf, found)
        mu, times = found
        return Cost.of(mu * mu, times)

    def epsilon(self, cost: Cost[float], delta: float) -> Interval:
        return Interval(upper=conversions.epsilon_of_mu(math.sqrt(sum_of_floats(cost)), delta))

    def details(self, cost: Cost[float], delta: float) -> Mapping[str, Any]:
        return {"mu": math.sqrt(sum_of_floats(cost))}
