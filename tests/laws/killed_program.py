"""A training program for the tests that kill it: python killed_program.py RUN WITNESS, started again and again."""

import sys
import time
from pathlib import Path
from typing import Any

import torch

import apportion as ap
from apportion.training import fit

torch.set_num_threads(1)
BATCHES, EPOCHS = 3, 60


def plan() -> ap.AdaptivePlan:
    return ap.AdaptivePlan(
        budget=ap.Budget(rho=1.0),
        examples=60,
        batching=ap.Shuffle(batches=BATCHES),
        schedule=ap.ValidationDecay(sigma0=8.0, decay=0.9, period=5),
        epochs=EPOCHS,
        clip=1.0,
    )


class Witness(torch.optim.SGD):
    path = ""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with open(self.path, "ab", buffering=0) as file:
            file.write(b".")
        time.sleep(0.005)  # so that kills fall into epochs, too
        return super().step(closure)


def main(run: Path, witness: str) -> None:
    Witness.path = witness
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(7))
    y = (x[:, 0] > 0).long()
    ledger = run / "ledger.jsonl"
    begun = ledger.exists() and b"\n" in ledger.read_bytes()
    if run.exists() and not begun:
        raise SystemExit(3)  # killed before the first line: nothing was spent
    if begun and b'"kind":"release"' in ledger.read_bytes():
        raise SystemExit(4)  # killed after the release
    fit(
        torch.nn.Linear(4, 2), (x, y), plan(), loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: Witness(parameters, lr=0.1), out=run, validation=ap.Public((x[:20], y[:20])),
        progress=False, resume=begun,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
