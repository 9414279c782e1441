"""Secure noise against `torch.normal_`: the time for the same number of values, interleaved, as ratios.

    python benchmarks/noise.py [--json FILE]

Ratios of pairs taken one right after the other, because the machine's speed drifts; CPU time, one thread. The secure
noise is float64 (why: see `apportion.bell`), so it stands beside `normal_` in float64 and in float32.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from gradient_workloads import WORKLOADS

from apportion.randomness import RandomStream
from apportion.training.step import private_step

SIZES = (100_000, 1_000_000, 10_000_000)


def ratios(size: int, dtype: torch.dtype) -> dict[str, object]:
    stream = RandomStream()
    insecure, secure = torch.empty(size, dtype=dtype), torch.zeros(size, dtype=torch.float64)
    found, fast, slow = [], [], []
    for _ in range(max(5, min(51, 20_000_000 // size))):
        start = time.thread_time()
        insecure.normal_()
        middle = time.thread_time()
        stream.add_normals(secure.numpy(), 2.0)
        end = time.thread_time()
        fast.append(middle - start)
        slow.append(end - middle)
        found.append(slow[-1] / fast[-1])
    return {
        "values": size,
        "normal_": str(dtype).removeprefix("torch."),
        "ratio_median": round(statistics.median(found), 3),
        "ratio_of_minima": round(min(slow) / min(fast), 3),
        "nanoseconds_per_value_normal_": round(min(fast) / size * 1e9, 2),
        "nanoseconds_per_value_secure": round(min(slow) / size * 1e9, 2),
    }


def share_of_a_step(name: str, steps: int = 9) -> dict[str, object]:
    """What part of a private step the noise takes: drawing it, against the whole step, in turns."""
    workload = WORKLOADS[name]
    model = workload.model()
    size = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = workload.data(1)
    stream, noise, whole, alone = RandomStream(), torch.zeros(size, dtype=torch.float64), [], []
    for _ in range(steps):
        start = time.thread_time()
        private_step(
            model, torch.nn.functional.cross_entropy, optimizer, inputs, targets,
            clip=1.0, sigma=1.0, nominal_batch_size=len(inputs), stream=stream,
        )  # fmt: skip
        middle = time.thread_time()
        stream.add_normals(noise.numpy(), 1.0)
        whole.append(middle - start)
        alone.append(time.thread_time() - middle)
    shares = [part / total for part, total in zip(alone, whole, strict=True)]
    return {"workload": name, "parameters": size, "share_of_step_median": round(statistics.median(shares[1:]), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [ratios(size, dtype) for dtype in (torch.float64, torch.float32) for size in SIZES]
    shares = [share_of_a_step(name) for name in ("W1", "W3", "W4b", "W5")]
    for row in rows + shares:
        print(row)
    if options.json:
        facts = {"torch": torch.__version__, "machine": platform.machine(), "rows": rows, "shares": shares}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
