"""Membership inference: who was in the training set? Scores of two attacks, and how well any score tells.

Rows are models, columns are records. `member[m, r]` says whether model m was trained on record r; every model has drawn
its members by fair coins, so each model can be attacked with all the others as its shadows.
"""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Bits = NDArray[np.bool_]
_LEAST_DEVIATION = 1e-3


def scaled_confidence(probability: Scores) -> Scores:
    """log p/(1 − p), p being the probability of the right label: nearly normal over models, which p is not."""
    p = np.clip(probability, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p))


def likelihood_ratios(confidence: Scores, member: Bits) -> Scores:
    """log of how much likelier each confidence is among the other models that had the record than among those without.

    Both are taken for normal, with means of the record's own and deviations that all records share: a few dozen shadows
    are too few for the deviation of a single record.
    """
    models = len(confidence)
    others = ~np.eye(models, dtype=bool)
    ratios = np.empty_like(confidence)
    for m in range(models):
        inside, outside = member & others[m][:, None], ~member & others[m][:, None]
        ratios[m] = _log_density(confidence[m], confidence, inside) - _log_density(confidence[m], confidence, outside)
    return ratios


def _log_density(x: Scores, confidence: Scores, chosen: Bits) -> Scores:
    counts = np.maximum(chosen.sum(0), 1)
    means = np.where(chosen, confidence, 0.0).sum(0) / counts
    squares = np.where(chosen, (confidence - means) ** 2, 0.0).sum()
    deviation = max(np.sqrt(squares / max(1, int((counts - 1).sum()))), _LEAST_DEVIATION)
    return np.asarray(-((x - means) ** 2) / (2 * deviation**2) - np.log(deviation))


def true_positive_rates(scores: Scores, member: Bits, false_positive_rates: Scores) -> Scores:
    """The share of members above the threshold at which at most such a share of the others is; one threshold for all."""
    others = np.sort(scores[~member])[::-1]
    allowed = np.floor(np.asarray(false_positive_rates) * len(others) + 1e-9).astype(int)
    members = np.sort(scores[member])
    above = np.concatenate([others, [-np.inf]])[np.minimum(allowed, len(others))]
    return np.asarray(1 - np.searchsorted(members, above, side="right") / len(members))


def area(scores: Scores, member: Bits) -> float:
    """The chance that a member scores higher than another record, ties counting half."""
    members, others = scores[member], np.sort(scores[~member])
    below = np.searchsorted(others, members, side="left") + np.searchsorted(others, members, side="right")
    return float(below.mean() / (2 * len(others)))
