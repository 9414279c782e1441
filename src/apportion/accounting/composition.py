"""Composition of (ε, δ) guarantees: basic, the fallback for everything, and strong, the paper's comparison."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion.accounting.accountant import Accountant, Cost, Interval, Largest
from apportion.accounting.conversions import delta_of_mu, epsilon_of_mu
from apportion.accounting.renyi.accountant import Renyi, least_epsilon
from apportion.accounting.renyi.curves import Curve
from apportion.accounting.unamplified import releases
from apportion.accounting.zcdp import exponential_mechanism_range
from apportion.errors import UnpricedEvent
from apportion.events import ExponentialMechanism, Leaf, PoissonEpoch, RepeatAndSelect


class Step(ABC):
    """One mechanism, able to state its ε at any δ."""

    __slots__ = ()

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """From above; `delta` lies in (0, 1)."""


@dataclass(frozen=True, slots=True)
class GaussianStep(Step):
    """A release N(0, 1) against N(μ, 1) on a Poisson sample of the given rate (1: on everything)."""

    mu: float
    rate: float

    def epsilon(self, delta: float) -> float:
        """Exact for the release, then ln(1 + q(e^ε − 1)) at qδ (Balle–Barthe–Gaboardi 2018, Thm 8)."""
        if delta >= self.rate:
            return 0.0  # the sample misses the unit with probability 1 − q
        return _amplified(epsilon_of_mu(self.mu, delta / self.rate), self.rate)


@dataclass(frozen=True, slots=True)
class PureStep(Step):
    """A mechanism that is ε-DP without any δ."""

    range: float

    def epsilon(self, delta: float) -> float:
        return self.range


@dataclass(frozen=True, slots=True)
class SelectedStep(Step):
    """Repeat-and-select, by the Rényi accountant: no better (ε, δ) is known."""

    cost: Cost[Curve]

    def epsilon(self, delta: float) -> float:
        return least_epsilon(self.cost, delta).value


class Basic(Accountant[Step]):
    """Each event gets an equal share of δ and pays its own ε; the ε's add up. Prices the whole grammar, loosely.

    Guarantees: basic composition (Dwork–Roth 2014, Thm 3.16; adaptive: Dwork et al. 2006). Disjoint parts cost the
    largest part, at the same δ: only the part that holds the unit differs, and which one that is depends on it alone.
    """

    name = "basic"

    def price(self, leaf: Leaf) -> Cost[Step]:
        if isinstance(leaf, RepeatAndSelect):
            cost = Renyi(self.adjacency).price(leaf)
            return Cost(frozenset(), infinite=True) if cost.infinite else Cost.of(SelectedStep(cost))
        return _step(self, leaf)

    def epsilon(self, cost: Cost[Step], delta: float) -> Interval:
        return Interval(upper=_basic(cost, delta))


def _step(accountant: Accountant[Step], leaf: Leaf) -> Cost[Step]:
    if isinstance(leaf, ExponentialMechanism):
        return Cost.of(PureStep(exponential_mechanism_range(leaf, accountant.adjacency)))
    found = releases(leaf, accountant.adjacency)
    if isinstance(found, str):
        raise accountant.unpriced(leaf, found)
    mu, times = found
    rate = leaf.rate if isinstance(leaf, PoissonEpoch) and accountant.adjacency != "replace-one" else 1.0
    return Cost.of(GaussianStep(mu, rate), times)


def _basic(cost: Cost[Step], delta: float) -> float:
    """Σε at equal shares of δ. Disjoint parts are one event here, and divide their share again among their own."""
    needing = sum(times for price, times in cost.times if not isinstance(price, PureStep))
    share = delta / max(needing, 1)
    epsilons = []
    for price, times in cost.times:
        if isinstance(price, Largest):
            epsilons.append(times * max(_basic(part, share) for part in price.costs))
        else:
            epsilons.append(times * price.epsilon(share))
    return math.fsum(epsilons)


def _amplified(epsilon: float, rate: float) -> float:
    """ln(1 + q(e^ε − 1)), without overflow."""
    return math.log1p(rate * math.expm1(epsilon)) if epsilon < 30 else epsilon + math.log(rate + math.exp(-epsilon))


class StrongComposition(Accountant[Step]):
    """The paper's comparison: δ/Σq to each step, and 1e-10 on top of δ for the composition.

    An estimate, because those add up to a hair more than δ. The paper states no split; this one reproduces its 34.3.
    """

    name = "strong-composition"
    status = "estimate"

    def price(self, leaf: Leaf) -> Cost[Step]:
        return _strong_price(self, leaf)

    def epsilon(self, cost: Cost[Step], delta: float) -> Interval:
        def refuse_one_and_more(step: GaussianStep, share: float) -> float:
            epsilon = _classic_epsilon(step.mu, share)
            if epsilon >= 1:
                raise UnpricedEvent(
                    f"strong-composition does not price a step with epsilon = {epsilon:.3g}: the classical Gaussian "
                    "bound it uses is proven below 1 only; use more noise, or another accountant"
                )
            return epsilon

        return Interval(upper=_strong(cost, delta, 1e-10, refuse_one_and_more))


class StrongCompositionBestSplit(Accountant[Step]):
    """Strong composition with δ divided properly, at the best of many splits between the steps and the composition.

    Guarantees: advanced composition (Dwork–Rothblum–Vadhan 2010, Thm III.3; for unequal ε: Σε² for kε², Azuma) and
    amplification by sampling (Balle–Barthe–Gaboardi 2018, Thm 8). Every split is valid, so a coarse search is looser.
    """

    name = "strong-composition-best-split"

    def price(self, leaf: Leaf) -> Cost[Step]:
        return _strong_price(self, leaf)

    def epsilon(self, cost: Cost[Step], delta: float) -> Interval:
        return Interval(upper=min(self._epsilons(cost, delta)))

    def details(self, cost: Cost[Step], delta: float) -> Mapping[str, Any]:
        epsilons = self._epsilons(cost, delta)
        return {"delta_of_composition": delta * _SHARES[epsilons.index(min(epsilons))]}

    def _epsilons(self, cost: Cost[Step], delta: float) -> list[float]:
        return [_strong(cost, delta * (1 - share), delta * share, _checked_classic_epsilon) for share in _SHARES]


# What part of δ pays for the composition itself.
_SHARES = tuple(10 ** (-exponent / 10) for exponent in range(1, 60)) + tuple(1 - 0.1 * 2.0**-i for i in range(6))


def _strong_price(accountant: Accountant[Step], leaf: Leaf) -> Cost[Step]:
    if isinstance(leaf, RepeatAndSelect):
        raise accountant.unpriced(leaf, "it has no price at a fixed share of delta here; use renyi or basic")
    return _step(accountant, leaf)


def _classic_epsilon(mu: float, delta: float) -> float:
    """ε = μ√(2 ln(1.25/δ)), proven for ε < 1 (Dwork–Roth 2014, Thm A.1)."""
    return mu * math.sqrt(2 * math.log(1.25 / delta))


def _checked_classic_epsilon(step: GaussianStep, delta: float) -> float:
    """The classical ε if the exact δ confirms it (it does for ε < 1, and somewhat beyond); else the exact, larger ε."""
    epsilon = _classic_epsilon(step.mu, delta)
    return epsilon if delta_of_mu(step.mu, epsilon) <= delta else epsilon_of_mu(step.mu, delta)


@dataclass(frozen=True, slots=True)
class _Sums:
    rates: float = 0.0
    squares: float = 0.0
    drifts: float = 0.0


def _strong(
    cost: Cost[Step], delta: float, delta_of_composition: float, of_release: Callable[[GaussianStep, float], float]
) -> float:
    """√(2 ln(1/δ')·Σε²) + Σε(e^ε − 1), with δ₀ = δ/Σq for the release inside each sampled step."""
    share = delta / max(_sums(cost, lambda step: 0.0).rates, 1e-300)

    def of_step(step: Step) -> float:
        if not isinstance(step, GaussianStep):
            return step.epsilon(delta)
        return _amplified(of_release(step, share), step.rate) if share < 1 else 0.0

    sums = _sums(cost, of_step)
    return math.sqrt(2 * math.log(1 / delta_of_composition) * sums.squares) + sums.drifts


def _sums(cost: Cost[Step], epsilon_of: Callable[[Step], float]) -> _Sums:
    """Σq, Σε², Σε(e^ε − 1); of disjoint parts the largest of each, since ε grows with all three."""

    def value(step: Step) -> _Sums:
        epsilon = epsilon_of(step)
        drift = epsilon * math.expm1(epsilon) if epsilon < 700 else math.inf
        return _Sums(step.rate if isinstance(step, GaussianStep) else 0.0, epsilon * epsilon, drift)

    def weighted_sum(terms: Sequence[tuple[int, _Sums]]) -> _Sums:
        return _Sums(*(math.fsum(n * getattr(s, name) for n, s in terms) for name in _Sums.__slots__))

    def largest(parts: Sequence[_Sums]) -> _Sums:
        return _Sums(*(max(getattr(s, name) for s in parts) for name in _Sums.__slots__))

    return cost.fold(value=value, weighted_sum=weighted_sum, largest=largest)
