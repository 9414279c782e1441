"""The Rényi divergence of one Poisson-sampled Gaussian release, at any real order."""

import math
from functools import lru_cache

import numpy as np

from apportion.accounting.renyi import quadrature

# Results are raised by this factor. It covers rounding (below 1e-12) and the quadrature (below 1e-15) many times over.
ROUNDING_UP = 1 + 1e-10

# Beyond this many points of the integrand an order is charged without amplification rather than waited for.
_LARGEST_GRID = 200_000


@lru_cache(maxsize=4096)
def divergences(sigma: float, rate: float, orders: tuple[float, ...]) -> np.ndarray:
    """D_α for each order α > 1, from above; never more than the α/(2σ²) of the release without sampling.

    Guarantees: with Y = 1 − q + qV, V = exp(x/σ − 1/(2σ²)), x ~ N(0, 1), the divergence in both directions is at most
    ln E[Y^α]/(α − 1) (Mironov–Talwar–Zhang 2019, Thms 4 and 5), under add-remove and zero-out.
    """
    alpha = np.array(orders)
    plain = alpha / (2 * sigma * sigma)
    if rate == 1.0:
        return plain
    width = _step(sigma)
    points = (np.max(alpha) / sigma + 20) / width
    if points * len(orders) > _LARGEST_GRID:
        if len(orders) == 1:
            return plain
        half = len(orders) // 2
        return np.concatenate([divergences(sigma, rate, orders[:half]), divergences(sigma, rate, orders[half:])])
    sampled = np.logaddexp(0.0, _log_excess(sigma, rate, alpha, width)) / (alpha - 1)
    return np.asarray(np.minimum(sampled * ROUNDING_UP, plain))


def _step(sigma: float) -> float:
    """The step of the quadrature over x.

    For |Im x| = a ≤ 1.4σ the integrand is analytic (Re V > 0), and its modulus integrates to at most 12(1 + a²)e^(a²/2)
    times its integral: |1 + tu| lies between cos(1.4) and 1 times its real counterpart, and |u|² grows by a²V/σ².
    """
    return quadrature.step(min(1.4 * sigma, 12.0), lambda a: a * a / 2 + np.log1p(a * a) + math.log(12))


def _log_excess(sigma: float, rate: float, alpha: np.ndarray, width: float) -> np.ndarray:
    """ln(E[Y^α] − 1), with E[Y^α] − 1 = E[Y^α − 1 − α(Y − 1)] because E[Y] = 1: an integral of terms ≥ 0.

    The window [−10, α/σ + 10] leaves out less than 1e-20 of it: Y^α φ peaks at or below x = α/σ.
    """
    x = width * np.arange(-math.ceil(10 / width), math.ceil((np.max(alpha) / sigma + 10) / width) + 1)
    log_v = x / sigma - 1 / (2 * sigma * sigma)
    log_y = np.logaddexp(math.log1p(-rate), math.log(rate) + log_v)
    u = rate * np.expm1(np.minimum(log_v, 700.0))  # Y − 1; where it is cut off, only log_y is used
    log_y = np.where(np.abs(u) < 0.5, np.log1p(np.clip(u, -0.5, 0.5)), log_y)
    log_weight = -x * x / 2 + math.log(width / math.sqrt(2 * math.pi))
    return quadrature.log_sum_exp(_log_convex_part(alpha[:, None], u[None, :], log_y[None, :]) + log_weight)


def _log_convex_part(alpha: np.ndarray, u: np.ndarray, log_y: np.ndarray) -> np.ndarray:
    """ln((1 + u)^α − 1 − αu), by its power series where the terms would cancel."""
    exponent = alpha * log_y
    tiny = np.clip(u, -0.05 / alpha, 0.05 / alpha)
    series = np.zeros(np.broadcast_shapes(alpha.shape, u.shape))
    for n in range(12, 1, -1):  # Horner: C(α, n+1) = C(α, n)·(α − n)/(n + 1)
        series = 1 + series * tiny * ((alpha - n) / (n + 1))
    moderate = np.clip(exponent, -700.0, 40.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        by_series = np.log(alpha * (alpha - 1) / 2 * tiny * tiny * series)
        by_formula = np.log(np.maximum(np.expm1(moderate) - alpha * u, 0.0))
        large = exponent + np.log1p(-(1 + alpha * u) * np.exp(-np.maximum(exponent, 40.0)))
    by_formula = np.where(exponent > 40.0, large, by_formula)
    return np.asarray(np.where(np.abs(alpha * u) <= 0.05, by_series, by_formula))
