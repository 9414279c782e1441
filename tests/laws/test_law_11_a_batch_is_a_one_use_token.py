"""Law 11: a batch is stepped once, in order and within its epoch; a batch left unstepped becomes a noise-only step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_plan
from crashing import begin_run

from apportion.errors import BatchMisused
from apportion.training import Batch
from apportion.training import run as runs

PLAN = tiny_plan(epochs=2)


def parameters(run: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in run.model.parameters()]


def test_law_11_misuse_raises_before_touching_the_model(tmp_path: Path) -> None:
    with begin_run(tmp_path / "run", PLAN) as run:
        epochs = iter(run)
        first = next(epochs)
        batches = iter(first)
        one = next(batches)
        run.step(one)
        two = next(batches)
        for wrong in (one, Batch([(two.inputs, two.targets)])):
            before = parameters(run)
            with pytest.raises(BatchMisused):
                run.step(wrong)
            assert all(torch.equal(a, b) for a, b in zip(before, parameters(run), strict=True))
        second = next(epochs)
        before = parameters(run)
        for misuse in (lambda: run.step(two), lambda: next(batches), lambda: iter(first)):
            with pytest.raises(BatchMisused):
                misuse()
        assert all(torch.equal(a, b) for a, b in zip(before, parameters(run), strict=True))
        assert second.index == 1


def test_law_11_an_unstepped_batch_becomes_a_noise_only_step(tmp_path: Path, monkeypatch: Any) -> None:
    sizes = []
    real = runs.step_in_parts

    def watching(model: Any, loss: Any, optimizer: Any, parts: Any, **options: Any) -> Any:
        sizes.append(sum(len(inputs) for inputs, _ in parts))
        return real(model, loss, optimizer, parts, **options)

    monkeypatch.setattr(runs, "step_in_parts", watching)
    with begin_run(tmp_path / "run", PLAN) as run:
        for epoch in run:
            for number, batch in enumerate(epoch):
                if number != 1:
                    run.step(batch)
    assert sizes == [20, 0, 20] * 2
