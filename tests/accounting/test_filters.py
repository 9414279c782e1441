import json
import math

import pytest

from apportion.accounting.conversions import epsilon_of_mu, epsilon_of_rho
from apportion.accounting.filters import Filter, GaussianFilter, RenyiFilter, ZeroConcentratedFilter, from_json
from apportion.accounting.renyi import Renyi
from apportion.errors import InvalidArgument, UnpricedEvent
from apportion.events import (
    ExponentialMechanism,
    GaussianRelease,
    NonPrivate,
    PartitionEpoch,
    PoissonEpoch,
    ShuffleEpoch,
)

ZCDP = ZeroConcentratedFilter(rho=0.78125, adjacency="zero-out")
GAUSSIAN = GaussianFilter(mu_squared=2 * 0.78125, adjacency="zero-out")
RENYI = RenyiFilter(order=8.0, divergence=1.0, adjacency="add-remove")
FILTERS = [ZCDP, GAUSSIAN, RENYI]


@pytest.mark.parametrize("cap", [ZCDP, GAUSSIAN])
def test_exactly_the_epochs_that_fit_are_admitted(cap: Filter) -> None:
    """σ = 8 spends ρ = .78125 in 100 epochs exactly (the paper's uniform schedule)."""
    epoch = PartitionEpoch(sigma=8.0, batches=100)
    assert cap.admits(epoch, [epoch] * 99)
    assert not cap.admits(epoch, [epoch] * 100)
    assert not cap.admits(GaussianRelease(sigma=100.0), [epoch] * 100)


def test_the_last_epoch_is_not_lost_to_rounding() -> None:
    for epochs in range(1, 60):
        event = ShuffleEpoch(sigma=math.sqrt(epochs / (2 * 0.78125)), batches=10)
        assert ZCDP.admits(event, [event] * (epochs - 1))
        assert not ZCDP.admits(event, [event] * epochs)


def test_the_guarantee_is_that_of_the_cap_whatever_was_spent() -> None:
    assert ZCDP.guarantee(1e-5).epsilon == pytest.approx(epsilon_of_rho(0.78125, 1e-5), rel=1e-9)
    assert ZCDP.guarantee(1e-5).epsilon >= epsilon_of_rho(0.78125, 1e-5)
    assert GAUSSIAN.guarantee(1e-5).epsilon == pytest.approx(epsilon_of_mu(1.25, 1e-5), rel=1e-9)
    expected = 1.0 + math.log(7 / 8) - math.log(8e-5) / 7
    assert RENYI.guarantee(1e-5).epsilon == pytest.approx(expected, rel=1e-9)
    assert {cap.guarantee(1e-5).status for cap in FILTERS} == {"proven"}
    assert RENYI.guarantee(1e-5).adjacency == "add-remove"


def test_a_gaussian_cap_of_a_budget_keeps_the_budget() -> None:
    cap = GaussianFilter.of_budget(epsilon=3.0, delta=1e-5, adjacency="zero-out")
    assert 3.0 * (1 - 1e-9) <= cap.guarantee(1e-5).epsilon <= 3.0


@pytest.mark.parametrize("cap", [ZCDP, GAUSSIAN])
def test_poisson_steps_are_only_for_the_renyi_filter(cap: Filter) -> None:
    event = PoissonEpoch(sigma=50.0, rate=0.01, steps=1)
    with pytest.raises(UnpricedEvent, match="renyi-filter"):
        cap.admits(event)
    assert RENYI.admits(event)


def test_the_renyi_filter_adds_up_amplified_divergences_at_its_one_order() -> None:
    event = PoissonEpoch(sigma=2.0, rate=0.01, steps=100)
    one = Renyi("add-remove").divergence(event, 8.0)
    fit = math.floor(1.0 / one)
    assert fit > 10
    assert RENYI.admits(event, [event] * (fit - 1))
    assert not RENYI.admits(event, [event] * fit)
    assert RENYI.cost([event] * 5) == pytest.approx(5 * one, rel=1e-12)


def test_what_a_cap_cannot_price_is_refused_and_what_is_not_private_never_admitted() -> None:
    with pytest.raises(UnpricedEvent):
        GAUSSIAN.admits(ExponentialMechanism(epsilon=0.1))
    assert ZCDP.admits(ExponentialMechanism(epsilon=0.1))
    assert RENYI.admits(ExponentialMechanism(epsilon=0.1))
    with pytest.raises(UnpricedEvent):
        RENYI.admits(ShuffleEpoch(sigma=50.0, batches=10))
    for cap in FILTERS:
        assert not cap.admits(NonPrivate())


@pytest.mark.parametrize("cap", FILTERS)
def test_a_filter_survives_json(cap: Filter) -> None:
    assert from_json(json.loads(json.dumps(cap.to_json()))) == cap


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"kind": "pld-filter"},
        {"kind": ["zcdp-filter"]},
        {"kind": "zcdp-filter", "rho": 1.0},
        {"kind": "zcdp-filter", "rho": 1.0, "adjacency": "zero-out", "slack": 2.0},
        {"kind": "zcdp-filter", "rho": -1.0, "adjacency": "zero-out"},
        {"kind": "zcdp-filter", "rho": 1.0, "adjacency": "nobody"},
        {"kind": "renyi-filter", "order": 1.0, "divergence": 1.0, "adjacency": "zero-out"},
    ],
)
def test_json_that_is_not_a_filter_is_refused(data: object) -> None:
    with pytest.raises(InvalidArgument):
        from_json(data)
