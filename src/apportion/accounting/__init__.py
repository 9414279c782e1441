"""From events to guarantees: which accountants are valid, and which one is tightest.

To add an accountant: one file with one class that prices one leaf, and a line in `PROVEN` or `ESTIMATES`.
"""

from typing import Any

from apportion.accounting.accountant import Accountant, Cost, Guarantee, Interval, walk
from apportion.accounting.gaussian import Gaussian
from apportion.accounting.zcdp import ZeroConcentrated
from apportion.errors import UnpricedEvent
from apportion.events import Adjacency, Event

__all__ = [
    "PROVEN",
    "Accountant",
    "Cost",
    "Gaussian",
    "Guarantee",
    "Interval",
    "ZeroConcentrated",
    "certifying_epsilon",
    "guarantees",
    "tightest",
    "walk",
]

# Those that may certify, in the order in which they are shown.
PROVEN: tuple[type[Accountant[Any]], ...] = (ZeroConcentrated, Gaussian)


def guarantees(event: Event, delta: float, adjacency: Adjacency) -> tuple[Guarantee, ...]:
    """What each proven accountant that prices every part of `event` says, tightest first."""
    found = []
    refusals = []
    for accountant in PROVEN:
        try:
            found.append(accountant(adjacency).guarantee(event, delta))
        except UnpricedEvent as refusal:
            refusals.append(str(refusal))
    if not found:
        raise UnpricedEvent("no accountant has a proven price for this:\n" + "\n".join(refusals))
    return tuple(sorted(found, key=lambda guarantee: guarantee.epsilon))


def tightest(event: Event, delta: float, adjacency: Adjacency) -> Guarantee:
    return guarantees(event, delta, adjacency)[0]


def certifying_epsilon(event: Event, delta: float, adjacency: Adjacency) -> float:
    """The ε that will be certified for `event`, for solvers that ask many times."""
    return tightest(event, delta, adjacency).epsilon
