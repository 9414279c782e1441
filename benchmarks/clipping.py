"""Clipping modes compared at one budget: test accuracy of each mode and clipping norm.

    python benchmarks/clipping.py wisconsin|mnist [--repeats N] [--data DIRECTORY] [--json FILE]

The learning rate is inversely proportional to the clipping norm, so that the noise moves the weights equally far in all
rows, and what differs is what clipping does. Seeded, so that all rows see the same batches and noise; such runs are not
private.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import apportion as ap
from apportion.data.named import NAMED
from apportion.training import fit

# data set → network, ε, batches per epoch, epochs, lr × clip of flat clipping
SETTINGS = {
    "wisconsin": ((9, 16, 2), 1.0, 4, 20, 1.0),
    "mnist": ((784, 64, 10), 1.0, 60, 8, 1.0),
}


def rows() -> Iterator[tuple[str, float, ap.Flat | ap.PerLayer | ap.Automatic, float]]:
    """(name, clipping norm, mode, learning rate × clipping norm ÷ that of flat clipping)."""
    for clip in (0.01, 0.1, 1.0, 10.0, 100.0):
        yield "flat", clip, ap.Flat(), 1.0
    for clip in (0.01, 0.1, 1.0, 10.0, 100.0):
        # √L times the noise at equal clip: the same noise in the weights at a learning rate that is √L times smaller
        yield "per-layer", clip, ap.PerLayer(layers=2), 0.5**0.5
    yield "automatic", 1.0, ap.Automatic(), 1.0


def accuracy(
    name: str, clip: float, mode: ap.Flat | ap.PerLayer | ap.Automatic, share: float, seed: int, data: Path | None
) -> float:
    widths, epsilon, batches, epochs, rate = SETTINGS[name]
    train, test = NAMED[name].load(data)
    plan = ap.solve(
        budget=ap.Budget(epsilon=epsilon, delta=1e-5),
        examples=len(train),
        batching=ap.Partition(batches=batches),
        schedule=ap.Uniform(),
        epochs=epochs,
        clip=clip,
        clipping=mode,
    )
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(widths[0], widths[1]), nn.Tanh(), nn.Linear(widths[1], widths[2]))
    with tempfile.TemporaryDirectory() as directory:
        fit(
            model,
            (train.inputs.reshape(len(train), -1), train.targets),
            plan,
            loss=nn.functional.cross_entropy,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=share * rate / clip),
            out=Path(directory) / "run",
            progress=False,
            seeded_for_research_only=seed,
        )
    inputs = torch.as_tensor(test.inputs, dtype=torch.float32).reshape(len(test), -1)
    with torch.no_grad():
        return float((model(inputs).argmax(1) == torch.as_tensor(test.targets)).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dataset", choices=SETTINGS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    found = []
    for label, clip, mode, share in rows():
        scores = [accuracy(given.dataset, clip, mode, share, seed, given.data) for seed in range(given.repeats)]
        found.append({"mode": label, "clip": clip, "accuracy": [round(score, 4) for score in scores]})
        print(
            f"{label:10} clip {clip:<6g} accuracy {statistics.mean(scores):.4f} ({min(scores):.4f} to {max(scores):.4f})",
            flush=True,
        )
    if given.json is not None:
        given.json.write_text(
            json.dumps({"dataset": given.dataset, "epsilon": SETTINGS[given.dataset][1], "rows": found}, indent=1)
            + "\n"
        )


if __name__ == "__main__":
    main()
