import math

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from apportion.accounting import conversions


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.05), (1.0, 1.0), (3.0, 10.0), (0.5, 0.0)])
def test_delta_of_a_gaussian_agrees_with_an_integral(mu: float, epsilon: float) -> None:
    def integrand(x: float) -> float:
        excess = math.exp(-((x - mu) ** 2) / 2) - math.exp(epsilon - x * x / 2)
        return max(excess, 0.0) / math.sqrt(2 * math.pi)

    start = epsilon / mu + mu / 2
    expected, _ = integrate.quad(integrand, start, start + 12, epsabs=1e-15)
    assert conversions.delta_of_mu(mu, epsilon) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("mu", "delta"), [(0.05, 1e-5), (1.0, 1e-5), (10 / 3, 1e-5), (20.0, 1e-12), (0.3, 0.1)])
def test_epsilon_of_a_gaussian_agrees_with_dp_accounting(mu: float, delta: float) -> None:
    theirs = gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta)
    assert conversions.epsilon_of_mu(mu, delta) == pytest.approx(theirs, rel=1e-6)


@settings(deadline=None, max_examples=80)
@given(mu=st.floats(1e-4, 100.0), delta=st.floats(1e-12, 0.5))
def test_epsilon_and_mu_are_inverse_and_err_on_the_safe_side(mu: float, delta: float) -> None:
    epsilon = conversions.epsilon_of_mu(mu, delta)
    assert conversions.delta_of_mu(mu, epsilon) <= delta
    if epsilon > 1e-9:
        assert conversions.delta_of_mu(mu, epsilon * (1 - 1e-6)) > delta
        back = conversions.mu_of_epsilon(epsilon, delta)
        assert back == pytest.approx(mu, rel=1e-6)
        assert conversions.delta_of_mu(back, epsilon) <= delta


@settings(deadline=None, max_examples=80)
@given(rho=st.floats(1e-8, 1e4), delta=st.floats(1e-12, 0.1))
def test_conversions_of_rho_are_ordered_from_loose_to_exact(rho: float, delta: float) -> None:
    classic, tight = conversions.epsilon_of_rho_classic(rho, delta), conversions.epsilon_of_rho(rho, delta)
    exact = conversions.epsilon_of_mu(math.sqrt(2 * rho), delta)
    assert exact * (1 - 1e-9) <= tight <= classic * (1 + 1e-12)


def test_the_paper_s_conversion_gives_the_paper_s_number() -> None:
    """σ = 6, 400 epochs: the paper prints 21.5; the exact value of the same noise is 19.131."""
    rho = 400 / 72
    assert conversions.epsilon_of_rho_classic(rho, 1e-5) == pytest.approx(21.5506, abs=1e-4)
    assert conversions.epsilon_of_mu(math.sqrt(2 * rho), 1e-5) == pytest.approx(19.131, abs=1e-3)


def test_every_order_of_the_renyi_conversion_is_valid_for_a_gaussian() -> None:
    orders = 1 + np.geomspace(1e-3, 1e4, 200)
    for mu in (0.1, 1.0, 5.0):
        epsilons = conversions.epsilons_of_divergences(orders, orders * mu * mu / 2, 1e-5)
        assert np.min(epsilons) >= conversions.epsilon_of_mu(mu, 1e-5)
