"""The moments accountant of Abadi et al. 2016, as the paper used it: kept to compare with, looser than `renyi`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from apportion.accounting.accountant import Accountant, Cost, Interval
from apportion.accounting.renyi.curves import Curve, Release, SampledRelease, total
from apportion.accounting.unamplified import releases
from apportion.events import GaussianRelease, Leaf, PoissonEpoch

_LAMBDAS = np.arange(1.0, 33.0)


class Moments(Accountant[Curve]):
    """Log-moments α_M(λ) = λ·D_{λ+1}, λ = 1…32, added up; ε = min over λ of (Σα_M(λ) + ln 1/δ)/λ.

    Guarantees: Abadi et al. 2016, Thm 2 (composition and tail bound), for Poisson sampling under add-remove and
    zero-out; the moments are those of Mironov–Talwar–Zhang 2019, from above.
    """

    name = "moments"

    def price(self, leaf: Leaf) -> Cost[Curve]:
        if isinstance(leaf, PoissonEpoch) and self.adjacency != "replace-one":
            return Cost.of(SampledRelease(leaf.sigma, leaf.rate), leaf.steps)
        if not isinstance(leaf, PoissonEpoch | GaussianRelease):
            raise self.unpriced(leaf, "it was defined for sampled and plain Gaussian releases only")
        found = releases(leaf, self.adjacency)
        assert not isinstance(found, str)
        mu, times = found
        return Cost.of(Release(mu), times)

    def epsilon(self, cost: Cost[Curve], delta: float) -> Interval:
        return Interval(upper=float(np.min(_epsilons(cost, delta))))

    def details(self, cost: Cost[Curve], delta: float) -> Mapping[str, Any]:
        return {"order": float(_LAMBDAS[np.argmin(_epsilons(cost, delta))]) + 1}


def _epsilons(cost: Cost[Curve], delta: float) -> np.ndarray:
    return np.asarray(total(cost, _LAMBDAS + 1) + math.log(1 / delta) / _LAMBDAS)
