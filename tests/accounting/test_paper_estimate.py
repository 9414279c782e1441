import math

import pytest
from dp_accounting.rdp import rdp_privacy_accountant as google

from apportion.accounting.paper_estimate import PaperEstimate, why_out_of_range
from apportion.accounting.renyi import Renyi, sampled_gaussian
from apportion.errors import UnpricedEvent
from apportion.events import Composed, GaussianRelease, PartitionEpoch, PoissonEpoch, Repeated, ShuffleEpoch

ESTIMATE = PaperEstimate("add-remove")


def test_the_paper_s_run_gives_the_paper_s_number() -> None:
    found = ESTIMATE.guarantee(Repeated(event=PoissonEpoch(sigma=6.0, rate=0.01, steps=100), count=400), 1e-5)
    rho = 40_000 * 0.01**2 / 36
    assert found.epsilon == pytest.approx(2.37316, abs=1e-5)
    assert found.epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)), rel=1e-12)
    assert found.status == "estimate"
    assert found.details["largest_order"] == pytest.approx(36 * math.log(1 / 0.06) + 1)


def test_few_steps_are_limited_by_the_largest_order() -> None:
    """The second case of the paper's Theorem 3: δ < exp(−ρ̂(u_α − 1)²)."""
    rho, largest = 0.01**2 / 4, 4 * math.log(1 / 0.02) + 1
    assert rho * (largest - 1) ** 2 < math.log(1e5)
    found = ESTIMATE.guarantee(PoissonEpoch(sigma=2.0, rate=0.01, steps=1), 1e-5).epsilon
    assert found == pytest.approx(rho * largest - math.log(1e-5) / (largest - 1), rel=1e-12)


def test_different_noise_adds_up_and_keeps_the_smallest_range_of_orders() -> None:
    """The second composition case."""
    event = Composed(
        events=(PoissonEpoch(sigma=2.0, rate=0.01, steps=500), PoissonEpoch(sigma=4.0, rate=0.01, steps=900))
    )
    rho, largest = 500 * 1e-4 / 4 + 900 * 1e-4 / 16, 4 * math.log(50) + 1
    found = ESTIMATE.guarantee(event, 1e-5)
    assert found.details["rho"] == pytest.approx(rho)
    assert found.details["largest_order"] == pytest.approx(largest)
    assert found.epsilon == pytest.approx(rho * largest + math.log(1e5) / (largest - 1), rel=1e-12)


def test_the_conjectured_bound_has_a_counterexample() -> None:
    sigma, rate, order = 1.0, 0.049, 4
    assert rate <= 1 / (16 * sigma)
    assert order <= sigma**2 * math.log(1 / (rate * sigma)) + 1
    bound = order * rate**2 / sigma**2
    by_formula = math.log(
        sum(
            math.comb(order, j) * rate**j * (1 - rate) ** (order - j) * math.exp(j * (j - 1) / (2 * sigma**2))
            for j in range(order + 1)
        )
    ) / (order - 1)
    (by_dp_accounting,) = google._compute_rdp_poisson_subsampled_gaussian(rate, sigma, [order])
    (ours,) = sampled_gaussian.divergences(sigma, rate, (float(order),))
    assert bound == pytest.approx(0.009604, abs=1e-6)
    assert by_formula == pytest.approx(0.010903, abs=1e-6)
    assert by_formula == pytest.approx(by_dp_accounting, rel=1e-9) == pytest.approx(ours, rel=1e-9)
    assert by_formula > bound


@pytest.mark.parametrize(
    ("sigma", "rate", "why"), [(1.0, 0.049, "at least 1.11"), (1.109, 0.001, "at least 1.11"), (6.0, 0.0105, "at most")]
)
def test_it_is_refused_outside_its_range(sigma: float, rate: float, why: str) -> None:
    event = PoissonEpoch(sigma=sigma, rate=rate, steps=100)
    with pytest.raises(UnpricedEvent, match=why):
        ESTIMATE.guarantee(event, 1e-5)
    assert why in str(why_out_of_range(sigma, rate))
    anyway = PaperEstimate("add-remove", outside_its_range=True).guarantee(event, 1e-5)
    assert 0 < anyway.epsilon < math.inf
    assert anyway.status == "estimate"


def test_no_order_at_all_means_no_bound() -> None:
    event = PoissonEpoch(sigma=10.0, rate=0.2, steps=1)
    assert PaperEstimate("add-remove", outside_its_range=True).guarantee(event, 1e-5).epsilon == math.inf


def test_within_its_range_it_lies_above_the_proven_bound_in_a_table_of_cases() -> None:
    """Not a proof: this is what the paper's numerical validation found, at a few of its points."""
    for sigma, steps in [(1.11, 10), (1.5, 1000), (3.0, 10_000), (8.0, 50_000)]:
        event = PoissonEpoch(sigma=sigma, rate=1 / (16 * sigma), steps=steps)
        assert why_out_of_range(sigma, event.rate) is None
        assert ESTIMATE.guarantee(event, 1e-5).epsilon > Renyi("add-remove").guarantee(event, 1e-5).epsilon


def test_it_is_about_sampling_only() -> None:
    for event in (ShuffleEpoch(sigma=2.0, batches=10), PartitionEpoch(sigma=2.0, batches=10)):
        with pytest.raises(UnpricedEvent, match="random sampling"):
            PaperEstimate("zero-out").guarantee(event, 1e-5)
    with pytest.raises(UnpricedEvent):
        PaperEstimate("replace-one").guarantee(PoissonEpoch(sigma=6.0, rate=0.01, steps=1), 1e-5)
    release = ESTIMATE.guarantee(GaussianRelease(sigma=2.0), 1e-5).epsilon
    assert release == pytest.approx(1 / 8 + 2 * math.sqrt(math.log(1e5) / 8))
