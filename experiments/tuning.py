"""Trying configurations on validation records, every try kept: `python -m experiments.tuning NAME < configurations`.

One JSON object per line of the input: the settings of a row of that experiment, without `part`. What is tried
is appended to results/NAME/tuning.jsonl, good or bad, and committed: who reads a result should know of how many it was the
best.
"""

import json
import sys
import tempfile
from pathlib import Path

from apportion import canonical
from experiments import best_cifar, best_mnist, best_schedules

TUNED = {
    best_mnist.NAME: (best_mnist, 60_000),
    best_cifar.NAME: (best_cifar, 50_000),
    best_schedules.NAME: (best_schedules, 60_000),
}


def main(name: str) -> None:
    module, records = TUNED[name]
    module.TUNING.parent.mkdir(parents=True, exist_ok=True)
    for line in sys.stdin:
        settings = {"records": records, **json.loads(line), "part": "validation"}
        with tempfile.TemporaryDirectory() as scratch:
            result = module.compute(settings, Path(scratch))
        kept = {"how": "trained", **settings, "accuracy": result["accuracy"]}
        with module.TUNING.open("a") as file:
            file.write(canonical.dumps(kept) + "\n")
        print(json.dumps(kept, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in TUNED:
        sys.exit(f"usage: python -m experiments.tuning {{{','.join(TUNED)}}} < configurations")
    main(sys.argv[1])
