"""Moments E_Q[Y^a] of a partition epoch, a = 0, 1, 2, …: the direction in which a unit is removed.

Y is the mean of k independent V = exp(x/σ − 1/(2σ²)). Expanding Y^a throws a balls into k bins, and n balls in one bin
contribute E[V^n] = e^(n(n−1)/(2σ²)): E[Y^a] = a!/k^a · [z^a] (Σ_n e^(n(n−1)/(2σ²)) zⁿ/n!)^k. The power is taken by
splitting the bins into two groups: each ball falls into the first with probability m/(m + n), so, r(a) = E[Y^a] − 1,

    r_{m+n}(a) = Σ_j Binomial(a, m/(m+n))(j) · ((1 + r_m(j))(1 + r_n(a − j)) − 1),

a sum of terms ≥ 0: nothing cancels, and the error stays at some ulps per level of the about 2·log₂ k levels.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from apportion.accounting.renyi.quadrature import log_expm1, log_sum_exp

_Join = Callable[[np.ndarray, np.ndarray, float], np.ndarray]  # the third: the first group's share of the bins

# In linear space a weight that underflows (1e-308) times the largest moment (e^300) must stay negligible.
_LARGEST_LINEAR_EXPONENT = 300.0


def fits_linear(sigma: float, largest: int) -> bool:
    """Whether moments up to `largest` can be computed without logarithms, which is ten times faster."""
    return largest * (largest - 1) / (2 * sigma * sigma) <= _LARGEST_LINEAR_EXPONENT


def log_moments(sigma: float, batches: int, largest: int) -> np.ndarray:
    """ln E_Q[Y^a] for a = 0 … `largest`, exact up to rounding (below 1e-12 relatively)."""
    a = np.arange(largest + 1.0)
    exponents = a * (a - 1) / (2 * sigma * sigma)
    if fits_linear(sigma, largest):
        return np.asarray(np.log1p(_power(np.expm1(exponents), batches, _join_linear)))
    return np.asarray(np.logaddexp(0.0, _power(log_expm1(exponents), batches, _join_logarithmic)))


def _power(one: np.ndarray, batches: int, join: _Join) -> np.ndarray:
    """r for `batches` bins from r for one, by doubling along the binary digits of `batches`."""
    result, bins = one, 1
    for digit in bin(batches)[3:]:
        result, bins = join(result, result, 0.5), 2 * bins
        if digit == "1":
            result, bins = join(result, one, bins / (bins + 1)), bins + 1
    return result


def _join_linear(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    weights = np.exp(_log_binomial(len(first), share))
    opposite = second[_opposite(len(first))]
    return np.asarray(np.sum(weights * (first + opposite + first * opposite), axis=1))


def _join_logarithmic(first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
    moments = np.logaddexp(0.0, first) + np.logaddexp(0.0, second)[_opposite(len(first))]
    return log_sum_exp(_log_binomial(len(first), share) + log_expm1(moments))


@lru_cache(maxsize=4)
def _opposite(size: int) -> np.ndarray:
    """a − j at row a, column j; 0 above the diagonal, where the weight is 0."""
    rows, columns = np.ogrid[:size, :size]
    return np.asarray(np.maximum(rows - columns, 0))


@lru_cache(maxsize=16)
def _log_binomial(size: int, share: float) -> np.ndarray:
    """ln of the probability that j of a balls fall into the first group, at row a and column j."""
    rows, columns = np.ogrid[:size, :size]
    rest = _opposite(size)
    logs = gammaln(rows + 1) - gammaln(columns + 1) - gammaln(rest + 1)
    logs = logs + columns * math.log(share) + rest * math.log1p(-share)
    return np.asarray(np.where(rows >= columns, logs, -np.inf))
