"""Private evaluation: noisy tables of what a model answers on held-out records, paid for before they exist.

Sensitivity. The tables (right and wrong; and, by measure, the confusion matrix; right and wrong by confidence;
probabilities of a class by membership) are histograms: a record lies in at most one cell of each. With m tables, adding
or removing a record moves the vector of all counts by at most √m, and replacing one by √(2m). N(0, σ²m) on every count
is one Gaussian release with noise multiplier σ.

A record whose scores are not finite, or whose target is none of the classes, counts as wrong and lies in no other table.
Evaluation is composed with training as if both had seen every record, although held-out records were not trained on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import durable, ledger
from apportion.components.release import Releaser, Whole, WholeNormals
from apportion.errors import InvalidArgument, RunError
from apportion.ledger import Evaluation
from apportion.recording import LedgerWriter
from apportion.scores import deviation
from apportion.stages import PrivateEvaluation

MOST_CELLS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Private: how many answers were right and wrong, and the tables by measure."""

    answers: Whole
    tables: dict[str, Whole]


def no_counts(classes: int, component: PrivateEvaluation) -> Counts:
    """Empty tables for a model of so many classes."""
    bins = component.bins
    shapes = {
        "confusion": (classes, classes),
        "calibration": (2, bins),
        "auroc": (1 if classes == 2 else classes, 2, bins),
    }
    chosen = {name: shapes[name] for name in component.measures}
    cells = sum(int(np.prod(shape)) for shape in chosen.values())
    if classes < 2 or cells > MOST_CELLS:
        raise InvalidArgument(
            f"an evaluation needs at least 2 classes and at most {MOST_CELLS:,} cells, got {classes} and {cells:,}: fewer "
            "measures or bins"
        )
    return Counts(
        answers=np.zeros(2, np.int64), tables={name: np.zeros(shape, np.int64) for name, shape in chosen.items()}
    )


def count(scores: NDArray[Any], targets: NDArray[Any], into: Counts, component: PrivateEvaluation) -> None:
    """Add records to the tables; `scores` has one row of class scores (logits) per record."""
    classes = scores.shape[1]
    logits = np.asarray(scores, np.float64)
    usable = np.isfinite(logits).all(axis=1) & (targets >= 0) & (targets < classes)
    logits, labels = logits[usable], np.asarray(targets)[usable].astype(np.int64)
    predicted = logits.argmax(axis=1)
    hit = predicted == labels
    into.answers[0] += int(hit.sum())
    into.answers[1] += len(targets) - int(hit.sum())
    if "confusion" in into.tables:
        np.add.at(into.tables["confusion"], (labels, predicted), 1)
    bounded = np.clip(logits, -1e300, 1e300)  # so that differences stay finite
    exponentials = np.exp(bounded - bounded.max(axis=1, keepdims=True))
    chances = exponentials / exponentials.sum(axis=1, keepdims=True)
    if "calibration" in into.tables:
        np.add.at(into.tables["calibration"], ((~hit).astype(np.int64), _bin(chances.max(axis=1), component.bins)), 1)
    if "auroc" in into.tables:
        for row, target in enumerate([1] if classes == 2 else range(classes)):
            other = (labels != target).astype(np.int64)
            np.add.at(into.tables["auroc"][row], (other, _bin(chances[:, target], component.bins)), 1)


def _bin(chances: NDArray[np.float64], bins: int) -> Whole:
    return np.minimum((chances * bins).astype(np.int64), bins - 1)


def tables_of(
    scored: Iterable[tuple[NDArray[Any], NDArray[Any]]], classes: int, component: PrivateEvaluation
) -> Counts:
    """The tables of a whole data set, given as pieces (scores, targets)."""
    counts = no_counts(classes, component)
    for scores, targets in scored:
        count(scores, targets, counts, component)
    return counts


def release(
    ledger_file: Path,
    lock_file: Path,
    component: PrivateEvaluation,
    counts: Counts,
    *,
    on_top_of_the_plan: bool = False,
    normals: WholeNormals | None = None,
) -> Evaluation:
    """Record the event, then add noise to the counts, then record the noisy counts, and return them.

    The component is the plan's next one, or paid for on top of the plan. `normals` draws exact noise for a plan on a grid.

    Guarantees: see the module. The noise is rounded to whole numbers, so what is released is a whole number plus noise
    that does not depend on the data, and the low bits of floating point carry nothing.
    """
    noise = deviation(component.sigma, counts.tables)
    with durable.lock(lock_file), LedgerWriter.reopen(ledger_file) as writer:
        if not ledger.read(ledger_file).released:
            raise RunError("only a finished run can be evaluated: its weights are not released yet")
        releaser = Releaser(writer, normals=normals)
        if on_top_of_the_plan:
            writer.append_event(component.event)  # record, then release: on disk before the noise is drawn
        else:
            releaser.record(component, noise)
        right, wrong = map(int, releaser.noisy(counts.answers, noise))
        tables = {name: releaser.noisy(table, noise).tolist() for name, table in counts.tables.items()}
        writer.append_evaluation(right, wrong, tables)
    return Evaluation(right=right, wrong=wrong, sigma=component.sigma, tables=tables)
