"""Powers and products of characteristic functions, with bounds on what rounding does to them."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import fft

from apportion.accounting.loss_distribution.slopes import Array

EPS = float(np.finfo(float).eps)

# Frequencies at which the product is at most this are left out, and charged.
_NEGLIGIBLE = 1e-20


def power(values: Array, exponent: int) -> Array:
    """values^exponent by repeated squaring, exponent ≥ 1; relative error at most about 2·exponent·EPS."""
    result = None
    while True:
        if exponent & 1:
            result = values if result is None else result * values
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        values = values * values


def rounding(length: int) -> float:
    """Error of any one output of an FFT of `length`, in units of the sum of the inputs' moduli.

    Every output is a sum over paths of log₂(length) twiddles and additions, each off by a few units in the last place
    (Higham, Accuracy and Stability of Numerical Algorithms, 24.1; 8 per stage is generous for mixed radices too).
    """
    return 8 * EPS * max(math.log2(length), 1.0)


def dot(left: Array, right: Array) -> Array:
    """left @ right, without the threads that a BLAS starts even for products as small as those here."""
    return np.asarray(np.einsum("ij,jk->ik", left, right))


def product(rows: Array, counts: Sequence[int], length: int) -> tuple[Array, float]:
    """Π over rows of (Fourier transform of the row)^count, and a bound on the summed error of its inverse transform.

    Rows are non-negative and sum to one. Widest rows go first: each leaves fewer frequencies at which the product is
    not negligible, and soon those few are cheaper to sum up directly than by an FFT.

    Guarantees: Σ|error of the inverse| ≤ √length·‖error‖₂/√length = ‖error‖₂ (Cauchy–Schwarz, Parseval), to which each
    factor contributes its own error times what all others leave. Frequencies left out are charged in full.
    """
    order = _widest_first(rows, counts)
    # An FFT, or at worst a sum of that many terms one after the other.
    error = max(rounding(length) + 4 * EPS, rows.shape[1] * EPS if len(rows) > 1 else 0.0)
    active = np.arange(length // 2 + 1)
    found, bound, weakest = np.ones(len(active), dtype=complex), np.ones(len(active)), np.ones(len(active))
    charged, done = 0.0, 0
    while done < len(order):
        direct = done > 0 and len(active) * rows.shape[1] < 8 * length * math.log2(length)
        chunk = order[done : done + (3 * done if direct else 1)]
        values = _transform(rows[chunk], active, length, direct)
        for row, count in zip(values, (counts[index] for index in chunk), strict=True):
            modulus = np.minimum(np.abs(row) + error, 1.0)
            found *= power(row, count)
            bound *= modulus**count
            weakest = np.minimum(weakest, modulus)
        small = bound < _NEGLIGIBLE
        charged += 2 * float(bound[small].sum())
        active, found, bound, weakest = active[~small], found[~small], bound[~small], weakest[~small]
        done += len(chunk)
    rest = bound / weakest
    charged += sum(counts) * error * math.sqrt(2 * float(np.sum(rest * rest)))
    full = np.zeros(length // 2 + 1, dtype=complex)
    full[active] = found
    return full, charged


def _widest_first(rows: Array, counts: Sequence[int]) -> Array:
    position = np.arange(rows.shape[1], dtype=float)
    moments = dot(rows, np.stack([position, position * position], axis=1))
    return np.argsort(-(moments[:, 1] - moments[:, 0] ** 2) * np.array(counts, dtype=float), kind="stable")


def _transform(rows: Array, active: Array, length: int, direct: bool) -> Array:
    """Fourier transforms of the rows at the active frequencies."""
    if not direct:
        return np.stack([fft.rfft(_folded(row, length))[active] for row in rows])
    roots = np.exp(-2j * np.pi / length * np.arange(length))
    table = roots[np.outer(np.arange(rows.shape[1]), active) % length]
    return np.asarray(dot(rows, table.real) + 1j * dot(rows, table.imag))


def _folded(row: Array, length: int) -> Array:
    """The row modulo `length`."""
    if len(row) <= length:
        return np.append(row, np.zeros(length - len(row)))
    padded = np.append(row, np.zeros(-len(row) % length))
    return np.asarray(padded.reshape(-1, length).sum(axis=0))
