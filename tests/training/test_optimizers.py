"""Any optimizer of torch without closures, any learning-rate scheduler by epoch or step, any loss per example."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import sgd, tiny_data, tiny_model, tiny_plan, train
from safetensors.torch import load_file
from torch.nn import functional
from torch.optim import lr_scheduler

import apportion as ap
from apportion import ledger
from apportion.errors import IncompatibleModel, InvalidArgument
from apportion.training import LinearThenConstant, fit, start
from apportion.training.averaging import WeightAverage

PLAN = tiny_plan(epochs=4, schedule=ap.Uniform(sigma0=12.0))
OPTIMIZERS = [
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta,
    torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.ASGD, torch.optim.Rprop, torch.optim.Adafactor,
]  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.__name__)
def test_every_optimizer_of_torch_without_closures_trains(tmp_path: Path, optimizer: Any) -> None:
    model = tiny_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fit(
        model, tiny_data(), tiny_plan(), loss=functional.cross_entropy, out=tmp_path / "run", progress=False,
        optimizer=lambda parameters: optimizer(parameters, lr=0.01),
    )  # fmt: skip
    assert all(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.isfinite(model[0].weight).all()


class NeedsClosure(torch.optim.SGD):
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return closure()


def test_an_optimizer_whose_step_needs_a_closure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleModel, match=r"NeedsClosure\.step needs a closure"):
        start(
            tiny_model(), tiny_data(), PLAN, loss=functional.cross_entropy, out=tmp_path / "run",
            optimizer=lambda parameters: NeedsClosure(parameters, lr=0.1),
        )  # fmt: skip


def rates(out: Path, scheduler: Any, every: str = "epoch", plan: Any = PLAN) -> list[float]:
    """The learning rate of every step."""
    found = []
    with start(
        tiny_model(), tiny_data(), plan, loss=functional.cross_entropy, optimizer=sgd, out=out, scheduler=scheduler,
        scheduler_every=every,
    ) as run:  # fmt: skip
        for epoch in run:
            for batch in epoch:
                found.append(run.optimizer.param_groups[0]["lr"])
                run.step(batch)
    return found


def test_a_scheduler_goes_by_epoch_or_by_step(tmp_path: Path) -> None:
    def half(optimizer: Any) -> Any:
        return lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

    assert rates(tmp_path / "epoch", half) == pytest.approx([0.1 * 0.5 ** (step // 3) for step in range(12)])
    assert rates(tmp_path / "step", half, "step") == pytest.approx([0.1 * 0.5**step for step in range(12)])
    assert ledger.read(tmp_path / "step" / "ledger.jsonl").declared["learning rate"] == "ExponentialLR, by step"


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.StepLR(o, 2),
        lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
        lambda o: lr_scheduler.CosineAnnealingLR(o, 12),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
        lambda o: lr_scheduler.PolynomialLR(o, 12),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
        lambda o: lr_scheduler.LinearLR(o, total_iters=4),
        lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # SequentialLR's own doing
def test_every_scheduler_of_torch_is_taken_by_step(tmp_path: Path, make: Any) -> None:
    assert len(set(rates(tmp_path / "run", make, "step"))) > 1


def test_the_papers_learning_rate_falls_linearly_then_stays(tmp_path: Path) -> None:
    found = rates(tmp_path / "run", LinearThenConstant(end=0.05, over=2))
    assert found == pytest.approx([0.1] * 3 + [0.075] * 3 + [0.05] * 6)
    declared = ledger.read(tmp_path / "run" / "ledger.jsonl").declared
    assert declared["learning rate"] == "linearly to 0.05 over 2, then constant"


def test_a_scheduler_by_step_survives_a_resume(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "loss": functional.cross_entropy, "optimizer": sgd, "out": tmp_path / "run", "scheduler_every": "step",
        "scheduler": LinearThenConstant(end=0.01, over=9), "weights": "averaged", "averaging": 0.9,
    }  # fmt: skip
    plan = tiny_plan(epochs=3, spare_epochs=1, schedule=ap.Uniform(sigma0=12.0))
    with pytest.raises(ZeroDivisionError), start(tiny_model(), tiny_data(), plan, **options) as run:
        for epoch in run:
            for number, batch in enumerate(epoch):
                if epoch.index == 1 and number == 1:
                    raise ZeroDivisionError
                run.step(batch)
    with start(tiny_model(), tiny_data(), plan, **options, resume=True) as run:
        assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 - 0.01 * 3)
        for epoch in run:
            for batch in epoch:
                run.step(batch)
        assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert torch.load(tmp_path / "run" / "checkpoints" / "latest.pt", weights_only=True)["averaged_steps"] == 9


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scheduler_every": "step"}, "belongs to a scheduler"),
        ({"scheduler": LinearThenConstant(end=0.1, over=2), "scheduler_every": "batch"}, "scheduler_every"),
        (
            {
                "scheduler": lambda o: lr_scheduler.ReduceLROnPlateau(o, mode="max"),
                "scheduler_every": "step",
                "validation": ap.Public(tiny_data(9)),
            },
            "by epoch",
        ),
    ],
)
def test_a_scheduler_that_cannot_be_meant_is_refused(tmp_path: Path, options: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        train(tmp_path / "run", PLAN, **options)
    assert not (tmp_path / "run").exists()


def test_the_average_is_that_of_the_weights_after_every_step(tmp_path: Path) -> None:
    model, expected = tiny_model(), None
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with start(
        model, tiny_data(), PLAN, loss=functional.cross_entropy, optimizer=sgd, out=tmp_path / "run",
        weights="averaged", averaging=0.3,
    ) as run:  # fmt: skip
        steps = 0
        for epoch in run:
            for batch in epoch:
                run.step(batch)
                steps += 1
                kept = min(0.3, (1 + steps) / (10 + steps))
                for name, tensor in model.state_dict().items():
                    expected[name] = kept * expected[name] + (1 - kept) * tensor
    for name, tensor in load_file(tmp_path / "run" / "model.safetensors").items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-6)


def test_a_slow_average_forgets_the_beginning_of_a_short_run() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1000.0)
    average = WeightAverage(model, 0.9999)
    model.weight.data.fill_(1.0)
    for _ in range(100):
        average.add()
    assert float(average.averages["weight"]) == pytest.approx(1.0, abs=1e-3)


def test_the_baseline_without_privacy_averages_too(tmp_path: Path) -> None:
    plan = ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=3), epochs=2)
    train(tmp_path / "run", plan, weights="averaged", averaging=0.5)
    saved = torch.load(tmp_path / "run" / "checkpoints" / "latest.pt", weights_only=True)
    assert saved["averaged_steps"] == 6


REGRESSIONS = [
    functional.mse_loss,
    torch.nn.HuberLoss(),
    functional.l1_loss,
    lambda outputs, targets: (outputs - targets).square().sum(1) + outputs.abs().mean(1),
]


@pytest.mark.parametrize("loss", REGRESSIONS, ids=["mse", "Huber", "l1", "own"])
def test_regression_trains_and_its_holdout_is_scored_by_the_loss(tmp_path: Path, loss: Any) -> None:
    x, _ = tiny_data()
    data = (x, x[:, :2] * 0.5)
    fit(
        tiny_model(), data, PLAN, loss=loss, optimizer=sgd, out=tmp_path / "run", holdout=data, progress=False,
        max_physical_batch=7,
    )  # fmt: skip
    line = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert '"loss"' in line
    assert '"accuracy"' not in line


def test_from_the_command_line(apportion: Any, tmp_path: Path) -> None:
    code, _, err = apportion(
        "train", "--dataset", "wisconsin", "--examples", 560, "--epsilon", 2, "--delta", 1e-5, "--batches", 4, "--epochs",
        2, "--lr", 0.5, "--lr-end", 0.1, "--lr-epochs", 2, "--average-weights", 0.9, "--max-physical-batch", 32,
        "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert code == 0, err
    declared = ledger.read(tmp_path / "run" / "ledger.jsonl").declared
    assert declared["learning rate"] == "linearly to 0.1 over 2, then constant"
    assert declared["weights"] == "averaged (0.9)"
    code, _, err = apportion("train", "--dataset", "wisconsin", "--lr-end", 0.1, "--average-weights", 2, "--dry-run")
    assert code == 2
    assert "lr_epochs" in err
    assert "average_weights" in err
