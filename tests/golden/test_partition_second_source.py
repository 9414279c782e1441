"""The partition goldens from a formula that shares nothing with the accountant: the central limit theorem.

Over many epochs ln Y is nearly Gaussian, so the run is nearly μ-GDP with μ² = Σ Var(Y_e) (Dong, Roth and Su 2019), and the
variance of a mean of k independent lognormals of mean 1 is (e^(1/σ²) − 1)/k.
"""

import math

import pytest

from apportion.accounting import LossDistribution
from apportion.accounting.conversions import epsilon_of_mu
from apportion.events import Composed, PartitionEpoch

BATCHES, DELTA = 100, 1e-5
SETTINGS = {
    "sigma 6": [6.0] * 400,
    "uniform": [8.0] * 100,
    "time": [10 / (1 + 0.05 * e) for e in range(38)],
    "step": [10 * 0.6 ** (e // 10) for e in range(31)],
    "exponential": [10 * math.exp(-0.01 * e) for e in range(71)],
    "polynomial": [8 * (1 - e / 100) ** 3 + 2 for e in range(44)],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_interval_agrees_with_the_central_limit_theorem(name: str) -> None:
    sigmas = SETTINGS[name]
    limit = epsilon_of_mu(math.sqrt(math.fsum(math.expm1(1 / s**2) for s in sigmas) / BATCHES), DELTA)
    event = Composed(events=tuple(PartitionEpoch(sigma=s, batches=BATCHES) for s in sigmas))
    found = LossDistribution("add-remove").guarantee(event, DELTA)
    assert found.epsilon_lower is not None
    assert found.epsilon == pytest.approx(limit, rel=2e-3)
    assert found.epsilon_lower == pytest.approx(limit, rel=2e-3)
