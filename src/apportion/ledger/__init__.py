"""The ledger: an append-only chain of JSON lines, each on disk before anything computed with its noise is used.

    line 0       plan      the whole plan, how randomness was made, and what was declared public
    line 1 … n   event     one mechanism that ran; an epoch names the plan's slot that it takes, a component its number
                 choice    which candidate a private selection chose, and its noisy score if that is part of the output
                 score     what the model scored after a slot, on public data; adaptive noise follows from these
    then         release   the hash of the weights that were released: no slot is taken after it
    perhaps      event, evaluation   a private score: its cost, then the noisy counts that were released

Every line carries its index, the hash of the line before it and the hash of itself. The ledger holds no clock time, host
name, realised batch size or other realised quantity of the private data, so it can be published as it is.
"""

from apportion.ledger.chain import START, intact_part, seal
from apportion.ledger.evaluation import Evaluation
from apportion.ledger.outcomes import Choice, RecordedScore
from apportion.ledger.reading import Ledger, parse, parse_intact_part, read
from apportion.ledger.recorded_event import SIGMA_TOLERANCE, RecordedEvent
from apportion.ledger.recorded_plan import (
    FORMAT,
    NOT_FOR_PERSONS,
    Randomness,
    RecordedPlan,
    most_slots,
    protects_persons,
)

__all__ = [
    "FORMAT",
    "NOT_FOR_PERSONS",
    "SIGMA_TOLERANCE",
    "START",
    "Choice",
    "Evaluation",
    "Ledger",
    "Randomness",
    "RecordedEvent",
    "RecordedPlan",
    "RecordedScore",
    "intact_part",
    "most_slots",
    "parse",
    "parse_intact_part",
    "protects_persons",
    "read",
    "seal",
]
