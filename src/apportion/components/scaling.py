"""Private scaling: noisy means and variances, quantiles and class counts, within ranges declared beforehand.

Sensitivity. Let d be the number of features, each clipped to its declared range and mapped to z in [−1, 1].

- Means and variances come from the sums of (z, z²) over the records. One record adds a vector with
  ‖(z, z²)‖² ≤ 2d. Replacing z by y changes each feature's pair by (t, ts), t = z − y, s = z + y, |s| + |t| ≤ 2, and
  t²(1 + s²) ≤ (2 − |s|)²(1 + s²) ≤ 4. So the L2 sensitivity is √(2d), and √2 times that when a record is replaced.
- Quantiles come from one histogram per feature. One record adds 1 to one bin of each: L2 sensitivity √d; a replaced one
  moves two bins of each, √(2d).
- Class counts are one histogram: 1, and √2.

A record with a feature that is NaN or infinite adds nothing. Denominators are the declared number of examples, or come
from the noisy counts themselves. Whatever follows from noisy sums is post-processing.
"""

import math
from collections.abc import Iterable, Sequence
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
from apportion.stages import ClassWeights, Scaling, ScalingMethod

BITS = 14  # z lies on multiples of 2^-14, z² on multiples of 2^-28
LEAST_SCALE = 0.02  # of half the declared range: a feature is not blown up more, whatever the noise says
_IQR_OF_A_NORMAL = 1.3489795003921634


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """x ↦ (x − shift) / scale, feature by feature; and the event that paid for it."""

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]
    event: Event

    def __call__(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        return (np.asarray(rows, np.float64).reshape(len(rows), -1) - self.shift) / self.scale


def fit(
    data: Any,
    sigma: float,
    *,
    examples: int,
    ledger: LedgerWriter,
    method: ScalingMethod = "standard",
    low: float = -1.0,
    high: float = 1.0,
    bins: int = 64,
    stream: RandomStream | None = None,
) -> Scale:
    """The private scale of `data`: an array, or an iterable of pieces of it, which is read once.

    `ledger` belongs to a plan that declares this `Scaling` as its next component. `examples` is the number of records that
    the plan declares: a counted one would be released with the means, without noise.

    Guarantees: one Gaussian release with noise multiplier `sigma` (see above), recorded before the noise is drawn.
    """
    component = Scaling(sigma=sigma, method=method, low=low, high=high, bins=bins)
    releaser = Releaser(ledger, stream)
    if examples != ledger.examples:
        raise InvalidArgument(f"examples must be the {ledger.examples} that the plan declares, got {examples!r:.40}")
    return release(component, data, examples, releaser)


def release(component: Scaling, data: Any, examples: int, releaser: Releaser) -> Scale:
    """What `fit` does, with the noise of a run."""
    examples = _checks.count("examples", examples)
    measured = {"standard": _standard, "quantiles": _robust}[component.method]
    centre, spread = measured(component, _units_of(chunks_of(data), component), examples, releaser)
    half = (component.high - component.low) / 2
    return Scale(
        shift=component.low + half * (1 + centre),
        scale=half * np.maximum(spread, LEAST_SCALE),
        event=component.event,
    )


def _units_of(chunks: Iterable[NDArray[np.float64]], component: Scaling) -> Iterable[Whole]:
    """Records as z in whole multiples of 2⁻¹⁴; records that are not finite are left out."""
    for chunk in chunks:
        rows = chunk[np.isfinite(chunk).all(axis=1)]
        half = (component.high - component.low) / 2
        z = (np.clip(rows, component.low, component.high) - component.low) / half - 1
        yield np.trunc(np.clip(z, -1.0, 1.0) * 2.0**BITS).astype(np.int64)


def _moment_sums(records: Iterable[Whole]) -> Whole:
    """(2, features): Σ z in units of 2⁻¹⁴ and Σ z² in units of 2⁻²⁸. Private, and exact."""
    return _summed(np.stack([z.sum(axis=0), (z * z).sum(axis=0)]) for z in records)


def _histograms(records: Iterable[Whole], bins: int) -> Whole:
    """(features, bins): how many records fall into each of the equal bins of [−1, 1]. Private."""

    def counted(z: Whole) -> Whole:
        place = np.minimum((z + (1 << BITS)) * bins >> (BITS + 1), bins - 1)
        features = z.shape[1]
        flat = (place + bins * np.arange(features)).ravel()
        return np.bincount(flat, minlength=features * bins).astype(np.int64).reshape(features, bins)

    return _summed(counted(z) for z in records)


def _summed(pieces: Iterable[Whole]) -> Whole:
    total: Whole | None = None
    for piece in pieces:
        if total is not None and total.shape != piece.shape:
            raise DataError("all pieces of the data must have the same columns")
        total = piece if total is None else total + piece
    if total is None or not total.size:
        raise DataError("data holds no rows, or rows without columns")
    return total


Measured = tuple[NDArray[np.float64], NDArray[np.float64]]


def _standard(component: Scaling, records: Iterable[Whole], examples: int, releaser: Releaser) -> Measured:
    """Noisy mean and standard deviation of z."""
    sums = _moment_sums(records)
    deviation = component.sigma * math.sqrt(2 * sums.shape[1])
    releaser.record(component, deviation * 4.0**BITS)  # record, then release: on disk before the noise is drawn
    first = releaser.noisy(sums[0], deviation * 2.0**BITS) / 2.0**BITS / examples
    second = releaser.noisy(sums[1], deviation * 4.0**BITS) / 4.0**BITS / examples
    mean = np.clip(first, -1.0, 1.0)
    return mean, np.sqrt(np.clip(second - mean**2, 0.0, 1.0))


def _robust(component: Scaling, records: Iterable[Whole], examples: int, releaser: Releaser) -> Measured:
    """Noisy median of z, and its interquartile range as a standard deviation."""
    counts = _histograms(records, component.bins)
    deviation = component.sigma * math.sqrt(len(counts))
    releaser.record(component, deviation)  # record, then release: on disk before the noise is drawn
    low, median, high = quantiles(releaser.noisy(counts, deviation), (0.25, 0.5, 0.75))
    return median, (high - low) / _IQR_OF_A_NORMAL


def quantiles(counts: NDArray[Any], levels: Sequence[float]) -> tuple[NDArray[np.float64], ...]:
    """The quantiles in [−1, 1] of each row of (noisy) counts of equal bins, by linear interpolation within a bin.

    The distribution function of noisy counts may fall; what is inverted is the mean of its largest rising function below
    and its smallest above.
    """
    bins = counts.shape[1]
    cumulative = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1, dtype=np.float64)], axis=1)
    above = np.maximum.accumulate(cumulative, axis=1)
    below = np.minimum.accumulate(cumulative[:, ::-1], axis=1)[:, ::-1]
    rising = (above + below) / 2
    edges = np.linspace(-1.0, 1.0, bins + 1)
    total = rising[:, -1] - rising[:, 0]
    found = []
    for level in levels:
        wanted = rising[:, 0] + _checks.probability("levels", level) * total
        found.append(np.array([np.interp(w, row, edges) for w, row in zip(wanted, rising, strict=True)]))
    return tuple(found)


def _class_counts(targets: Iterable[NDArray[Any]], classes: int) -> Whole:
    """How many records have each of the declared classes; what is none of them is not counted. Private."""
    total = np.zeros(_checks.count("classes", classes), np.int64)
    for piece in targets:
        labels = np.asarray(piece)
        if labels.ndim != 1:
            raise DataError(f"a record has one class number, but the targets have the shape {labels.shape}")
        known = labels[(labels >= 0) & (labels < classes)].astype(np.int64)
        total += np.bincount(known, minlength=classes)
    return total


def release_class_weights(
    component: ClassWeights, targets: Iterable[NDArray[Any]], classes: int, releaser: Releaser
) -> NDArray[np.float64]:
    """Weights in proportion to 1 / (noisy count), 1 on average over the records, between 1/most and most."""
    counts = _class_counts(targets, classes)
    releaser.record(component, component.sigma)  # record, then release: on disk before the noise is drawn
    noisy = np.maximum(releaser.noisy(counts, component.sigma), 1.0)
    weights: NDArray[np.float64] = np.clip(noisy.sum() / (classes * noisy), 1 / component.most, component.most)
    return weights


def fit_class_weights(
    targets: Any,
    sigma: float,
    *,
    classes: int,
    ledger: LedgerWriter,
    most: float = 10.0,
    stream: RandomStream | None = None,
) -> NDArray[np.float64]:
    """Private class weights for a loss; `targets` are class numbers, `classes` is how many were declared.

    Guarantees: one Gaussian release with noise multiplier `sigma`, recorded before the noise is drawn.
    """
    component = ClassWeights(sigma=sigma, most=most)
    return release_class_weights(component, [np.asarray(targets)], classes, Releaser(ledger, stream))
