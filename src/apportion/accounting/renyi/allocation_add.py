"""Reciprocal moments E_Q[Y^(−s)] of a partition epoch: the direction in which a unit is added.

With E[Y] = 1 and t^(s−1) integrated against e^(−tY),

    E[Y^(−s)] − 1 = 1/Γ(s) · ∫ t^(s−1) (E e^(−tY) − e^(−t)) dt,    E e^(−tY) = (E e^(−tV/k))^k.

The bracket is e^(−t)·((E e^(−τ(V−1)))^k − 1) with τ = t/k; E e^(−τ(V−1)) − 1 = E ψ(−τ(V−1)), ψ(y) = e^y − 1 − y ≥ 0.
Both integrals (over x and over w = ln t) are trapezoidal sums of terms ≥ 0; everything cut off is bounded and added.
"""

import math

import numpy as np
from scipy.special import gammaln, log_ndtr

from apportion.accounting.renyi.quadrature import exp_minus_linear, log_expm1, log_sum_exp, step

_LEFT = -16.0  # of w: G(t) ≤ t² Var(Y)/2 makes what lies to the left negligible, and it is added
_LARGEST_GRID = 1_500_000
_LARGEST_TAU, _LARGEST_T = 650.0, 1e5  # up to here e^τ is finite and t keeps 11 digits after the point


def log_reciprocal_moments_cheap(sigma: float, batches: int, s: np.ndarray) -> np.ndarray:
    """ln E[Y^(−s)] ≤ s/(2σ²) + s²/(2kσ²): the mean is at least the geometric mean, a log-normal. Exact for k = 1."""
    return np.asarray((s + s * s / batches) / (2 * sigma * sigma))


def log_reciprocal_moments(sigma: float, batches: int, s: np.ndarray) -> np.ndarray | None:
    """ln E[Y^(−s)] for integers s ≥ 1, from above; None where the grids would be too long.

    Guarantees: an upper bound up to a relative error of 1e-12 of E[Y^(−s)] − 1. The rule in w is off by at most
    2(cos a)^(−s−2)/(e^(2πa/h) − 1), the same for every Y; the rule in x, bin by bin, by the same with a/σ for a and
    e^(a²/2)(1 + a²). Left tail of V: ψ(−τ(V − 1)) ≤ ψ(τ) there. Large t: E e^(−tY) ≤ (r/(et))^r E[Y^(−r)] for all r.
    """
    largest = float(np.max(s))
    width = step(1.5, lambda a: -(largest + 2) * np.log(np.cos(a)) + math.log(2))
    w = _LEFT + width * np.arange(math.ceil((_right_end(sigma, batches, largest) - _LEFT) / width) + 1)
    x, width_of_x = _points_of_x(sigma, float(np.exp(w[-1])) / batches, largest)
    if len(w) * max(len(x), len(s)) > _LARGEST_GRID:
        return None
    gap = _log_gap(sigma, batches, np.exp(w), x, width_of_x)
    body = log_sum_exp(s[:, None] * w[None, :] + gap[None, :]) + math.log(width)
    tails = [_log_left_tail(sigma, batches, s, width), _log_right_tail(sigma, batches, s, float(w[-1]))]
    return np.asarray(np.logaddexp(0.0, log_sum_exp(np.stack([body, *tails], axis=-1)) - gammaln(s)))


def _points_of_x(sigma: float, tau: float, largest: float) -> tuple[np.ndarray, float]:
    """Where V is evaluated, and the step. The left end need not be far enough: what lies beyond it is bounded."""
    width = step(
        min(1.5 * sigma, 12.0),
        lambda a: a * a / 2 + np.log1p(a * a) - (largest + 2) * np.log(np.cos(a / sigma)) + math.log(2),
    )
    as_probable_as_the_sum = 20 + sigma * max(math.log(tau), 0.0) + 1 / sigma
    left = min(as_probable_as_the_sum, math.sqrt(2 * (tau + 60 + 2 * max(math.log(sigma), 0.0))), 37.0)
    return width * np.arange(-math.ceil(left / width), math.ceil((2 / sigma + 12) / width) + 1), width


def _log_gap(sigma: float, batches: int, t: np.ndarray, x: np.ndarray, width: float) -> np.ndarray:
    """ln(E e^(−tY) − e^(−t)), from above; for very large t the second term is left out."""
    weight = width / math.sqrt(2 * math.pi) * np.exp(-x * x / 2)
    excess = np.expm1(x / sigma - 1 / (2 * sigma * sigma))  # V − 1
    beyond = math.exp(float(log_ndtr(x[0])))  # e^(−τV) ≤ 1 there
    moderate = (t <= _LARGEST_T) & (t / batches <= _LARGEST_TAU)
    tau = t[moderate] / batches
    mean = exp_minus_linear(-tau[:, None] * excess[None, :]) @ weight + beyond * exp_minus_linear(tau)
    near = log_expm1(batches * np.log1p(mean)) - t[moderate]
    tau = t[~moderate] / batches
    far = batches * np.log(np.exp(-tau[:, None] * (1 + excess[None, :])) @ weight + beyond)
    return np.concatenate([near, far])


def _log_tail_constants(sigma: float, batches: int, r: np.ndarray) -> np.ndarray:
    """ln of (r/e)^r E[Y^(−r)], the constant of the bound E e^(−tY) ≤ (…)·t^(−r)."""
    return np.asarray(r * np.log(r) - r + log_reciprocal_moments_cheap(sigma, batches, r))


def _right_end(sigma: float, batches: int, largest: float) -> float:
    """A w beyond which less than about e^(−45) of the integral lies, for the largest s (and so for all)."""
    target = float(gammaln(largest)) - 45 - 2 * max(math.log(sigma), 0.0) - math.log(batches)
    r = largest + np.geomspace(0.5, 1e6, 120)
    return float(np.min((_log_tail_constants(sigma, batches, r) - target) / (r - largest)))


def _log_right_tail(sigma: float, batches: int, s: np.ndarray, right: float) -> np.ndarray:
    """ln ∫ of t^(s−1) E e^(−tY) beyond t = e^right, as the trapezoidal sum would have counted it, from above."""
    r = s[:, None] + np.geomspace(0.5, 1e6, 120)[None, :]
    logs = _log_tail_constants(sigma, batches, r) + (s[:, None] - r) * right
    # The bounding function falls with w, so that its sum over the grid is below its integral.
    return np.asarray(np.min(logs - np.log(r - s[:, None]), axis=1))


def _log_left_tail(sigma: float, batches: int, s: np.ndarray, width: float) -> np.ndarray:
    """ln of the sum over w < −16, where the bracket is at most t²(e^(1/σ²) − 1)/(2k)."""
    half_variance = float(log_expm1(np.array(1 / (sigma * sigma)))) - math.log(2 * batches)
    return np.asarray(half_variance + (s + 2) * _LEFT + math.log(width) - np.log(-np.expm1(-width * (s + 2))))
