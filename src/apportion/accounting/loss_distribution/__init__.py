"""Loss distributions: the tightest proven ε for sampled and allocated batches, as an interval.

What happens here, in the order of the files: a mechanism as data (`prices`) → the law of its density ratio Y (`laws`; for
partitions `allocation`, from `values`, `sums` and `few_bins`) → on a grid, from above or below (`slopes`, `discretise`) →
multiplied (`routes`, `composition`, `fourier`) → δ and ε (`profile`).
"""

import math
from collections.abc import Sequence

from apportion import _checks
from apportion.accounting import conversions
from apportion.accounting.accountant import Accountant, Cost, Interval
from apportion.accounting.loss_distribution.composition import Composition
from apportion.accounting.loss_distribution.prices import (
    Allocated,
    Bill,
    Price,
    Response,
    Sampled,
    Way,
    unamplified,
    ways,
)
from apportion.accounting.loss_distribution.routes import composed
from apportion.accounting.unamplified import releases
from apportion.accounting.zcdp import exponential_mechanism_range
from apportion.errors import UnpricedEvent
from apportion.events import Adjacency, ExponentialMechanism, Leaf, PartitionEpoch, PoissonEpoch

__all__ = ["LossDistribution"]

# Steps in units of a factor's standard deviation: at 0.05 the interval is about 0.1 % wide.
_FINENESS = 0.05
_MOST_FACTORS = 10**9
_REFINEMENTS = 4
# Mass left outside the window, relative to a Rényi bound on δ, try after try.
_OUTSIDE = (1e-7, 1e-12, 1e-12, 1e-12, 1e-12, 1e-12)
# What truncation may leave out when δ is not known beforehand.
_SMALLEST_TAIL_DECADES = -18


class LossDistribution(Accountant[Price]):
    """Prices are dominating pairs; they are composed on one grid, from above and from below.

    Guarantees: `upper` bounds ε of the composed dominating pairs, adaptively composed (Dong, Roth and Su 2022; Zhu,
    Dong and Wang 2022), in the worse of both directions; truncation, windows and rounding are charged to δ. It never
    exceeds the exact Gaussian bound without amplification. `lower` bounds ε of the same pairs from below: it says how
    tight `upper` is, not how much a run leaks. Amplification is claimed for Poisson and Partition batching under
    add-remove and zero-out; Shuffle, and everything under replace-one, is priced without.
    """

    name = "loss-distribution"

    def __init__(self, adjacency: Adjacency, *, tolerance: float = 0.01, lower_bound: bool = True) -> None:
        super().__init__(adjacency)
        self.tolerance = _checks.positive("tolerance", tolerance)
        self.lower_bound = lower_bound

    def price(self, leaf: Leaf) -> Cost[Price]:
        if isinstance(leaf, ExponentialMechanism):
            return Cost.of(Response(exponential_mechanism_range(leaf, self.adjacency)))
        if self.adjacency != "replace-one":
            match leaf:
                case PoissonEpoch(sigma=sigma, rate=rate, steps=steps):
                    return Cost.of(Sampled(1 / sigma, rate), steps)
                case PartitionEpoch(sigma=sigma, batches=bins) if bins > 1:
                    return Cost.of(Allocated(1 / sigma, bins))
        found = releases(leaf, self.adjacency)
        if isinstance(found, str):
            raise self.unpriced(leaf, found)
        mu, times = found
        return Cost.of(Sampled(mu), times)

    def chosen(self, options: Sequence[Cost[Price]]) -> Cost[Price]:
        """Only of equals: a choice that follows earlier losses may be worse than every option by itself."""
        if len(set(options)) > 1:
            raise UnpricedEvent(
                f"{self.name} does not price OneOf of unequal options: which one runs may depend on earlier outputs, and "
                "the largest of several loss distributions is no bound then; renyi, zcdp and gaussian price it"
            )
        return options[0]

    def epsilon(self, cost: Cost[Price], delta: float) -> Interval:
        """ε at `delta`; without a lower bound if this accountant was made without."""
        if cost.infinite:
            return Interval(upper=math.inf)
        found = [self._epsilon_of(way, delta) for way in ways(cost)]
        lower = max(low for low, _ in found) if self.lower_bound else None
        return Interval(upper=max(high for _, high in found), lower=lower)

    def delta(self, cost: Cost[Price], epsilon: float) -> float:
        """An upper bound on δ at `epsilon` ≥ 0; asking for many ε of one cost is cheap."""
        _checks.at_least("epsilon", epsilon, 0.0)
        return 1.0 if cost.infinite else max(self._delta_of(way.charged, epsilon) for way in ways(cost))

    def _epsilon_of(self, way: Way, delta: float) -> tuple[float, float]:
        """(lower, upper), refined until they agree or further refinement is out of reach."""
        upper = _without_amplification(way.charged, delta)
        if _is_gaussian(way.charged) and way.met == way.charged:
            return upper * (1 - 1e-12), upper
        if not _within_reach(way.charged):
            return 0.0, upper
        lower, step, fineness = 0.0, math.inf, self._fineness
        for _ in range(_REFINEMENTS):
            from_above = composed(way.charged, fineness, _tail_decades(delta), True)
            if from_above.remove.step >= step:  # as fine as can be afforded
                break
            step = from_above.remove.step
            found = max(_epsilon(from_above.remove, delta, True), _epsilon(from_above.add, delta, True))
            if math.isinf(found):  # no window short enough: a coarser grid is better than none
                step, fineness = math.inf, 8 * fineness
                continue
            upper = min(upper, found)
            if self.lower_bound and way.met:
                # Either direction is a lower bound on the worse one, and removal nearly always is it.
                lower = max(
                    lower, _epsilon(composed(way.met, fineness, _tail_decades(delta), False).remove, delta, False)
                )
            if not self.lower_bound or upper - lower <= self.tolerance * upper:
                break
            fineness /= 2
        return min(lower, upper), upper

    def _delta_of(self, bill: Bill, epsilon: float) -> float:
        mu, pure = unamplified(bill)
        plain = conversions.delta_of_mu(mu, epsilon - pure) if epsilon >= pure else 1.0
        if _is_gaussian(bill) or not _within_reach(bill):
            return plain
        for coarser in (1, 8, 64):  # where no window is short enough
            both = composed(bill, coarser * self._fineness, _SMALLEST_TAIL_DECADES, True)
            found = max(_delta(both.remove, epsilon), _delta(both.add, epsilon))
            if found < 1:
                return min(plain, found)
        return plain

    @property
    def _fineness(self) -> float:
        """The step is proportional to the root of the tolerance, as errors are of second order."""
        return _FINENESS * math.sqrt(min(self.tolerance / 0.01, 1.0))


def _within_reach(bill: Bill) -> bool:
    """Whether every number of the bill is one that grids were made for; beyond, no amplification is claimed."""
    return sum(times for _, times in bill) <= _MOST_FACTORS and all(price.within_reach for price, _ in bill)


def _is_gaussian(bill: Bill) -> bool:
    return all(isinstance(price, Sampled) and price.rate == 1 for price, _ in bill)


def _without_amplification(bill: Bill, delta: float) -> float:
    mu, pure = unamplified(bill)
    return conversions.epsilon_of_mu(mu, delta) + pure


def _epsilon(composition: Composition, delta: float, upper: bool) -> float:
    """The best over a few orders: every one is valid, so trying more costs only time.

    The order of the best Rényi bound is right for light tails. Where one large value can do what many small ones do,
    that order looks at the large value only; wider windows and lower orders are tried until the margin is within 1 % of
    δ.
    """
    best, order = math.inf if upper else 0.0, composition.order_for(delta)
    for outside in _OUTSIDE:
        profile = composition.profile(order, upper, outside)
        if profile is not None:
            found = profile.epsilon(delta)
            best = min(best, found) if upper else max(best, found)
            if profile.margin(found) <= 0.01 * delta:
                break
        order = composition.lower_order(order)
    return best


def _delta(composition: Composition, epsilon: float) -> float:
    best, order = 1.0, composition.order_at(epsilon)
    for outside in _OUTSIDE:
        profile = composition.profile(order, True, outside)
        if profile is not None:
            best = min(best, profile.delta(epsilon))
            if profile.margin(epsilon) <= 0.01 * best:
                break
        order = composition.lower_order(order)
    return best


def _tail_decades(delta: float) -> int:
    """Truncation may use up between 1e-5 and 1e-4 of δ."""
    return math.floor(math.log10(delta)) - 4
