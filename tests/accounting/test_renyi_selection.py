"""Repeat-and-select: against dp-accounting, the formula, and mechanisms small enough to compute exactly."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant as google
from scipy import special

from apportion.accounting.conversions import delta_of_mu
from apportion.accounting.renyi import Renyi, selection
from apportion.events import GaussianRelease, NonPrivate, PoissonLaw, RepeatAndSelect, TruncatedNegativeBinomial

RENYI = Renyi("add-remove")

# ρ = .1, so σ = 1/√.2
BASE = GaussianRelease(sigma=math.sqrt(5.0))


@pytest.mark.parametrize(("eta", "expected"), [(0.0, 3.2444), (1.0, 3.8613)])
def test_selection_by_a_truncated_negative_binomial_costs_what_dp_accounting_says(eta: float, expected: float) -> None:
    gamma = google._gamma_truncated_negative_binomial(eta, 10.0)
    law = TruncatedNegativeBinomial(eta=eta, gamma=gamma)
    assert selection.log_expected_runs(law) == pytest.approx(math.log(10), abs=1e-7)
    event = dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(math.sqrt(5.0)), 10.0, eta)
    orders = list(1 + np.geomspace(1e-2, 200, 600))
    theirs = google.RdpAccountant(orders).compose(event).get_epsilon(1e-5)
    ours = RENYI.guarantee(RepeatAndSelect(base=BASE, runs=law), 1e-5).epsilon
    assert ours == pytest.approx(expected, abs=1e-3)
    assert ours == pytest.approx(theirs, abs=1e-3)


def test_selection_by_a_poisson_law_costs_what_the_formula_says() -> None:
    def formula(order: float) -> float:
        delta = delta_of_mu(math.sqrt(0.2), math.log1p(1 / (order - 1)))
        divergence = 0.1 * order + 10 * delta + math.log(10) / (order - 1)
        return divergence + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)

    expected = min(formula(order) for order in np.linspace(2, 40, 2000))
    found = RENYI.guarantee(RepeatAndSelect(base=BASE, runs=PoissonLaw(mean=10.0)), 1e-5).epsilon
    assert expected == pytest.approx(3.5365, abs=1e-4)
    assert found == pytest.approx(expected, abs=1e-3)
    assert found < 4.360  # dp-accounting, which takes δ̂ from Rényi divergences


def exact_selection(base: np.ndarray, other: np.ndarray, generating: np.ufunc, order: float) -> float:
    """D_α of the best of K runs, from the generating function of K; the last outcome of `base` is the best."""
    outputs = []
    for law in (base, other):
        below = np.concatenate([[0.0], np.cumsum(law)])
        at_most = generating(below)
        outputs.append(np.concatenate([[at_most[0]], np.diff(at_most)]))  # the first: no run at all
    first, second = (np.log(output[output > 0]) for output in outputs)
    return float(special.logsumexp(order * first + (1 - order) * second) / (order - 1))


@pytest.mark.parametrize("mean", [0.05, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("shift", [0.2, 1.0])
def test_selection_bounds_hold_for_mechanisms_computed_exactly(mean: float, shift: float) -> None:
    edges = np.linspace(-3, 3, 25)
    cumulative = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in edges])
    shifted = np.array([0.5 * math.erfc(-(x - shift) / math.sqrt(2)) for x in edges])
    base, other = (np.diff(np.concatenate([[0.0], c, [1.0]])) for c in (cumulative, shifted))
    orders = np.array([1.2, 2.0, 5.0, 20.0])
    laws = [(PoissonLaw(mean=mean), lambda x: np.exp(mean * (x - 1)))]
    if mean > 1:
        gamma = 1 / mean
        laws.append((TruncatedNegativeBinomial(eta=1.0, gamma=gamma), lambda x: gamma * x / (1 - (1 - gamma) * x)))
    for law, generating in laws:
        bounds = selection.divergences(lambda o: o * shift**2 / 2, shift**2, law, orders)
        for order, bound in zip(orders, bounds, strict=True):
            assert exact_selection(base, other, generating, order) <= bound
            assert exact_selection(other, base, generating, order) <= bound


def test_selection_of_something_not_private_is_infinite() -> None:
    event = RepeatAndSelect(base=NonPrivate(), runs=PoissonLaw(mean=2.0))
    assert RENYI.guarantee(event, 1e-5).epsilon == math.inf
