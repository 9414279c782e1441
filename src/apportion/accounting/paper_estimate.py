"""The paper's closed form for random sampling: quick to compute by hand, never a certificate.

Its Theorem 3 is right, but rests on D_α ≤ αq²/σ² for α ≤ σ² ln(1/(qσ)) + 1, which the paper found numerically and
conjectured. That is false for σ below about 1.107: at σ = 1, q = .049, α = 4 the divergence is .010903 and the bound
says .009604. Above, no counterexample is known, and no proof.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion.accounting.accountant import Accountant, Cost, Interval
from apportion.accounting.unamplified import releases
from apportion.events import Adjacency, GaussianRelease, Leaf, PoissonEpoch

SMALLEST_SIGMA = 1.11


@dataclass(frozen=True, slots=True)
class LinearDivergence:
    """D_α ≤ α·rho for 1 < α ≤ largest_order."""

    rho: float
    largest_order: float


class PaperEstimate(Accountant[LinearDivergence]):
    """ρ̂ = Σq²/σ², valid up to the smallest u_α = σ² ln(1/(qσ)) + 1 of all steps (the paper's two composition cases).

    With `outside_its_range=True` it computes for parameters where the bound is known to be false or was never meant:
    for drawing figures only.
    """

    name = "paper-estimate"
    status = "estimate"

    def __init__(self, adjacency: Adjacency, *, outside_its_range: bool = False) -> None:
        super().__init__(adjacency)
        self.outside_its_range = outside_its_range

    def price(self, leaf: Leaf) -> Cost[LinearDivergence]:
        if isinstance(leaf, PoissonEpoch) and self.adjacency != "replace-one":
            reason = why_out_of_range(leaf.sigma, leaf.rate)
            if reason and not self.outside_its_range:
                raise self.unpriced(leaf, reason)
            return Cost.of(_sampled(leaf.sigma, leaf.rate), leaf.steps)
        if not isinstance(leaf, GaussianRelease):
            raise self.unpriced(leaf, "it is about random sampling, where one unit is added or removed; use zcdp")
        found = releases(leaf, self.adjacency)
        assert not isinstance(found, str)
        mu, times = found
        return Cost.of(LinearDivergence(mu * mu / 2, math.inf), times)

    def epsilon(self, cost: Cost[LinearDivergence], delta: float) -> Interval:
        return Interval(upper=_epsilon(_total(cost), delta))

    def details(self, cost: Cost[LinearDivergence], delta: float) -> Mapping[str, Any]:
        found = _total(cost)
        largest = {"largest_order": found.largest_order} if math.isfinite(found.largest_order) else {}
        return {"rho": found.rho, **largest}


def why_out_of_range(sigma: float, rate: float) -> str | None:
    """Why the estimate must not be used for these parameters; None if it may."""
    if sigma < SMALLEST_SIGMA:
        return f"the conjectured bound is false for noise this small: sigma must be at least 1.11, got {sigma:g}"
    if rate > 1 / (16 * sigma):
        return f"the rate must be at most 1/(16 sigma) = {1 / (16 * sigma):g}, got {rate:g}"
    return None


def _sampled(sigma: float, rate: float) -> LinearDivergence:
    return LinearDivergence(rate * rate / (sigma * sigma), sigma * sigma * math.log(1 / (rate * sigma)) + 1)


def _total(cost: Cost[LinearDivergence]) -> LinearDivergence:
    def weighted_sum(terms: Sequence[tuple[int, LinearDivergence]]) -> LinearDivergence:
        rho = math.fsum(times * term.rho for times, term in terms)
        return LinearDivergence(rho, min((term.largest_order for _, term in terms), default=math.inf))

    def largest(terms: Sequence[LinearDivergence]) -> LinearDivergence:
        return LinearDivergence(max(t.rho for t in terms), min(t.largest_order for t in terms))

    return cost.fold(value=lambda price: price, weighted_sum=weighted_sum, largest=largest)


def _epsilon(bound: LinearDivergence, delta: float) -> float:
    """Theorem 3: the unconstrained best order if it is allowed, the largest allowed one otherwise."""
    rho, reach = bound.rho, bound.largest_order - 1
    if reach <= 0:
        return math.inf
    if math.log(1 / delta) <= rho * reach * reach:
        return rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return rho * bound.largest_order + math.log(1 / delta) / reach
