"""What an accountant is, and the one walk over an event tree.

An accountant prices one leaf and turns a finished cost into ε. Everything between (composition, repetition, disjoint
parts, non-private events) happens here, once, for all of them. A cost is a formal sum: it stays symbolic until ε is
asked for, because a loss distribution must see all events before it can choose its grid.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

from apportion import _checks
from apportion.errors import UnpricedEvent
from apportion.events import ADJACENCIES, Adjacency, Composed, DisjointParts, Event, Leaf, NonPrivate, OneOf, Repeated

Status = Literal["proven", "estimate"]
P = TypeVar("P", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Largest(Generic[P]):
    """A price that is the largest of several costs: what disjoint parts cost together."""

    costs: tuple["Cost[P]", ...]


@dataclass(frozen=True, slots=True)
class Cost(Generic[P]):
    """How often each price is paid. Equal prices are merged, so repeated = listed, in any order, to the last bit."""

    times: frozenset[tuple[P | Largest[P], int]]
    infinite: bool = False

    @staticmethod
    def of(price: P, times: int = 1) -> "Cost[P]":
        return Cost(frozenset({(price, times)}))

    @staticmethod
    def total(costs: Iterable["Cost[P]"]) -> "Cost[P]":
        merged: dict[P | Largest[P], int] = {}
        infinite = False
        for cost in costs:
            infinite = infinite or cost.infinite
            for price, times in cost.times:
                merged[price] = merged.get(price, 0) + times
        return Cost(frozenset(merged.items()), infinite)

    def __add__(self, other: "Cost[P]") -> "Cost[P]":
        return Cost.total((self, other))

    def __rmul__(self, count: int) -> "Cost[P]":
        return Cost(frozenset((price, count * times) for price, times in self.times), self.infinite)

    @staticmethod
    def largest(costs: Iterable["Cost[P]"]) -> "Cost[P]":
        """Equal parts cost what one of them costs; different ones stay symbolic."""
        distinct = tuple(dict.fromkeys(costs))
        infinite = any(cost.infinite for cost in distinct)
        if len(distinct) == 1:
            return distinct[0]
        return Cost(frozenset({(Largest(tuple(sorted(distinct, key=repr))), 1)}), infinite)

    def fold(
        self,
        value: Callable[[P], V],
        weighted_sum: Callable[[Sequence[tuple[int, V]]], V],
        largest: Callable[[Sequence[V]], V],
    ) -> V:
        """Evaluate the formal sum; prices are visited in a fixed order, so the result is reproducible."""
        terms = []
        for price, times in sorted(self.times, key=repr):
            if isinstance(price, Largest):
                terms.append((times, largest([cost.fold(value, weighted_sum, largest) for cost in price.costs])))
            else:
                terms.append((times, value(price)))
        return weighted_sum(terms)


def sum_of_floats(cost: Cost[float]) -> float:
    """The value of a cost whose prices are numbers, correctly rounded."""

    def weighted_sum(terms: Sequence[tuple[int, float]]) -> float:
        return math.fsum(times * price for times, price in terms)

    def largest(values: Sequence[float]) -> float:
        return max(values)

    return cost.fold(value=float, weighted_sum=weighted_sum, largest=largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """ε lies at or below `upper`, which is what may be claimed; `lower`, where known, shows how tight that is."""

    upper: float
    lower: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy under an adjacency, and how we know."""

    accountant: str
    epsilon: float
    delta: float
    adjacency: Adjacency
    status: Status
    epsilon_lower: float | None = None
    details: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        lower = {} if self.epsilon_lower is None else {"epsilon_lower": self.epsilon_lower}
        return {
            "accountant": self.accountant,
            "epsilon": self.epsilon,
            **lower,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "status": self.status,
            **self.details,
        }


class Accountant(ABC, Generic[P]):
    """Prices leaves under one adjacency. A subclass is a leaf of the class tree: never inherit from one.

    `price` raises `UnpricedEvent` (through `unpriced`) for what it has no proven bound for; it never guesses.
    """

    name: ClassVar[str]
    status: ClassVar[Status] = "proven"

    def __init__(self, adjacency: Adjacency) -> None:
        _checks.choice("adjacency", adjacency, ADJACENCIES)
        self.adjacency: Adjacency = adjacency

    @abstractmethod
    def price(self, leaf: Leaf) -> Cost[P]:
        """What this one mechanism costs."""

    @abstractmethod
    def epsilon(self, cost: Cost[P], delta: float) -> Interval:
        """ε at `delta` for a finite, non-empty cost; the upper end errs upwards only."""

    def details(self, cost: Cost[P], delta: float) -> Mapping[str, Any]:
        """Further facts worth printing beside ε."""
        return {}

    def cost(self, event: Event) -> Cost[P]:
        return walk(event, self.price, self.chosen)

    def chosen(self, options: Sequence[Cost[P]]) -> Cost[P]:
        """What one of `options` costs, when earlier outputs may decide which.

        The largest, for prices that are numbers or numbers at each order: the bound then holds given any earlier output.
        """
        return Cost.largest(options)

    def guarantee(self, event: Event, delta: float) -> Guarantee:
        _checks.probability("delta", delta)
        cost = self.cost(event)
        details: Mapping[str, Any] = {}
        if cost.infinite:
            interval = Interval(upper=math.inf)
        elif not cost.times:
            interval = Interval(upper=0.0, lower=0.0)
        else:
            interval, details = self.epsilon(cost, delta), self.details(cost, delta)
        return Guarantee(
            accountant=self.name,
            epsilon=interval.upper,
            epsilon_lower=interval.lower,
            delta=delta,
            adjacency=self.adjacency,
            status=self.status,
            details=details,
        )

    def unpriced(self, leaf: Leaf, why: str) -> UnpricedEvent:
        return UnpricedEvent(f"{self.name} does not price {type(leaf).__name__} under {self.adjacency}: {why}")


def walk(
    event: Event,
    price: Callable[[Leaf], Cost[P]],
    chosen: Callable[[Sequence[Cost[P]]], Cost[P]] = Cost.largest,
) -> Cost[P]:
    """The cost of a whole event tree. This is the only place where composition is decided."""
    match event:
        case Composed(events=events):
            return Cost.total(walk(inner, price, chosen) for inner in events)
        case Repeated(event=inner, count=count):
            return count * walk(inner, price, chosen)
        case DisjointParts(parts=parts):
            return Cost.largest(walk(part, price, chosen) for part in parts)
        case OneOf(options=options):
            return chosen([walk(option, price, chosen) for option in options])
        case NonPrivate():
            return Cost(frozenset(), infinite=True)
        case _:
            return price(event)
