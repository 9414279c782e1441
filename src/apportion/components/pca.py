"""Private principal components: the leading eigenvectors of the rows' second moments, with noise.

Sensitivity. Let every row x have ‖x‖₂ ≤ 1 and M = Σ x xᵀ. Adding, removing or zeroing one row changes M by ± x xᵀ, and
‖x xᵀ‖_F = ‖x‖² ≤ 1. Replacing x by y changes it by E = y yᵀ − x xᵀ with ‖E‖_F² = ‖x‖⁴ + ‖y‖⁴ − 2 (x·y)² ≤ 2.

Noise. M is symmetric, so releasing its diagonal and its upper triangle releases it. Multiply the triangle by √2: this
vector v has ‖v(M) − v(M′)‖₂ = ‖M − M′‖_F. N(0, σ²) on every coordinate of v is a Gaussian release with noise multiplier
σ, and dividing the triangle by √2 again, which is post-processing, leaves N(0, σ²) on the diagonal and N(0, σ²/2) off it.
Eigenvectors of the noisy matrix are post-processing.

Arithmetic. Rows are cut (towards zero, which lengthens none) to multiples of 2⁻¹⁸, before and after they are scaled. In
these units norms and M are whole, and every sum is exact, in whatever order it is formed: no row's share of M depends on
its place or on its company.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import _checks
from apportion.components.release import Releaser, Whole, chunks_of
from apportion.errors import DataError, InvalidArgument
from apportion.events import Event
from apportion.randomness import RandomStream
from apportion.recording import LedgerWriter
from apportion.stages import PrincipalComponents

BITS = 18  # of a coordinate: rows lie on multiples of 2^-18, second moments on multiples of 2^-36
_UNIT = 2.0 ** (2 * BITS)
MOST_ROWS = 1 << 26  # sums stay below 2^62
_ROWS_HELD = 1 << 17  # sums stay below 2^53
_MARGIN = 1 - 2.0**-32  # more than what rounding adds to a norm of up to a million coordinates
_LANCZOS_FEATURES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """`directions` (features, dimensions): orthonormal columns, leading first; and the event that paid for them."""

    directions: NDArray[np.float64]
    event: Event

    def __call__(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(rows, np.float64).reshape(len(rows), -1) @ self.directions


def fit(
    data: Any,
    dimensions: int,
    sigma: float,
    *,
    ledger: LedgerWriter,
    stream: RandomStream | None = None,
) -> Projection:
    """The private principal components of `data`: an array, or an iterable of pieces of it, which is read once.

    Rows longer than 1 are scaled to norm 1; a row with NaN or infinity counts as zeros. `ledger` belongs to a plan that
    declares `PrincipalComponents(dimensions=…, sigma=…)` as its next component.

    Guarantees: one Gaussian release with noise multiplier `sigma` (see above), recorded before the noise is drawn.
    """
    return release(PrincipalComponents(dimensions=dimensions, sigma=sigma), data, Releaser(ledger, stream))


def release(component: PrincipalComponents, data: Any, releaser: Releaser) -> Projection:
    """What `fit` does, with the noise of a run."""
    moments = _second_moments(chunks_of(data))
    if component.dimensions > len(moments):
        raise InvalidArgument(f"dimensions must be at most the {len(moments)} features, got {component.dimensions}")
    releaser.record(component, component.sigma * _UNIT)  # record, then release: on disk before the noise is drawn
    noisy = _noisy(moments, component.sigma, releaser)
    return Projection(directions=leading_directions(noisy, component.dimensions), event=component.event)


def _clipped_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each row as whole multiples of 2⁻¹⁸ with a norm of at most 1, exactly; zeros for rows that are not finite."""
    largest = np.abs(rows).max(axis=1, initial=0.0)  # NaN or infinite if anything in the row is
    finite = np.isfinite(largest)
    if not finite.all():
        rows, largest = np.where(finite[:, None], rows, 0.0), np.where(finite, largest, 0.0)
    # Divided first, because squares of huge values overflow.
    whole: NDArray[np.float64] = np.trunc(rows / np.maximum(largest, 1.0)[:, None] * 2.0**BITS)
    squares = np.einsum("ij,ij->i", whole, whole)  # of whole numbers: exact, hence the same wherever the row stands
    long = np.flatnonzero(squares > _UNIT)
    whole[long] = np.trunc(whole[long] * (2.0**BITS * _MARGIN / np.sqrt(squares[long]))[:, None])
    assert bool((np.einsum("ij,ij->i", whole, whole) <= _UNIT).all())
    return whole


def _second_moments(chunks: Iterable[NDArray[np.float64]]) -> Whole:
    """Σ x xᵀ over clipped rows, in units of 2⁻³⁶: private, and exact.

    Whole numbers below 2⁵³ are exact in floating point, so sums are formed there for as many rows as that allows.
    """
    total: Whole | None = None
    held, in_it, seen = np.empty((0, 0)), 0, 0
    for chunk in chunks:
        rows = _clipped_rows(chunk)
        assert len(rows) <= _ROWS_HELD
        if total is None:
            total = np.zeros((rows.shape[1], rows.shape[1]), np.int64)
            held = np.zeros(total.shape)
        if rows.shape[1] != len(total):
            raise DataError(f"all pieces of the data must have the same columns, got {len(total)} and {rows.shape[1]}")
        seen, in_it = seen + len(rows), in_it + len(rows)
        if seen > MOST_ROWS:
            raise DataError(f"at most {MOST_ROWS:,} rows can be summed exactly")
        if in_it > _ROWS_HELD:
            total += held.astype(np.int64)
            held[:], in_it = 0.0, len(rows)
        held += rows.T @ rows
    if total is None or not len(total):
        raise DataError("data holds no rows, or rows without columns")
    total += held.astype(np.int64)
    return total


def _noisy(moments: Whole, sigma: float, releaser: Releaser) -> NDArray[np.float64]:
    """The matrix with N(0, σ²) on its diagonal and N(0, σ²/2) off it, symmetric; written over `moments`."""
    diagonal = releaser.noisy(np.diagonal(moments).copy(), sigma * _UNIT)
    for row in range(len(moments) - 1):
        upper = releaser.noisy(moments[row, row + 1 :], sigma / np.sqrt(2) * _UNIT)
        moments[row, row + 1 :] = upper
        moments[row + 1 :, row] = upper
    np.fill_diagonal(moments, diagonal)
    return moments / _UNIT


def leading_directions(matrix: NDArray[np.float64], dimensions: int) -> NDArray[np.float64]:
    """Orthonormal eigenvectors of the largest eigenvalues, each with its largest entry positive.

    By Lanczos iteration where there are many features and few directions, otherwise all at once.
    """
    from scipy.linalg import eigh
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    features = len(matrix)
    dimensions = _checks.count("dimensions", dimensions)
    if features > _LANCZOS_FEATURES and dimensions <= features // 10:
        try:
            values, vectors = eigsh(matrix, k=dimensions, which="LA", v0=np.ones(features))
        except ArpackNoConvergence:  # slower, and always there: what was paid for must not be lost
            values, vectors = eigh(matrix, subset_by_index=(features - dimensions, features - 1))
    else:
        values, vectors = eigh(matrix, subset_by_index=(features - dimensions, features - 1))
    vectors = vectors[:, np.argsort(-values, kind="stable")]
    peaks = vectors[np.abs(vectors).argmax(axis=0), np.arange(dimensions)]
    return np.asarray(vectors * np.where(peaks < 0, -1.0, 1.0))
