"""From events to guarantees: which accountants are valid, and which one is tightest.

To add an accountant: one file with one class that prices one leaf, and its name in `PROVEN` or `COMPARED`.
"""

from functools import lru_cache
from typing import Any

from apportion.accounting.accountant import Accountant, Cost, Guarantee, Interval, walk
from apportion.accounting.composition import Basic, StrongComposition
from apportion.accounting.gaussian import Gaussian
from apportion.accounting.loss_distribution import LossDistribution
from apportion.accounting.moments import Moments
from apportion.accounting.paper_estimate import PaperEstimate
from apportion.accounting.renyi import Renyi
from apportion.accounting.zcdp import ZeroConcentrated
from apportion.errors import UnpricedEvent
from apportion.events import Adjacency, Event

__all__ = [
    "COMPARED",
    "PROVEN",
    "Accountant",
    "Basic",
    "Cost",
    "Gaussian",
    "Guarantee",
    "Interval",
    "LossDistribution",
    "Moments",
    "PaperEstimate",
    "Renyi",
    "StrongComposition",
    "ZeroConcentrated",
    "certifying_epsilon",
    "guarantees",
    "tightest",
    "unamplified_epsilon",
    "walk",
]

# Those that may certify; of equal ones the first is named.
PROVEN: tuple[type[Accountant[Any]], ...] = (Gaussian, LossDistribution, Renyi, ZeroConcentrated, Basic)
# Those that people know: shown next to the others, looser or only estimates, never certified with.
COMPARED: tuple[type[Accountant[Any]], ...] = (Moments, StrongComposition, PaperEstimate)


# A plan is priced when it is made and again when it is certified: the same event, and pricing may take seconds.
@lru_cache(maxsize=16)
def guarantees(
    event: Event,
    delta: float,
    adjacency: Adjacency,
    accountants: tuple[type[Accountant[Any]], ...] = PROVEN,
    lower_bounds: bool = True,
) -> tuple[Guarantee, ...]:
    """What each accountant that prices every part of `event` says, smallest ε first.

    Without `lower_bounds` nothing says how tight a bound is, and pricing takes half as long.
    """
    found = []
    refusals = []
    for accountant in accountants:
        try:
            skipped = accountant is LossDistribution and not lower_bounds
            ready = LossDistribution(adjacency, lower_bound=False) if skipped else accountant(adjacency)
            found.append(ready.guarantee(event, delta))
        except UnpricedEvent as refusal:
            refusals.append(str(refusal))
    if not found:
        raise UnpricedEvent("no accountant has a proven price for this:\n" + "\n".join(refusals))
    return tuple(sorted(found, key=lambda guarantee: guarantee.epsilon))


def tightest(event: Event, delta: float, adjacency: Adjacency) -> Guarantee:
    """The smallest proven ε, and the accountant that proves it."""
    return guarantees(event, delta, adjacency)[0]


def certifying_epsilon(event: Event, delta: float, adjacency: Adjacency) -> float:
    """An ε that `tightest` will not exceed, without lower bounds, for solvers that ask many times."""
    try:
        return LossDistribution(adjacency, lower_bound=False).guarantee(event, delta).epsilon
    except UnpricedEvent:
        return tightest(event, delta, adjacency).epsilon


def unamplified_epsilon(event: Event, delta: float, adjacency: Adjacency) -> float:
    """An ε that `certifying_epsilon` will not exceed, in microseconds: where a search may start."""
    return Gaussian(adjacency).guarantee(event, delta).epsilon
