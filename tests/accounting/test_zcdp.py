import math

import numpy as np
import pytest

from apportion.accounting.zcdp import ZeroConcentrated
from apportion.events import (
    Adjacency,
    Composed,
    ExponentialMechanism,
    GaussianRelease,
    NonPrivate,
    PartitionEpoch,
    Repeated,
    ShuffleEpoch,
)


def test_the_paper_s_run() -> None:
    event = Repeated(event=ShuffleEpoch(sigma=6.0, batches=100), count=400)
    found = ZeroConcentrated("zero-out").guarantee(event, 1e-5)
    assert found.epsilon == pytest.approx(21.5506, abs=1e-4)  # the paper prints 21.5
    assert found.epsilon == pytest.approx(400 / 72 + 2 * math.sqrt(400 / 72 * math.log(1e5)), rel=1e-12)
    assert 19.131 < found.details["epsilon_renyi_conversion"] < found.epsilon


def test_the_paper_s_schedules_spend_what_the_paper_says() -> None:
    """ρ = .776463 in 71 epochs of σ = 10·e^(−.01 e), and .78125 in 100 epochs of σ = 8."""
    accountant = ZeroConcentrated("zero-out")
    decay = Composed(events=tuple(PartitionEpoch(sigma=10 * math.exp(-0.01 * e), batches=100) for e in range(71)))
    assert accountant.rho(accountant.cost(decay)) == pytest.approx(0.776463, abs=1e-6)
    geometric = (math.exp(71 * 0.02) - 1) / (math.exp(0.02) - 1) / 200
    assert accountant.rho(accountant.cost(decay)) == pytest.approx(geometric, rel=1e-12)
    uniform = Repeated(event=ShuffleEpoch(sigma=8.0, batches=100), count=100)
    assert accountant.rho(accountant.cost(uniform)) == 0.78125
    assert accountant.rho(accountant.cost(NonPrivate())) == math.inf


@pytest.mark.parametrize(
    ("counts", "adjacency", "expected"),
    [
        (False, "add-remove", 1 / 8),
        (True, "add-remove", 1 / 32),
        (True, "zero-out", 1 / 32),
        (True, "replace-one", 1 / 8),
    ],
)
def test_the_exponential_mechanism(counts: bool, adjacency: Adjacency, expected: float) -> None:
    accountant = ZeroConcentrated(adjacency)
    event = ExponentialMechanism(epsilon=1.0, counts=counts)
    assert accountant.rho(accountant.cost(event)) == pytest.approx(expected)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("counts", [False, True])
def test_the_exponential_mechanism_s_price_holds_for_mechanisms_computed_exactly(epsilon: float, counts: bool) -> None:
    """Random error counts and neighbours: D_α ≤ αρ at several orders, both directions."""
    rng = np.random.default_rng(3)
    accountant = ZeroConcentrated("add-remove")
    rho = accountant.rho(accountant.cost(ExponentialMechanism(epsilon=epsilon, counts=counts)))
    for _ in range(300):
        errors = rng.integers(0, 4, size=rng.integers(2, 6))
        change = rng.integers(0, 2, size=len(errors)) if counts else rng.integers(-1, 2, size=len(errors))
        p, q = (np.exp(-epsilon * z / 2) / np.sum(np.exp(-epsilon * z / 2)) for z in (errors, errors + change))
        for order in (1.1, 2.0, 8.0):
            for first, second in ((p, q), (q, p)):
                divergence = math.log(float(np.sum(first**order * second ** (1 - order)))) / (order - 1)
                assert divergence <= order * rho + 1e-12


def test_a_release_costs_half_of_mu_squared() -> None:
    accountant = ZeroConcentrated("replace-one")
    assert accountant.rho(accountant.cost(GaussianRelease(sigma=2.0))) == pytest.approx(0.5)
    assert accountant.rho(accountant.cost(PartitionEpoch(sigma=2.0, batches=9))) == pytest.approx(0.5)
