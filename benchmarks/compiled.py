"""Small models with `compile=True` and without, against ordinary training: whole steps, interleaved, as ratios.

    python benchmarks/compiled.py [--json FILE]

One thread, processor time, medians over rounds. The models are such that compiling applies to: not plain sequences of
linear layers, which are quicker as they are.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from apportion.randomness import RandomStream
from apportion.training.gradients import compile_gradients
from apportion.training.step import private_step

ROUNDS, STEPS = 15, 20


def table() -> tuple[nn.Module, Tensor]:
    layers = [
        nn.Linear(16, 32),
        nn.LayerNorm(32),
        nn.GELU(),
        nn.Linear(32, 32),
        nn.LayerNorm(32),
        nn.GELU(),
        nn.Linear(32, 2),
    ]
    return nn.Sequential(*layers), torch.randn(128, 16)


def images() -> tuple[nn.Module, Tensor]:
    convolutions = [nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 8, 3, 2), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(72, 2)), torch.randn(128, 1, 16, 16)


def sequences() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(128, 2)), torch.randn(64, 8, 16)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {"table": table, "images": images, "sequences": sequences}


def stepping(make: Callable[[], tuple[nn.Module, Tensor]], private: bool, compiled: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    model, inputs = make()
    targets, stream = torch.randint(0, 2, (len(inputs),)), RandomStream()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compile_gradients(model, len(inputs) if compiled else None)

    def step() -> None:
        if private:
            private_step(
                model, cross_entropy, optimizer, inputs, targets,
                clip=1.0, sigma=1.0, nominal_batch_size=len(inputs), stream=stream,
            )  # fmt: skip
        else:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return step


def measured(name: str) -> dict[str, object]:
    ways = {"ordinary": (False, False), "private": (True, False), "compiled": (True, True)}
    steps = {way: stepping(MODELS[name], *options) for way, options in ways.items()}
    first = {}
    for way, step in steps.items():
        start = time.perf_counter()
        step()
        first[way] = time.perf_counter() - start
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, step in steps.items():
            start = time.process_time()
            for _ in range(STEPS):
                step()
            times[way].append((time.process_time() - start) / STEPS)
    found: dict[str, object] = {"model": name, "ordinary_ms": round(1e3 * statistics.median(times["ordinary"]), 3)}
    for way in ("private", "compiled"):
        ratios = [own / other for own, other in zip(times[way], times["ordinary"], strict=True)]
        found[f"{way}_to_ordinary"] = [round(value, 2) for value in statistics.quantiles(ratios, n=4)]
    return found | {"seconds_to_compile": round(first["compiled"] - first["private"], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in MODELS:
        rows.append(measured(name))
        print(rows[-1], flush=True)
    if options.json:
        facts = {"torch": torch.__version__, "machine": platform.machine(), "rows": rows}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
