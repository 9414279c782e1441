"""Law 4: the divisor, the number of steps and every other constant come from the plan, never from the data."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_data, tiny_model, tiny_plan, train

import apportion as ap
from apportion import ledger
from apportion.errors import DataError
from apportion.randomness import RandomStream
from apportion.training import step


@pytest.mark.parametrize(("noise", "sigma"), [("float", 1e-9), ("grid", 1e-6)])
def test_law_4_the_divisor_is_the_nominal_batch_size(noise: Any, sigma: float) -> None:
    """With hardly any noise, a batch of any size is seen to be divided by the same number."""
    x, y = tiny_data(8)
    for size in (1, 3, 8):
        model = tiny_model()
        before = model[0].weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        clipped = step.clipped_sum(model, torch.nn.functional.cross_entropy, x[:size], y[:size], clip=0.5)
        step.private_step(
            model, torch.nn.functional.cross_entropy, optimizer, x[:size], y[:size],
            clip=0.5, sigma=sigma, nominal_batch_size=20.0, stream=RandomStream(), noise=noise,
        )  # fmt: skip
        torch.testing.assert_close(before - model[0].weight, (clipped.sums["0.weight"] / 20.0).float())


@pytest.mark.parametrize("batching", [ap.Partition(batches=4), ap.Poisson(rate=0.25)], ids=["partition", "poisson"])
@pytest.mark.parametrize("records", [0, 1, 59, 61])
def test_law_4_neighbouring_data_leave_the_same_ledger_and_number_of_steps(
    tmp_path: Path, batching: Any, records: int
) -> None:
    plan = tiny_plan(batching=batching, schedule=ap.Uniform(sigma0=12.0))
    steps = []

    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            steps.append(1)
            return super().step(closure)

    ap.training.fit(
        tiny_model(), tiny_data(records), plan, loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: Counting(parameters, lr=0.1), out=tmp_path / "run", progress=False,
    )  # fmt: skip
    recorded = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert [entry.event for entry in recorded.events] == [slot.event for slot in plan.slots]
    assert len(steps) == 4 * plan.epochs


def test_law_4_shuffle_takes_exactly_the_declared_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="exactly the declared number"):
        train(tmp_path / "run", tiny_plan(), data=tiny_data(59))
