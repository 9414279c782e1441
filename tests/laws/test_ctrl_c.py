"""Ctrl-C finishes the epoch with the state saved; a second one stops at once. Either way the run can be resumed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_data, tiny_model, tiny_plan, train

from apportion import ledger
from apportion.training import fit

PLAN = tiny_plan(epochs=3, spare_epochs=1)


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    """A process that was started in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupting(at: tuple[int, ...]) -> Any:
    """An optimizer that sends its own process Ctrl-C at these updates."""
    count = [0]

    class Interrupting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            count[0] += 1
            if count[0] in at:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(closure)

    Interrupting.__name__ = "SGD"  # what the ledger declares, so that the run is resumed with what it was begun with
    return lambda parameters: Interrupting(parameters, lr=0.1)


def run_until_interrupted(out: Path, at: tuple[int, ...]) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(
            tiny_model(), tiny_data(), PLAN, loss=torch.nn.functional.cross_entropy, optimizer=interrupting(at), out=out,
            progress=False,
        )  # fmt: skip
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_first_one_finishes_the_epoch_and_saves_it(tmp_path: Path) -> None:
    run_until_interrupted(tmp_path / "run", at=(5,))  # in the middle of the second epoch
    checkpoint = torch.load(tmp_path / "run" / "checkpoints" / "latest.pt", weights_only=True)
    assert checkpoint["completed"] == 2
    train(tmp_path / "run", PLAN, resume=True)
    recorded = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert (recorded.used_slots, recorded.released) == (3, True)  # no slot was lost


def test_the_second_one_stops_at_once_and_costs_the_slot(tmp_path: Path) -> None:
    run_until_interrupted(tmp_path / "run", at=(4, 5))
    checkpoint = torch.load(tmp_path / "run" / "checkpoints" / "latest.pt", weights_only=True)
    assert checkpoint["completed"] == 1
    train(tmp_path / "run", PLAN, resume=True)
    assert ledger.read(tmp_path / "run" / "ledger.jsonl").used_slots == 4
