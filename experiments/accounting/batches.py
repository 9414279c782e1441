"""What reshuffling, partition and sampling really emit: ten numbers in batches of one."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import apportion as ap
from apportion.batching import Batching
from apportion.randomness import RandomStream
from experiments import paper, words
from experiments.experiment import Experiment, Record, Report, Result, Row, Settings, Table

NAME = "batches"
NUMBERS = 10
BATCHINGS: dict[str, Batching] = {
    "shuffle": ap.Shuffle(batches=NUMBERS),
    "partition": ap.Partition(batches=NUMBERS),
    "poisson": ap.Poisson(rate=1 / NUMBERS),
}


def rows(quick: bool) -> Sequence[Row]:
    return [Row(settings={"batching": kind, "epochs": 200 if quick else 20_000}) for kind in BATCHINGS]


def compute(settings: Settings, scratch: Path) -> Result:
    stream, batching = RandomStream(), BATCHINGS[settings["batching"]]
    seen: Counter[str] = Counter()
    empty = largest = 0
    for epoch in range(settings["epochs"]):
        batches = [sorted(map(int, batch)) for batch in batching.draw(NUMBERS, stream)]
        if epoch == 0:
            example = batches
        times = np.bincount([number for batch in batches for number in batch], minlength=NUMBERS)
        seen.update({"never": int((times == 0).sum()), "once": int((times == 1).sum()), "more": int((times > 1).sum())})
        empty += sum(not batch for batch in batches)
        largest = max(largest, max(map(len, batches)))
    total = settings["epochs"] * NUMBERS
    return {
        "example": example,
        **{f"seen_{how}": seen[how] / total for how in ("never", "once", "more")},
        "empty_batches": empty / total,
        "largest_batch": largest,
    }


def report(records: Sequence[Record]) -> Report:
    def written(batches: list[list[int]]) -> str:
        return ",".join("[" + " ".join(map(str, batch)) + "]" for batch in batches)

    examples = [[f"{name} (the paper's)", batches] for name, batches in paper.BATCHES_OF_ONE.items()]
    examples += [[r.settings["batching"], written(r.result["example"])] for r in records]
    measures = ("seen_never", "seen_once", "seen_more", "empty_batches")
    lines = [
        [r.settings["batching"], *(f"{r.result[m]:.4f}" for m in measures), r.result["largest_batch"]] for r in records
    ]
    missed = (1 - 1 / NUMBERS) ** NUMBERS
    columns = ["batching", "never seen", "seen once", "seen more often", "batches empty", "largest batch"]
    text = f"""
{words.table(["batching", "one epoch over 0 … 9 in batches of one"], examples)}

Over {records[0].settings["epochs"]} epochs, as shares:

{words.table(columns, lines)}

**We agree**: reshuffling sees every record exactly once and emits batches of one size; sampling misses a record with
probability
(1 − 1/{NUMBERS})^{NUMBERS} = {missed:.4f} and emits empty batches. The paper concludes that the moments accountant,
proven for sampling, must not be used
for reshuffled batches; so do we. What the paper lacks is the third line: a random partition sees every record exactly once,
like reshuffling, and emits batches of any size, like sampling. Its cost is proven, and about that of sampling.
"""
    tidy = [[r.settings["batching"], *(r.result[m] for m in measures), r.result["largest_batch"]] for r in records]
    return Report(text=text, tables={"shares": Table(columns=("batching", *measures, "largest_batch"), lines=tidy)})


EXPERIMENT = Experiment(
    name=NAME,
    title="What batchings emit",
    re_runs="Table of data batching interfaces",
    rows=rows,
    compute=compute,
    report=report,
)
