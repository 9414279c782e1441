"""What a guarantee for one unit is worth to a group of several: a transformation of a guarantee, not an event."""

import math
from collections.abc import Callable

from apportion import _checks
from apportion.accounting import conversions
from apportion.accounting.accountant import Guarantee, sum_of_floats
from apportion.accounting.gaussian import Gaussian
from apportion.accounting.loss_distribution import LossDistribution
from apportion.accounting.renyi import Renyi
from apportion.accounting.zcdp import ZeroConcentrated
from apportion.errors import UnpricedEvent
from apportion.events import Adjacency, Event

_SMALLEST_DELTA = 1e-290
_HALVINGS = 24


def group_guarantee(event: Event, delta: float, adjacency: Adjacency, size: int) -> Guarantee:
    """The smallest proven ε at `delta` when `size` units change together.

    Guarantees: μ-GDP is gμ-GDP for groups of g (Dong, Roth and Su 2019), ρ-zCDP is g²ρ-zCDP (Bun and Steinke 2016), both
    from prices without amplification; any (ε, δ) is (gε, δ(e^(gε) − 1)/(e^ε − 1)). An amplified μ is never scaled.
    """
    _checks.probability("delta", delta)
    size = _checks.count("size", size)
    found: list[tuple[float, str]] = []
    for rule in (_gaussian, _zero_concentrated, _pairs):
        try:
            found.append(rule(event, delta, adjacency, size))
        except UnpricedEvent:
            continue
    if not found:
        raise UnpricedEvent("no accountant has a proven price for this event, so none for groups")
    epsilon, accountant = min(found)
    return Guarantee(
        accountant=accountant,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        status="proven",
        details={"group_size": size},
    )


def _gaussian(event: Event, delta: float, adjacency: Adjacency, size: int) -> tuple[float, str]:
    cost = Gaussian(adjacency).cost(event)
    mu = math.inf if cost.infinite else math.sqrt(sum_of_floats(cost))
    return (conversions.epsilon_of_mu(size * mu, delta) if math.isfinite(mu) else math.inf), Gaussian.name


def _zero_concentrated(event: Event, delta: float, adjacency: Adjacency, size: int) -> tuple[float, str]:
    accountant = ZeroConcentrated(adjacency)
    rho = accountant.rho(accountant.cost(event))
    return (conversions.epsilon_of_rho(size**2 * rho, delta) if math.isfinite(rho) else math.inf), accountant.name


def _pairs(event: Event, delta: float, adjacency: Adjacency, size: int) -> tuple[float, str]:
    """From (ε, δ₁) pairs of the whole event: a smaller δ₁ costs ε, a larger one is multiplied beyond `delta`."""
    accountant = _pricing(event, adjacency)

    def epsilon_of_one(delta_of_one: float) -> float:
        return accountant.guarantee(event, delta_of_one).epsilon

    delta_of_one = _largest_admitted(epsilon_of_one, delta, size)
    return (size * epsilon_of_one(delta_of_one) if delta_of_one else math.inf), accountant.name


def _pricing(event: Event, adjacency: Adjacency) -> LossDistribution | Renyi:
    accountant = LossDistribution(adjacency, lower_bound=False)
    try:
        accountant.cost(event)
    except UnpricedEvent:
        return Renyi(adjacency)
    return accountant


def _largest_admitted(epsilon_of_one: Callable[[float], float], delta: float, size: int) -> float:
    """A δ₁ with δ₁·(e^(gε) − 1)/(e^ε − 1) ≤ `delta` at its ε, nearly the largest; 0 if there is none."""

    def admitted(log_delta_of_one: float) -> bool:
        epsilon = epsilon_of_one(math.exp(log_delta_of_one))
        return log_delta_of_one + _log_growth(epsilon, size) <= math.log(delta)

    low, high = math.log(_SMALLEST_DELTA), math.log(delta / size)
    if admitted(high):
        return math.exp(high)
    start = high
    for _ in range(_HALVINGS):  # outwards first: the growth factor is often modest
        start = max(2 * start, low)
        if admitted(start) or start == low:
            break
    if not admitted(start):
        return 0.0
    low = start
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if admitted(middle) else (low, middle)
    return math.exp(low)


def _log_growth(epsilon: float, size: int) -> float:
    """ln((e^(gε) − 1)/(e^ε − 1)), which is ln g at ε = 0."""
    if epsilon == 0:
        return math.log(size)
    if epsilon > 30:
        return (size - 1) * epsilon + 1e-12 * size
    exponent = size * epsilon
    numerator = math.log(math.expm1(exponent)) if exponent < 700 else exponent
    return numerator - math.log(math.expm1(epsilon))
