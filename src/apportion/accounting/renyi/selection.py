"""The Rényi divergence of releasing the best of a secret random number of runs (Papernot–Steinke, arXiv 2110.03620)."""

import math

import numpy as np

from apportion.accounting.conversions import delta_of_mu
from apportion.accounting.renyi.orders import LADDER, Curve, minimum
from apportion.events import PoissonLaw, TruncatedNegativeBinomial


def divergences(
    base: Curve, base_mu_squared: float, runs: TruncatedNegativeBinomial | PoissonLaw, orders: np.ndarray
) -> np.ndarray:
    """D at each order, from above, given the curve of one run (and its μ², if it is dominated by a Gaussian).

    Divergences grow with the order, so an order below the formula's best one is charged what that one costs.
    """

    def formula(inner: np.ndarray) -> np.ndarray:
        if isinstance(runs, PoissonLaw):
            return _poisson(base, base_mu_squared, runs.mean, inner)
        return base(inner) + log_expected_runs(runs) / (inner - 1) + constant

    constant = 0.0 if isinstance(runs, PoissonLaw) else _selection_constant(base, runs)
    tried = np.union1d(LADDER[:_HIGHEST_RUNG], orders)
    values = np.minimum.accumulate(formula(tried)[::-1])[::-1]
    return np.asarray(values[np.searchsorted(tried, orders)])


# Orders up to 1025 bring ln(E K)/(λ − 1) below 1 % of itself at λ = 2.
_HIGHEST_RUNG = 21


def log_expected_runs(runs: TruncatedNegativeBinomial) -> float:
    """ln E[K]: η(1 − γ)/(γ(1 − γ^η)), and its limit (1/γ − 1)/ln(1/γ) for η = 0."""
    eta, log_gamma = runs.eta, math.log(runs.gamma)
    # Near η = 0 the limit is used; it is off by less than |η ln γ|, for which 1e-9 is added.
    shape = 1 / -log_gamma if abs(eta * log_gamma) < 1e-9 else eta / -math.expm1(eta * log_gamma)
    return math.log1p(-runs.gamma) - log_gamma + math.log(shape) + 1e-9


def _selection_constant(base: Curve, runs: TruncatedNegativeBinomial) -> float:
    """(1 + η)·min over λ̂ of (1 − 1/λ̂)ε(λ̂) + ln(1/γ)/λ̂.

    Guarantees: Theorem 2: ε'(λ) = ε(λ) + this + ln(E K)/(λ − 1), for every λ̂ ≥ 1.
    """
    cost = -math.log(runs.gamma)
    return (1 + runs.eta) * minimum(base, offset=lambda o: cost / o, weight=lambda o: 1 - 1 / o).value


def _poisson(base: Curve, base_mu_squared: float, mean: float, orders: np.ndarray) -> np.ndarray:
    """ln(e^(−m) + m·e^((λ−1)(ε(λ) + m·δ̂)))/(λ − 1), one run being (ε̂, δ̂)-DP with e^ε̂ = 1 + 1/(λ − 1).

    Guarantees: Theorem 6, with the outcome "no run at all" (probability e^(−m), the same for both neighbours) counted.
    The closed form ε(λ) + mδ̂ + ln m/(λ − 1) drops it, and would turn negative for small m.
    """
    epsilons = np.log1p(1 / (orders - 1))
    deltas = _deltas_of_divergences(base, epsilons)
    if base_mu_squared < math.inf:
        exact = [delta_of_mu(math.sqrt(base_mu_squared), float(epsilon)) for epsilon in epsilons]
        deltas = np.minimum(deltas, exact)
    scaled = math.log(mean) + (orders - 1) * (base(orders) + mean * deltas)
    return np.asarray(np.logaddexp(-mean, scaled) / (orders - 1))


def _deltas_of_divergences(base: Curve, epsilons: np.ndarray) -> np.ndarray:
    """The least δ̂ at each ε̂ over the ladder of orders (Canonne–Kamath–Steinke 2020, Prop. 12)."""
    ladder = LADDER[:_HIGHEST_RUNG]
    logs = (ladder - 1) * (base(ladder) + np.log1p(-1 / ladder) - epsilons[:, None]) - np.log(ladder)
    return np.asarray(np.exp(np.minimum(np.min(logs, axis=1), 0.0)))
