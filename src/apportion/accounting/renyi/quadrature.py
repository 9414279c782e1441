"""Sums and integrals of positive terms that may lie hundreds of orders of magnitude apart, without cancellation.

Every divergence here is ln(1 + r) with an r that may be 1e-20 or e^100000. r is always written as a sum or integral of
terms ≥ 0, so that a relative error of each term is a relative error of r, however small r is.
"""

import math
from collections.abc import Callable

import numpy as np

# What is left out of a quadrature is at most e^(−this), relatively, before the bounds of the docstrings are added.
_DECAY = 45.0
_SERIES = tuple(1 / math.factorial(n) for n in range(11, 1, -1))


def step(strip: float, penalty: Callable[[np.ndarray], np.ndarray]) -> float:
    """The widest step with which the trapezoidal rule over the real line is off by at most e^(−45), relatively.

    Guarantees: if |f(x ± ia)| integrates to at most e^penalty(a)·∫f for some a < `strip` up to which f is analytic, the
    rule with step h is off by at most 2 e^penalty(a)/(e^(2πa/h) − 1) relatively (Trefethen–Weideman 2014, Thm 5.1).
    """
    a = strip * np.linspace(0.02, 1.0, 50)
    return float(np.max(2 * math.pi * a / (_DECAY + penalty(a))))


def log_sum_exp(logs: np.ndarray) -> np.ndarray:
    """ln Σ e^x over the last axis; −∞ for an empty or vanishing sum."""
    top = np.max(logs, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.sum(np.exp(logs - top), axis=-1)) + top[..., 0])


def log_expm1(x: np.ndarray) -> np.ndarray:
    """ln(e^x − 1) for x ≥ 0; −∞ at 0."""
    large = x + np.log1p(-np.exp(-np.maximum(x, 1.0)))
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(x > 1, large, np.log(np.expm1(np.minimum(x, 1.0)))))


def exp_minus_linear(y: np.ndarray) -> np.ndarray:
    """e^y − 1 − y ≥ 0, to full relative precision also where y is tiny."""
    small = np.clip(y, -0.25, 0.25)
    series = np.zeros_like(small)
    for coefficient in _SERIES:  # the first term left out is below 1e-16 of the sum for |y| ≤ 1/4
        series = series * small + coefficient
    return np.asarray(np.where(np.abs(y) <= 0.25, series * small * small, np.expm1(y) - y))
