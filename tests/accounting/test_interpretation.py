import math

import pytest
from scipy.special import ndtr, ndtri

from apportion.accounting.conversions import epsilon_of_mu
from apportion.accounting.interpretation import posterior, profile_of_event, profile_of_pair
from apportion.errors import InvalidArgument
from apportion.events import GaussianRelease, PartitionEpoch, PoissonLaw, RepeatAndSelect, Repeated


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("sigma", [0.7, 1.0, 4.0])
def test_a_gaussian_attacker_is_bounded_by_the_neyman_pearson_test(sigma: float, rate: float) -> None:
    """The best test of N(0, 1) against N(1/σ, 1) has power Φ(Φ⁻¹(α) + 1/σ): never above our bound, and close to it."""
    profile = profile_of_event(GaussianRelease(sigma=sigma), "add-remove", epsilon_of_mu(1 / sigma, 1e-5), 1e-5)
    exact = float(ndtr(ndtri(rate) + 1 / sigma))
    assert exact - 1e-9 <= profile.true_positive_rate(rate) <= exact * 1.02 + 1e-4


def test_secret_bins_leave_the_attacker_less() -> None:
    plain = profile_of_event(GaussianRelease(sigma=1.0), "add-remove", 3.0, 1e-5)
    binned = profile_of_event(PartitionEpoch(sigma=1.0, batches=50), "add-remove", 1.0, 1e-5)
    assert binned.true_positive_rate(0.01) < plain.true_positive_rate(0.01)


def test_one_pair_gives_the_textbook_bound() -> None:
    profile = profile_of_pair(1.0, 1e-5)
    assert profile.true_positive_rate(0.01) == pytest.approx(0.01 * math.e + 1e-5)
    assert profile.true_positive_rate(0.9) == pytest.approx(1 - math.exp(-1) * (1 - 1e-5 - 0.9))
    assert profile.true_positive_rate(1.0) == 1.0
    assert profile_of_pair(2000.0, 1e-5).true_positive_rate(0.001) == 1.0


def test_what_has_no_loss_distribution_falls_back_on_the_stated_pair_and_says_so() -> None:
    event = Repeated(event=RepeatAndSelect(base=GaussianRelease(sigma=9.0), runs=PoissonLaw(mean=5.0)), count=1)
    assert "stated" in profile_of_event(event, "add-remove", 2.0, 1e-5).source


def test_beliefs_follow_bayes() -> None:
    for prior in (0.01, 0.5):
        odds = prior / (1 - prior) * math.exp(2.0)
        assert posterior(prior, 2.0) == pytest.approx(odds / (1 + odds))
    assert posterior(0.5, 800.0) == 1.0
    with pytest.raises(InvalidArgument, match="prior"):
        posterior(1.0, 1.0)
