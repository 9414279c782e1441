"""A private test score: noisy counts of right and wrong answers on held-out records, paid for before they exist."""

import math
from pathlib import Path

import numpy as np

from apportion import durable, ledger
from apportion.errors import RunError
from apportion.events import GaussianRelease
from apportion.ledger import EVALUATION, Evaluation
from apportion.randomness import RandomStream
from apportion.recording import LedgerWriter


def evaluation_event(sigma: float) -> GaussianRelease:
    """A histogram of two cells: one record changes one count by one, and replacing it may change both."""
    return GaussianRelease(sigma=sigma, replace_one=math.sqrt(2), purpose=EVALUATION)


def release_counts(ledger_file: Path, lock_file: Path, sigma: float, right: int, wrong: int) -> Evaluation:
    """Record the event, then add noise to the counts, then record the noisy counts, and return them.

    Guarantees: N(0, σ²) on each of two counts of which one unit moves one, by one: ρ = 1/(2σ²). The noise is rounded to
    whole numbers, so what is released is a whole number plus noise that does not depend on the data, and the low bits of
    floating point carry nothing. Composed with training as if both had seen every record, although held-out records
    were not trained on.
    """
    event = evaluation_event(sigma)
    with durable.lock(lock_file), LedgerWriter.reopen(ledger_file) as writer:
        if not ledger.read(ledger_file).released:
            raise RunError("only a finished run can be evaluated: its weights are not released yet")
        writer.append_event(event)  # record, then release: on disk before the noise is drawn
        noise = np.rint(event.sigma * RandomStream().normals(2)).astype(np.int64)
        noisy = Evaluation(right=right + int(noise[0]), wrong=wrong + int(noise[1]), sigma=event.sigma)
        writer.append_evaluation(noisy.right, noisy.wrong)
    return noisy
