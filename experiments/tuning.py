"""Trying configurations on validation records, every try kept: `python -m experiments.tuning < configurations`.

One JSON object per line of the input, the settings of a row of `best_mnist` without `part`. What is tried is appended to
results/best-mnist/tuning.jsonl, good or bad, and committed: who reads a result should know of how many it was the best.
"""

import json
import sys
import tempfile
from pathlib import Path

from apportion import canonical
from experiments import best_mnist


def main() -> None:
    for line in sys.stdin:
        settings = {"records": 60_000, **json.loads(line), "part": "validation"}
        with tempfile.TemporaryDirectory() as scratch:
            result = best_mnist.compute(settings, Path(scratch))
        kept = {"how": "trained", **settings, "accuracy": result["accuracy"]}
        with best_mnist.TUNING.open("a") as file:
            file.write(canonical.dumps(kept) + "\n")
        print(json.dumps(kept, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
