"""Caps under which noise may be chosen while training runs, from the outputs so far.

A filter is asked before each event whether the total would stay within the cap. What is guaranteed is the **cap**, not
the realised sum: how much was spent may itself depend on the data through earlier outputs. Filters have no state; what
was spent is read from the events.

Only totals that add up along every path, at a parameter fixed beforehand, may be capped: ρ, Σμ², and the Rényi
divergence at one order. Loss distributions composed along the realised path, or the best order picked afterwards, are
not valid here.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from apportion import _checks
from apportion.accounting import conversions
from apportion.accounting.accountant import Cost, Guarantee, sum_of_floats, walk
from apportion.accounting.gaussian import Gaussian
from apportion.accounting.renyi import Renyi
from apportion.accounting.zcdp import ZeroConcentrated
from apportion.budget import RELATIVE_SLACK
from apportion.errors import InvalidArgument, UnpricedEvent
from apportion.events import ADJACENCIES, Adjacency, Composed, Event, Leaf, PoissonEpoch, RepeatAndSelect


class Filter(ABC):
    """A cap. A subclass is a frozen dataclass whose fields are public and fixed in the plan."""

    __slots__ = ()
    kind: ClassVar[str]
    adjacency: Adjacency

    @property
    @abstractmethod
    def cap(self) -> float:
        """The capped number."""

    @abstractmethod
    def cost(self, events: Sequence[Event]) -> float:
        """What these events add up to, in the cap's unit, from above; infinite for what is not private."""

    @abstractmethod
    def guarantee(self, delta: float) -> Guarantee:
        """What holds however the noise was chosen under the cap."""

    def admits(self, event: Event, spent: Sequence[Event] = ()) -> bool:
        """Whether `event` may follow `spent`: the total, summed exactly, stays within the cap up to rounding."""
        return self.cost((*spent, event)) <= self.cap * (1 + RELATIVE_SLACK)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind} | {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]  # every subclass is a dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConcentratedFilter(Filter):
    """Σρ ≤ `rho`.

    Guarantees: the whole adaptive interaction is `rho`-zCDP (Feldman–Zrnic 2021, arXiv 2008.11193, Thm 3.1 at every
    order at once; Whitehouse et al. 2023). Poisson steps are refused: ρ knows no amplification.
    """

    kind: ClassVar[str] = "zcdp-filter"
    rho: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", _checks.positive("rho", self.rho))
        _checks.choice("adjacency", self.adjacency, ADJACENCIES)

    @property
    def cap(self) -> float:
        return self.rho

    def cost(self, events: Sequence[Event]) -> float:
        accountant = ZeroConcentrated(self.adjacency)
        return _sum(events, lambda leaf: accountant.price(_without_sampling(leaf, self.kind)))

    def guarantee(self, delta: float) -> Guarantee:
        epsilon = conversions.epsilon_of_rho(self.cap * (1 + RELATIVE_SLACK), _checks.probability("delta", delta))
        return _guarantee(self, epsilon, delta, {"rho": self.rho})


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianFilter(Filter):
    """Σμ² = Σ1/σ² ≤ `mu_squared`.

    Guarantees: the whole adaptive interaction is √`mu_squared`-GDP, if every mechanism is a Gaussian release
    (Smith–Thakurta 2022, arXiv 2210.17520; Koskela et al. 2023, arXiv 2209.15596). Poisson steps are refused.
    """

    kind: ClassVar[str] = "gaussian-filter"
    mu_squared: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu_squared", _checks.positive("mu_squared", self.mu_squared))
        _checks.choice("adjacency", self.adjacency, ADJACENCIES)

    @classmethod
    def of_budget(cls, *, epsilon: float, delta: float, adjacency: Adjacency) -> "GaussianFilter":
        """The largest cap whose guarantee is (ε, δ)."""
        mu = conversions.mu_of_epsilon(_checks.positive("epsilon", epsilon), _checks.probability("delta", delta))
        return cls(mu_squared=mu * mu / (1 + 4 * RELATIVE_SLACK), adjacency=adjacency)

    @property
    def cap(self) -> float:
        return self.mu_squared

    def cost(self, events: Sequence[Event]) -> float:
        accountant = Gaussian(self.adjacency)
        return _sum(events, lambda leaf: accountant.price(_without_sampling(leaf, self.kind)))

    def guarantee(self, delta: float) -> Guarantee:
        mu = math.sqrt(self.cap * (1 + RELATIVE_SLACK))
        epsilon = conversions.epsilon_of_mu(mu, _checks.probability("delta", delta))
        return _guarantee(self, epsilon, delta, {"mu": math.sqrt(self.mu_squared)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiFilter(Filter):
    """ΣD_α ≤ `divergence` at the one order α = `order`, fixed before the first event.

    Guarantees: the whole adaptive interaction has Rényi divergence at most `divergence` at that order (Feldman–Zrnic
    2021, arXiv 2008.11193, Thm 3.1; Lécuyer 2021, arXiv 2103.01379). The only filter that credits secret sampling.
    """

    kind: ClassVar[str] = "renyi-filter"
    order: float
    divergence: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", _checks.number("order", self.order))
        if self.order <= 1:
            raise InvalidArgument(f"order must be greater than 1, got {self.order!r}")
        object.__setattr__(self, "divergence", _checks.positive("divergence", self.divergence))
        _checks.choice("adjacency", self.adjacency, ADJACENCIES)

    @property
    def cap(self) -> float:
        return self.divergence

    def cost(self, events: Sequence[Event]) -> float:
        return Renyi(self.adjacency).divergence(Composed(events=tuple(events)), self.order)

    def guarantee(self, delta: float) -> Guarantee:
        order, divergence = np.array([self.order]), np.array([self.cap * (1 + RELATIVE_SLACK)])
        epsilons = conversions.epsilons_of_divergences(order, divergence, _checks.probability("delta", delta))
        return _guarantee(self, float(epsilons[0]), delta, {"order": self.order, "divergence": self.divergence})


KINDS: Mapping[str, type[Filter]] = {cls.kind: cls for cls in (ZeroConcentratedFilter, GaussianFilter, RenyiFilter)}


def from_json(data: Any) -> Filter:
    """The inverse of `Filter.to_json`. Unknown kinds, unknown fields and missing fields are refused."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InvalidArgument(f"unknown filter kind {kind!r:.80}; known: {', '.join(KINDS)}")
    expected = {field.name for field in fields(cls)}  # type: ignore[arg-type]  # every subclass is a dataclass
    found = set(data) - {"kind"}
    if found != expected:
        raise InvalidArgument(f"{kind} must have the fields {sorted(expected)}, got {sorted(map(str, found))!r:.200}")
    return cls(**{name: data[name] for name in expected})


def _without_sampling(leaf: Leaf, kind: str) -> Leaf:
    if isinstance(leaf, PoissonEpoch | RepeatAndSelect):
        raise UnpricedEvent(f"a {kind} does not price {type(leaf).__name__}; use a renyi-filter at an order fixed now")
    return leaf


def _sum(events: Sequence[Event], price: Any) -> float:
    cost: Cost[float] = walk(Composed(events=tuple(events)), price)
    return math.inf if cost.infinite else sum_of_floats(cost)


def _guarantee(cap: Filter, epsilon: float, delta: float, details: Mapping[str, Any]) -> Guarantee:
    return Guarantee(
        accountant=cap.kind,
        epsilon=epsilon,
        delta=delta,
        adjacency=cap.adjacency,
        status="proven",
        details=details,
    )
