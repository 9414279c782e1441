"""How long a receiver waits: `verify` of a run of 400 epochs, CPU time beyond import, caches empty.

    python benchmarks/verify.py [--rounds 5]

The bundle is made from a ledger and a small weights file, without training. Each round verifies in a fresh process, so
that nothing is remembered from the one before. Results go to benchmarks/results/verify.json.
"""

import argparse
import json
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import apportion as ap
from apportion import canonical, durable
from apportion.bundle import write
from apportion.bundle.files import LEDGER, PLAN, WEIGHTS
from apportion.recording import LedgerWriter

EPOCHS, AIM_SECONDS = 400, 2.0
RESULTS = Path(__file__).parent / "results" / "verify.json"
BATCHINGS = {
    "partition": ap.Partition(batches=100),
    "poisson": ap.Poisson(rate=0.01),
    "shuffle": ap.Shuffle(batches=100),
}
SCHEDULES = {"uniform": ap.Uniform(sigma0=6.0), "exponential": ap.ExponentialDecay(sigma0=8.0, decay=0.001)}

MEASURED = """
import json, sys, time
from pathlib import Path
import apportion
started = time.process_time()
result = apportion.verify(Path(sys.argv[1]))
print(json.dumps({"seconds": time.process_time() - started, "verified": result.verified}))
"""


def make_bundle(directory: Path, batching: ap.Partition | ap.Poisson | ap.Shuffle, schedule: object) -> Path:
    """A run directory as training leaves it, and what publishing makes of it."""
    plan = ap.TrainingPlan(
        budget=ap.Budget(epsilon=100.0, delta=1e-5), examples=60_000, batching=batching, schedule=schedule,
        epochs=EPOCHS, clip=1.0,
    )  # fmt: skip
    run = directory / "run"
    run.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 18], "data_offsets": [0, 1 << 20]}}).encode()
    weights = struct.pack("<Q", len(header)) + header + bytes(1 << 20)
    durable.replace_file(run / WEIGHTS, weights)
    durable.replace_file(run / PLAN, canonical.pretty(plan.to_json()).encode())
    with LedgerWriter.create(run / LEDGER, the_plan=plan, randomness="secure", declared={}) as ledger:
        for _ in range(EPOCHS):
            ledger.take_slot()
        ledger.append_release(canonical.sha256(weights))
    write.publish(run, directory / "bundle")
    return directory / "bundle"


def seconds(bundle: Path) -> float:
    done = subprocess.run([sys.executable, "-c", MEASURED, str(bundle)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["verified"]
    return float(found["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    results = []
    for batching_name, batching in BATCHINGS.items():
        for schedule_name, schedule in SCHEDULES.items():
            with tempfile.TemporaryDirectory() as directory:
                bundle = make_bundle(Path(directory), batching, schedule)
                median = statistics.median(seconds(bundle) for _ in range(rounds))
            entry = {
                "batching": batching_name,
                "schedule": schedule_name,
                "epochs": EPOCHS,
                "cpu_seconds": round(median, 3),
            }
            results.append({**entry, "met": median < AIM_SECONDS})
            print(results[-1], flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"aim_cpu_seconds": AIM_SECONDS, "rounds": rounds, "results": results}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
