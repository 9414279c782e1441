"""Peak memory of training on a Parquet file, for growing numbers of rows, up to five million.

    python benchmarks/streaming.py [--rows 500000 5000000] [--scratch DIRECTORY] [--json FILE]

The table is made up and written in row groups. Each training is a process of its own, so that its peak is its own: the
largest resident set that the operating system saw, after importing, after checking and scaling the table, and at the end.
What grows with the rows is the list of who is in which batch; what a table in memory would take stands beside it.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import apportion as ap
from apportion.data import Declared, stream_table
from apportion.training import fit

FEATURES, BATCHES, EPOCHS, GROUP = 20, 100, 2, 100_000
MEMORY_LIMIT = 64 << 20  # for the examples that are worked on at once
DECLARED = Declared(
    target="y", classes=("0", "1"), ranges={f"x{number}": (-3.0, 3.0) for number in range(FEATURES)}, ignore=("id",)
)


def write_table(path: Path, rows: int) -> None:
    import pyarrow
    import pyarrow.parquet

    generator = np.random.default_rng(1)
    writer = None
    for start in range(0, rows, GROUP):
        count = min(GROUP, rows - start)
        x = generator.normal(size=(count, FEATURES)).round(4)
        columns = {f"x{number}": x[:, number] for number in range(FEATURES)}
        y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(int).astype(str)
        block = pyarrow.table({"id": [f"person {start + i}" for i in range(count)], **columns, "y": y})
        writer = writer or pyarrow.parquet.ParquetWriter(path, block.schema)
        writer.write_table(block)
    assert writer is not None
    writer.close()


def peak() -> int:
    """Where there is /proc, from there: what `getrusage` says includes the parent's peak, on Linux."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(path: Path, rows: int, scratch: Path) -> dict[str, object]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: dict[str, object] = {"rows": rows, "file_bytes": path.stat().st_size, "peak_bytes_after_imports": peak()}
    plan = ap.solve(
        budget=ap.Budget(epsilon=1.0, delta=1e-8), examples=rows, batching=ap.Partition(batches=BATCHES),
        schedule=ap.Uniform(), epochs=EPOCHS, clip=1.0,
    )  # fmt: skip
    found["peak_bytes_after_planning"] = peak()
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    start = time.perf_counter()
    with stream_table(path, DECLARED, scratch=scratch) as table:
        found |= {
            "seconds_checking_and_scaling": round(time.perf_counter() - start, 1),
            "peak_bytes_after_checking_and_scaling": peak(),
            "bytes_of_scaled_rows": table.rows.bytes,
        }
        start = time.perf_counter()
        run = fit(
            model, table, plan, loss=torch.nn.functional.cross_entropy, out=scratch / f"run-{rows}", progress=False,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0), memory_limit=MEMORY_LIMIT,
        )  # fmt: skip
        found["seconds_per_epoch"] = round((time.perf_counter() - start) / EPOCHS, 1)
        found["peak_bytes"] = peak()
    x = np.random.default_rng(2).normal(size=(20_000, FEATURES))
    with torch.no_grad():
        answers = model(torch.tensor(np.clip(x, -3, 3) / 3).float()).argmax(1).numpy()
    found["accuracy_on_fresh_records"] = round(float((answers == (x[:, 0] + 0.5 * x[:, 1] > 0)).mean()), 4)
    return found | {"epsilon": run.certificate().epsilon}


def in_a_process(path: Path, rows: int, scratch: Path) -> dict[str, object]:
    command = [sys.executable, __file__, "--train", str(path), "--rows", str(rows), "--scratch", str(scratch)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[500_000, 5_000_000])
    parser.add_argument("--scratch", type=Path, help="a directory with some gigabytes to spare")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "streaming.json")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.train is not None:
        print(json.dumps(train(chosen.train, chosen.rows[0], chosen.scratch)))
        return
    found = []
    with tempfile.TemporaryDirectory(dir=chosen.scratch) as directory:
        for rows in chosen.rows:
            path = Path(directory) / f"{rows}.parquet"
            write_table(path, rows)
            found.append(in_a_process(path, rows, Path(directory)))
            path.unlink()
            print(json.dumps(found[-1], indent=2), flush=True)
    machine = {"python": platform.python_version(), "torch": torch.__version__, "processors": os.cpu_count()}
    setting = {"features": FEATURES, "batches": BATCHES, "epochs": EPOCHS, "memory_limit": MEMORY_LIMIT}
    chosen.json.write_text(json.dumps({"machine": machine, "setting": setting, "results": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
