"""What noisy tables of held-out records say about a model, with error bars that include the noise.

Every score is a smooth function of the counts that does not change when all of them are doubled. So, to first order, its
variance is Σ (∂score/∂count)² · (count + noise variance): the first part because a count of records varies like a
Poisson number, the second because noise was added. Errors are one standard error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """A value and its standard error. The value is brought back into [0, 1], where noise may have driven it out."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.error:.2g}"


def deviation(sigma: float, tables: Mapping[str, Any]) -> float:
    """The noise on each count: one record lies in one cell of each table, so σ is multiplied by √(number of tables)."""
    return sigma * math.sqrt(number_of_tables(tables))


def number_of_tables(tables: Mapping[str, Any]) -> int:
    """Right and wrong are the first; an AUROC takes one table for each class that is told from the others."""
    return 1 + sum(len(table) if name == "auroc" else 1 for name, table in tables.items())


def scores(evaluation: Mapping[str, Any]) -> dict[str, Score]:
    """The scores of an evaluation as a certificate states it; those that the noise drowned are left out."""
    tables = evaluation.get("tables", {})
    noise = deviation(evaluation["sigma"], tables)
    found = {"accuracy": accuracy(evaluation["right"], evaluation["wrong"], noise)}
    if "auroc" in tables:
        found["auroc"] = auroc(tables["auroc"], noise)
    if "calibration" in tables:
        found |= calibration(tables["calibration"], noise)
    if "confusion" in tables:
        found |= {f"recall of class {k}": score for k, score in enumerate(recalls(tables["confusion"], noise))}
    return {name: score for name, score in found.items() if score is not None}


def accuracy(right: float, wrong: float, noise: float) -> Score | None:
    return _ratio(np.array([right, wrong], np.float64), np.array([1.0, 0.0]), noise)


def recalls(confusion: Any, noise: float) -> list[Score | None]:
    """Of the records of each class, the share that was recognised; rows are true classes."""
    matrix = np.asarray(confusion, np.float64)
    return [_ratio(row, np.eye(len(row))[index], noise) for index, row in enumerate(matrix)]


def _ratio(counts: Table, chosen: Table, noise: float) -> Score | None:
    """The share of the chosen cells."""
    total = float(counts.sum())
    if total <= 0:
        return None
    value = float(counts @ chosen) / total
    return _score(value, (chosen - min(1.0, max(0.0, value))) / total, counts, noise)


def auroc(tables: Any, noise: float) -> Score | None:
    """The chance that a record of the class gets a higher probability than another, ties counting half.

    From binned probabilities; with more than two classes the mean over classes of each against the rest, whose error is
    at most the mean of the errors.
    """
    found = [_area(np.asarray(table, np.float64), noise) for table in tables]
    known = [score for score in found if score is not None]
    if not known or len(known) < len(found):
        return None
    return Score(sum(s.value for s in known) / len(known), sum(s.error for s in known) / len(known))


def _area(table: Table, noise: float) -> Score | None:
    positives, negatives = table
    total_positive, total_negative = positives.sum(), negatives.sum()
    if min(total_positive, total_negative) <= 0:
        return None
    below = (np.cumsum(negatives) - negatives / 2) / total_negative
    above = (np.cumsum(positives[::-1])[::-1] - positives / 2) / total_positive
    value = float(positives @ below / total_positive)
    gradient = np.stack([(below - value) / total_positive, (above - value) / total_negative])
    return _score(value, gradient, table, noise)


def calibration(table: Any, noise: float) -> dict[str, Score | None]:
    """`calibration error`: mean distance of confidence and accuracy over the bins. Noise makes it look larger.

    `overconfidence`: mean confidence minus accuracy, which noise does not bias. A bin's confidence is its middle.
    """
    counts = np.asarray(table, np.float64)  # right, wrong × bins
    total, bins = float(counts.sum()), counts.shape[1]
    if total <= 0:
        return {}
    middle = (np.arange(bins) + 0.5) / bins
    gaps = middle * counts.sum(axis=0) - counts[0]
    signs = np.sign(gaps)
    error = float(np.abs(gaps).sum() / total)
    over = float(gaps.sum() / total)
    slopes = np.stack([middle - 1, middle])
    unclipped = _score(over, (slopes - over) / total, counts, noise)
    return {
        "calibration error": _score(error, (signs * slopes - error) / total, counts, noise),
        "overconfidence": Score(min(1.0, max(-1.0, over)), unclipped.error),
    }


def _score(value: float, gradient: Table, counts: Table, noise: float) -> Score:
    variance = float((gradient**2 * (np.maximum(counts, 0.0) + noise**2)).sum())
    return Score(min(1.0, max(0.0, value)), math.sqrt(variance))
