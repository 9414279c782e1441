"""From one way of stating a guarantee to another. Each function says in which direction it errs."""

import math

import numpy as np
from scipy.special import log_ndtr

# Bisections run until the bracket is this narrow, relatively, and return its safe end.
_TOLERANCE = 1e-13


def epsilon_of_rho_classic(rho: float, delta: float) -> float:
    """ε = ρ + 2√(ρ ln(1/δ)) (Bun–Steinke, Prop. 1.3; the paper's conversion). Valid, and the loosest here."""
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def epsilon_of_rho(rho: float, delta: float) -> float:
    """The Rényi conversion with D_α = αρ, minimised over real α > 1.

    Guarantees: every α gives a valid ε, so a coarse minimum is only looser.
    """
    if rho == 0:
        return 0.0
    if rho > 1e100:  # where products of ρ and orders overflow
        return epsilon_of_rho_classic(rho, delta)
    best = math.inf
    low, high = -25.0, 25.0  # of ln(α − 1)
    for _ in range(4):
        grid = np.linspace(low, high, 401)
        orders = 1 + np.exp(grid)
        values = epsilons_of_divergences(orders, orders * rho, delta)
        index = int(np.argmin(values))
        best = min(best, float(values[index]))
        low, high = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]
    return best


def epsilons_of_divergences(orders: np.ndarray, divergences: np.ndarray, delta: float) -> np.ndarray:
    """ε at each order α > 1: D_α + ln((α−1)/α) − (ln δ + ln α)/(α−1), at least 0.

    Guarantees: Canonne–Kamath–Steinke 2020 (Prop. 12), Asoodeh et al. 2020; each entry is valid by itself.
    """
    epsilons = divergences + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return np.asarray(np.maximum(epsilons, 0.0))


def delta_of_mu(mu: float, epsilon: float) -> float:
    """δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), exact (Balle–Wang 2018), in logarithms to survive large ε."""
    if mu == 0:
        return 0.0
    first = float(log_ndtr(-epsilon / mu + mu / 2))
    second = float(log_ndtr(-epsilon / mu - mu / 2))
    return math.exp(first) * -math.expm1(min(epsilon + second - first, 0.0))


def _delta_from_above(mu: float, epsilon: float) -> float:
    """`delta_of_mu` plus what its two nearly equal terms may lose to rounding when μ is tiny."""
    first = float(log_ndtr(-epsilon / mu + mu / 2))
    second = float(log_ndtr(-epsilon / mu - mu / 2))
    return delta_of_mu(mu, epsilon) + math.exp(first) * 2e-15 * (1 + abs(first) + abs(second) + epsilon)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ `delta`, from above."""
    if mu > 1e100:  # beyond what doubles can square; no such guarantee means anything
        return math.inf
    if mu == 0 or _delta_from_above(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # ρ + 2√(ρ ln 1/δ) with ρ = μ²/2
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _delta_from_above(mu, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """The largest μ whose δ(ε) stays within `delta`, from below."""
    low, high = 0.0, 1.0
    while delta_of_mu(high, epsilon) <= delta:
        low, high = high, 2 * high
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if delta_of_mu(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle
    return low
