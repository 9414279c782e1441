"""Law 5: an empty batch is a step of pure noise; NaN and infinite gradients add nothing and do not spread."""

import math
from pathlib import Path

import pytest
import torch
from conftest import tiny_data, tiny_model, tiny_plan, train

import apportion as ap
from apportion import ledger
from apportion.training.gradients import clipped_sum


def test_law_5_a_run_on_no_data_at_all_is_noise(tmp_path: Path) -> None:
    model = tiny_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    plan = tiny_plan(batching=ap.Partition(batches=3))
    run = train(tmp_path / "run", plan, model=model, data=tiny_data(0))
    assert all(not torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
    assert ledger.read(tmp_path / "run" / "ledger.jsonl").used_slots == plan.epochs
    run.publish(tmp_path / "bundle")
    assert ap.verify(tmp_path / "bundle").verified


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
def test_law_5_a_poisonous_record_does_not_spread(tmp_path: Path, value: float) -> None:
    x, y = tiny_data()
    x[3] = value
    model = tiny_model()
    train(tmp_path / "run", model=model, data=(x, y))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    found = clipped_sum(model, torch.nn.functional.cross_entropy, x, y, clip=1.0)
    assert all(torch.isfinite(total).all() for total in found.sums.values())
