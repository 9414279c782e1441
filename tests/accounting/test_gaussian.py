import math

import pytest
from dp_accounting import gaussian_mechanism

from apportion.accounting.gaussian import Gaussian
from apportion.errors import UnpricedEvent
from apportion.events import (
    Composed,
    DisjointParts,
    ExponentialMechanism,
    GaussianRelease,
    PartitionEpoch,
    PoissonEpoch,
    Repeated,
    ShuffleEpoch,
)


@pytest.mark.parametrize("event", [ShuffleEpoch(sigma=6.0, batches=100), PartitionEpoch(sigma=6.0, batches=100)])
def test_400_epochs_of_the_paper_s_noise(event: ShuffleEpoch | PartitionEpoch) -> None:
    found = Gaussian("zero-out").guarantee(Repeated(event=event, count=400), 1e-5)
    assert found.epsilon == pytest.approx(19.131, abs=1e-3)
    assert found.epsilon == pytest.approx(gaussian_mechanism.get_epsilon_gaussian(6 / 20, 1e-5), rel=1e-6)
    assert found.details["mu"] == pytest.approx(20 / 6)


def test_different_noise_adds_up_in_mu_squared() -> None:
    event = Composed(events=tuple(GaussianRelease(sigma=sigma) for sigma in (2.0, 3.0, 6.0)))
    assert Gaussian("add-remove").guarantee(event, 1e-5).details["mu"] == pytest.approx(math.sqrt(14 / 36))


def test_a_poisson_epoch_pays_for_every_step() -> None:
    event = PoissonEpoch(sigma=6.0, rate=0.01, steps=400)
    assert Gaussian("add-remove").guarantee(event, 1e-5).details["mu"] == pytest.approx(20 / 6)


def test_disjoint_parts_cost_the_noisiest_part_s_complement() -> None:
    event = DisjointParts(parts=(GaussianRelease(sigma=2.0), GaussianRelease(sigma=5.0)))
    assert Gaussian("add-remove").guarantee(event, 1e-5).details["mu"] == pytest.approx(0.5)


def test_replacing_a_unit_moves_a_sum_twice_as_far_and_a_histogram_by_the_square_root_of_two() -> None:
    replaced = Gaussian("replace-one")
    assert replaced.guarantee(GaussianRelease(sigma=4.0), 1e-5).details["mu"] == pytest.approx(0.5)
    histogram = GaussianRelease(sigma=4.0, replace_one=math.sqrt(2))
    assert replaced.guarantee(histogram, 1e-5).details["mu"] == pytest.approx(math.sqrt(2) / 4)
    assert replaced.guarantee(ShuffleEpoch(sigma=4.0, batches=3), 1e-5).details["mu"] == pytest.approx(0.5)


def test_it_refuses_what_is_not_gaussian() -> None:
    with pytest.raises(UnpricedEvent, match="gaussian does not price ExponentialMechanism"):
        Gaussian("zero-out").guarantee(ExponentialMechanism(epsilon=1.0), 1e-5)
