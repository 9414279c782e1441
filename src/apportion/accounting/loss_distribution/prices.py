"""What one mechanism costs, as data: the dominating pair by its parameters, until a grid is chosen for all of them."""

import itertools
import math
from dataclasses import dataclass

from apportion.accounting.accountant import Cost, Largest
from apportion.accounting.loss_distribution.laws import deviation

# More ways than this to send a unit through disjoint parts are not all tried.
MAX_WAYS = 64
# The range of numbers that grids were made and tested for, with room to spare on every side.
_LEAST_MU, _MOST_MU = 1e-7, 20.0
_LEAST_RATE, _MOST_BINS = 1e-12, 10**12
_MOST_EPSILON = 200.0


@dataclass(frozen=True, slots=True)
class Sampled:
    """N(0, 1) against (1 − q)·N(0, 1) + q·N(μ, 1); q = `rate` = 1 is a plain release."""

    mu: float
    rate: float = 1.0

    @property
    def scale(self) -> float:
        """About one standard deviation of ln Y, its rare large values apart."""
        return self.mu if self.rate == 1 else self.rate * deviation(self.mu)

    @property
    def within_reach(self) -> bool:
        """Whether grids were made for such numbers."""
        return _LEAST_MU <= self.mu <= _MOST_MU and self.rate >= _LEAST_RATE


@dataclass(frozen=True, slots=True)
class Allocated:
    """N(0, 1) in all `bins`, against the same with μ added in one of them."""

    mu: float
    bins: int

    @property
    def scale(self) -> float:
        return deviation(self.mu) / math.sqrt(self.bins)

    @property
    def within_reach(self) -> bool:
        return _LEAST_MU <= self.mu <= _MOST_MU and self.bins <= _MOST_BINS


@dataclass(frozen=True, slots=True)
class Response:
    """Randomised response."""

    epsilon: float

    @property
    def scale(self) -> float:
        return self.epsilon

    @property
    def within_reach(self) -> bool:
        return self.epsilon <= _MOST_EPSILON


Price = Sampled | Allocated | Response
Bill = tuple[tuple[Price, int], ...]


def unamplified(bill: Bill) -> tuple[float, float]:
    """(μ, ε₀): the bill is no worse than one Gaussian release of μ composed with an ε₀-private mechanism.

    A sampled or allocated unit is in at most one place per release, so forgetting the secrecy of the place is a bound.
    """
    mu_squared = math.fsum(times * (price.mu * price.mu) for price, times in bill if not isinstance(price, Response))
    pure = math.fsum(times * price.epsilon for price, times in bill if isinstance(price, Response))
    return math.sqrt(mu_squared), pure


@dataclass(frozen=True, slots=True)
class Way:
    """One way for a unit to go through disjoint parts: what to charge for it, and what it certainly meets."""

    charged: Bill
    met: Bill


def ways(cost: Cost[Price]) -> tuple[Way, ...]:
    """Every way a unit can go through the disjoint parts of a cost.

    Guarantees: given where all units went, a unit meets one part of each `DisjointParts`; averaging over the draw is
    joint convexity of δ, so the largest δ over all ways bounds the whole. When the ways are too many to try, all parts
    are charged together, which dominates each.
    """
    return tuple(Way(_bill(charged), _bill(met)) for charged, met in _ways(cost))


def _ways(cost: Cost[Price]) -> list[tuple[Cost[Price], Cost[Price]]]:
    plain: Cost[Price] = Cost(frozenset(line for line in cost.times if not isinstance(line[0], Largest)))
    found = [(plain, plain)]
    for price, times in sorted(cost.times, key=repr):
        if not isinstance(price, Largest):
            continue
        options = [way for part in price.costs for way in _ways(part)]
        if math.comb(len(options) + times - 1, times) * len(found) > MAX_WAYS:
            everything = times * Cost.total(charged for charged, _ in options)
            mixtures = [(everything, times * options[0][1])]
        else:
            mixtures = [
                (Cost.total(charged for charged, _ in chosen), Cost.total(met for _, met in chosen))
                for chosen in itertools.combinations_with_replacement(options, times)
            ]
        found = [(charged + more, met + meets) for charged, met in found for more, meets in mixtures]
    return found


def _bill(cost: Cost[Price]) -> Bill:
    """The lines of a cost in a fixed order, with all plain releases as one: their μ² add up."""
    lines = [line for line in sorted(cost.times, key=repr) if not isinstance(line[0], Largest)]
    plain = [(price, times) for price, times in lines if isinstance(price, Sampled) and price.rate == 1]
    rest = [(price, times) for price, times in lines if not (isinstance(price, Sampled) and price.rate == 1)]
    if plain:
        rest.append((Sampled(math.sqrt(math.fsum(times * (price.mu * price.mu) for price, times in plain))), 1))
    return tuple(rest)  # type: ignore[arg-type]  # no Largest is left
