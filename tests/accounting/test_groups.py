import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import accounting
from apportion.accounting import conversions
from apportion.accounting.groups import group_guarantee
from apportion.errors import InvalidArgument, UnpricedEvent
from apportion.events import (
    Composed,
    ExponentialMechanism,
    GaussianRelease,
    NonPrivate,
    PartitionEpoch,
    PoissonEpoch,
    Repeated,
    ShuffleEpoch,
)


@given(sigma=st.floats(0.5, 50), size=st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_a_gaussian_release_to_a_group_is_a_release_of_larger_sensitivity(sigma: float, size: int) -> None:
    """Independent source: a group of g moves the sum by at most g bounds, which is one release at σ/g."""
    found = group_guarantee(GaussianRelease(sigma=sigma), 1e-5, "add-remove", size)
    assert found.epsilon == pytest.approx(conversions.epsilon_of_mu(size / sigma, 1e-5), rel=1e-9)


def test_a_group_of_one_costs_what_one_costs() -> None:
    event = Repeated(event=PartitionEpoch(sigma=2.0, batches=20), count=5)
    alone = accounting.tightest(event, 1e-5, "add-remove").epsilon
    assert group_guarantee(event, 1e-5, "add-remove", 1).epsilon == pytest.approx(alone, rel=0.01)


def test_an_amplified_run_is_never_scaled_as_if_it_were_gaussian() -> None:
    """Two people in a sampled run: at least ε(δ) of one, and no less than the classical pair bound would allow."""
    event = PoissonEpoch(sigma=1.0, rate=0.01, steps=100)
    one = accounting.tightest(event, 1e-5, "add-remove").epsilon
    two = group_guarantee(event, 1e-5, "add-remove", 2)
    # A lower bound on the truth: both sampled together in one step is a release of twice the sensitivity at rate q².
    together = accounting.tightest(PoissonEpoch(sigma=0.5, rate=1e-4, steps=100), 1e-5, "add-remove").epsilon_lower
    assert two.epsilon >= max(one, together or 0.0)
    assert two.accountant == "loss-distribution"


def test_the_pair_formula_holds_for_the_answer() -> None:
    event = Repeated(event=PoissonEpoch(sigma=2.0, rate=0.02, steps=50), count=3)
    size, delta = 3, 1e-6
    found = group_guarantee(event, delta, "add-remove", size)
    epsilon = found.epsilon / size
    accountant = accounting.LossDistribution("add-remove")
    delta_of_one = accountant.delta(accountant.cost(event), epsilon)
    growth = math.expm1(size * epsilon) / math.expm1(epsilon)
    assert delta_of_one * growth <= delta * 1.01


@pytest.mark.parametrize("size", [2, 5])
def test_larger_groups_are_protected_less(size: int) -> None:
    event = Composed(events=(ShuffleEpoch(sigma=4.0, batches=3), ExponentialMechanism(epsilon=0.1)))
    smaller = group_guarantee(event, 1e-5, "zero-out", size - 1).epsilon
    assert group_guarantee(event, 1e-5, "zero-out", size).epsilon > smaller


def test_what_has_no_price_for_one_has_none_for_a_group() -> None:
    with pytest.raises(UnpricedEvent):
        group_guarantee(ShuffleEpoch(sigma=4.0, batches=3), 1e-5, "add-remove", 2)
    with pytest.raises(InvalidArgument, match="size"):
        group_guarantee(GaussianRelease(sigma=4.0), 1e-5, "add-remove", 0)
    assert group_guarantee(NonPrivate(), 1e-5, "add-remove", 2).epsilon == math.inf
