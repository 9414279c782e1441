"""From a bill to a pair of compositions on one grid, one per direction, as fine as asked and as fine as can be afforded."""

import math
from dataclasses import dataclass
from functools import lru_cache

from apportion.accounting.loss_distribution.allocation import allocation_law
from apportion.accounting.loss_distribution.composition import Composition
from apportion.accounting.loss_distribution.discretise import Law, contract, spread
from apportion.accounting.loss_distribution.laws import Nothing, RandomisedResponse, SampledGaussian
from apportion.accounting.loss_distribution.prices import Allocated, Bill, Price, Response, Sampled

# Points of all factors together, and of one of them.
_MAX_POINTS = 1 << 22
_MAX_SUPPORT = 1 << 18


@dataclass(frozen=True, slots=True)
class Directions:
    """The same composition seen when a unit is removed (δ = E_Q(Y − e^ε)₊) and when it is added."""

    remove: Composition
    add: Composition


@lru_cache(maxsize=8)
def composed(bill: Bill, fineness: float, log10_tail: int, upper: bool) -> Directions:
    """All factors of the bill on one grid, from above or from below.

    `fineness` is the step in units of the standard deviation of one factor, `10^log10_tail` the mass that truncation
    may leave out in total, which is charged. The second-order error of the step is relative to the variance of a
    factor, however many are composed.
    """
    share = 10.0**log10_tail / (4 * sum(times for _, times in bill))
    laws = [_law(price, fineness, share, upper) for price, _ in bill]
    supports = [law.support(share) for law in laws]
    step = _step(bill, fineness, max(high - low for low, high in supports))
    discretise = spread if upper else contract
    atoms = [discretise(law, step, *support) for law, support in zip(laws, supports, strict=True)]
    counts = [times for _, times in bill]
    return Directions(Composition(atoms, counts), Composition([a.mirrored() for a in atoms], counts))


def _law(price: Price, fineness: float, tail: float, upper: bool) -> Law:
    match price:
        case Sampled(mu=mu, rate=rate):
            return SampledGaussian(mu, rate)
        case Response(epsilon=epsilon):
            return RandomisedResponse(epsilon)
        case Allocated(mu=mu, bins=bins):
            law = allocation_law(mu, bins, fineness, tail, upper)
            # Too heavy a tail for a grid of values: unamplified from above, nothing from below.
            return law or (SampledGaussian(mu) if upper else Nothing())


def _step(bill: Bill, fineness: float, range_of_one: float) -> float:
    count = sum(times for _, times in bill)
    mean_square = math.fsum(times * price.scale**2 for price, times in bill) / count
    affordable = range_of_one / min(_MAX_SUPPORT, _MAX_POINTS / len(bill))
    step = max(fineness * math.sqrt(mean_square), affordable)
    responses = [price.epsilon for price, _ in bill if isinstance(price, Response)]
    if responses and step < min(responses):  # the two values of the response then lie on the grid
        step = min(responses) / math.ceil(min(responses) / step)
    return step
