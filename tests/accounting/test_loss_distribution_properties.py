"""Laws of the accountant over the whole range of parameters: finite, ordered, monotone, never above the Gaussian, fast."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.accounting import conversions
from apportion.accounting.accountant import Interval
from apportion.accounting.loss_distribution import LossDistribution
from apportion.accounting.unamplified import releases
from apportion.events import Event, PartitionEpoch, PoissonEpoch, Repeated

SLOWEST = 20.0  # seconds; a shared machine needs the room, a query takes a few at the very worst


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))


def whole(low: int, high: int) -> st.SearchStrategy[int]:
    return logarithmic(low, high).map(round)


sigmas = logarithmic(0.3, 1e4)
rates = logarithmic(1e-6, 1.0)
deltas = logarithmic(1e-12, 0.1)
poisson = st.builds(PoissonEpoch, sigma=sigmas, rate=rates, steps=whole(1, 1_000_000))
partition = st.builds(
    lambda sigma, batches, count: Repeated(event=PartitionEpoch(sigma=sigma, batches=batches), count=count),
    sigmas,
    whole(1, 10_000),
    whole(1, 10_000),
)


def interval(event: Event, delta: float) -> Interval:
    accountant = LossDistribution("add-remove")
    return accountant.epsilon(accountant.cost(event), delta)


def plain_epsilon(event: Event, delta: float) -> float:
    leaf, count = (event.event, event.count) if isinstance(event, Repeated) else (event, 1)
    mu, times = releases(leaf, "add-remove")
    return conversions.epsilon_of_mu(mu * math.sqrt(times * count), delta)


def at_most(lower: Interval, upper: Interval) -> bool:
    """The true value of the first may be at most that of the second."""
    assert lower.lower is not None
    return lower.lower <= upper.upper * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("events", [poisson, partition], ids=["poisson", "partition"])
@pytest.mark.parametrize("examples", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_finite_ordered_and_never_above_the_gaussian(events: st.SearchStrategy[Event], examples: int) -> None:
    settings(max_examples=examples, deadline=None)(given(events, deltas)(check_bounds))()


def check_bounds(event: Event, delta: float) -> None:
    start = time.perf_counter()
    found = interval(event, delta)
    assert time.perf_counter() - start < SLOWEST
    assert found.lower is not None
    assert 0 <= found.lower <= found.upper < math.inf
    assert found.upper <= plain_epsilon(event, delta) * (1 + 1e-9)


@pytest.mark.parametrize("examples", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_monotone_in_noise_steps_and_delta(examples: int) -> None:
    parameters = (sigmas, st.floats(1.0, 3.0), rates, whole(1, 100_000), whole(1, 1000), deltas, st.floats(1.0, 100.0))
    settings(max_examples=examples, deadline=None)(given(*parameters)(check_monotone))()


def check_monotone(
    sigma: float, factor: float, rate: float, steps: int, batches: int, delta: float, looser: float
) -> None:
    for make in (
        lambda s, n: PoissonEpoch(sigma=s, rate=rate, steps=n),
        lambda s, n: Repeated(event=PartitionEpoch(sigma=s, batches=batches), count=n),
    ):
        found = interval(make(sigma, steps), delta)
        assert at_most(interval(make(sigma * factor, steps), delta), found)
        assert at_most(interval(make(sigma, max(steps // 2, 1)), delta), found)
        assert at_most(interval(make(sigma, steps), min(delta * looser, 0.5)), found)


CORNERS = [
    (PoissonEpoch(sigma=0.3, rate=1e-6, steps=1_000_000), 1e-5),
    (PoissonEpoch(sigma=0.3, rate=1e-6, steps=1), 1e-12),
    (PoissonEpoch(sigma=0.3, rate=0.5, steps=1_000_000), 1e-12),
    (PoissonEpoch(sigma=0.3, rate=0.999999, steps=1_000_000), 0.1),
    (PoissonEpoch(sigma=1e4, rate=1e-6, steps=1_000_000), 1e-12),
    (PoissonEpoch(sigma=1e4, rate=1.0, steps=1_000_000), 1e-12),
    (PoissonEpoch(sigma=1e4, rate=1e-6, steps=1), 0.1),
    (PartitionEpoch(sigma=0.3, batches=2), 1e-12),
    (PartitionEpoch(sigma=0.3, batches=10_000), 1e-12),
    (Repeated(event=PartitionEpoch(sigma=0.3, batches=10_000), count=10_000), 1e-12),
    (Repeated(event=PartitionEpoch(sigma=0.3, batches=2), count=100), 0.1),
    (PartitionEpoch(sigma=1e4, batches=10_000), 1e-12),
    (Repeated(event=PartitionEpoch(sigma=1e4, batches=2), count=1_000_000), 1e-12),
]


@pytest.mark.parametrize(("event", "delta"), CORNERS)
def test_corners(event: Event, delta: float) -> None:
    check_bounds(event, delta)
