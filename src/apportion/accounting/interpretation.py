"""What a guarantee means to an attacker: error rates of the best test, and beliefs after seeing the model.

A privacy profile is a set of points (ε, δ), each of which holds. The more points, the sharper the picture; one point is
enough for a valid one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apportion import _checks
from apportion.accounting.loss_distribution import LossDistribution
from apportion.errors import UnpricedEvent
from apportion.events import Adjacency, Event

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
PRIORS = (0.01, 0.5)
OF_WHAT_RAN = "the loss distribution of what ran"
_PROFILE_POINTS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Points (ε, δ) that all hold; `source` says where they come from."""

    points: tuple[tuple[float, float], ...]
    source: str

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The most that any test between neighbours can reach at this false-positive rate.

        Guarantees: (ε, δ)-DP bounds the rate by e^ε·α + δ and by 1 − e^(−ε)(1 − δ − α) (Kairouz, Oh and Viswanath 2015);
        every point holds, so the least of all bounds does.
        """
        alpha = false_positive_rate
        bounds = [1.0]
        for epsilon, delta in self.points:
            if epsilon < 700:
                bounds.append(math.exp(epsilon) * alpha + delta)
            bounds.append(1 - math.exp(-epsilon) * max(0.0, 1 - delta - alpha))
        return min(bounds)

    def tradeoff(self, rates: Sequence[float]) -> list[float]:
        return [self.true_positive_rate(rate) for rate in rates]


def profile_of_pair(epsilon: float, delta: float) -> Profile:
    """The one point that a stated guarantee gives."""
    point = (_checks.at_least("epsilon", epsilon, 0), _checks.probability("delta", delta))
    return Profile(points=(point,), source="the stated epsilon and delta")


def profile_of_event(event: Event, adjacency: Adjacency, epsilon: float, delta: float) -> Profile:
    """The profile of what actually ran, from its loss distribution where there is one."""
    accountant = LossDistribution(adjacency, lower_bound=False)
    try:
        cost = accountant.cost(event)
        grid = np.concatenate([[0.0], np.geomspace(max(epsilon, 1e-3) / 50, 2 * max(epsilon, 1e-3), _PROFILE_POINTS)])
        points = tuple((float(e), min(1.0, accountant.delta(cost, float(e)))) for e in grid)
    except UnpricedEvent:
        return profile_of_pair(epsilon, delta)
    return Profile(points=(*points, (epsilon, delta)), source=OF_WHAT_RAN)


def posterior(prior: float, epsilon: float) -> float:
    """The most that a belief of `prior` can become after seeing the output, except with probability about δ.

    Bayes' rule: ε-DP lets the odds grow by a factor of at most e^ε.
    """
    _checks.probability("prior", prior)
    return prior / (prior + (1 - prior) * math.exp(-epsilon))
