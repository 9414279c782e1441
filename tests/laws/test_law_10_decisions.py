"""Law 10: every decision is fixed in the plan or depends on public data only; the certificate states the whole plan."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import sgd, tiny_data, tiny_model, tiny_plan, train
from crashing import begin_run
from safetensors.torch import load_file

import apportion as ap
from apportion import ledger
from apportion.errors import DataError, IncompatibleModel, InvalidArgument
from apportion.training import EarlyStop, fit

PUBLIC = ap.Public(tiny_data(20))
PLAN = tiny_plan(epochs=5, schedule=ap.Uniform(sigma0=12.0))


def plateau(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, threshold=10.0)


@pytest.mark.parametrize(
    "options",
    [
        {"stop": EarlyStop(patience=1)},
        {"scheduler": plateau},
        {"weights": "better", "averaging": 0.9},
    ],
    ids=["early stop", "plateau scheduler", "choice of weights"],
)
def test_law_10_a_decision_by_private_data_is_refused(tmp_path: Path, options: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"validation=Public"):
        train(tmp_path / "run", PLAN, **options)
    with pytest.raises(DataError, match=r"PaidLooks"):
        train(tmp_path / "run", PLAN, validation=tiny_data(20), **options)
    assert not (tmp_path / "run").exists()


def test_law_10_early_stop_goes_by_the_recorded_scores_and_does_not_lower_the_guarantee(tmp_path: Path) -> None:
    stopped = train(tmp_path / "run", PLAN, validation=PUBLIC, stop=EarlyStop(patience=1, threshold=1.0))
    recorded = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert (recorded.used_slots, len(recorded.scores)) == (2, 2)
    assert stopped.certificate().epsilon == train(tmp_path / "whole", PLAN).certificate().epsilon
    assert recorded.declared["early stop"] == "patience 1, threshold 1"


def test_law_10_a_plateau_scheduler_sees_the_recorded_scores(tmp_path: Path) -> None:
    optimizers = []

    def make(parameters: Any) -> Any:
        optimizers.append(sgd(parameters))
        return optimizers[-1]

    fit(
        tiny_model(), tiny_data(), PLAN, loss=torch.nn.functional.cross_entropy, optimizer=make, out=tmp_path / "run",
        validation=PUBLIC, scheduler=plateau, progress=False,
    )  # fmt: skip
    assert optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**4)  # the first score improves on nothing


def test_law_10_a_scheduler_fixed_beforehand_needs_no_scores_and_survives_a_resume(tmp_path: Path) -> None:
    def half(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    with pytest.raises(ZeroDivisionError), begin_run(tmp_path / "run", PLAN, scheduler=half) as run:
        for epoch in run:
            if epoch.index == 2:
                raise ZeroDivisionError
            for batch in epoch:
                run.step(batch)
    with begin_run(tmp_path / "run", PLAN, scheduler=half, resume=True) as run:
        assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    with pytest.raises(IncompatibleModel, match="another optimizer"):
        begin_run(tmp_path / "other", PLAN, scheduler=lambda _: half(sgd(tiny_model().parameters())))


def test_law_10_averaged_weights_are_what_is_released(tmp_path: Path) -> None:
    model = tiny_model()
    train(tmp_path / "run", PLAN, model=model, weights="averaged", averaging=0.9)
    released = load_file(tmp_path / "run" / "model.safetensors")
    checkpoint = torch.load(tmp_path / "run" / "checkpoints" / "latest.pt", weights_only=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(released[name], tensor)
        assert torch.equal(released[name], checkpoint["averages"][name])
        assert not torch.equal(released[name], checkpoint["model"][name])


def test_law_10_the_better_weights_are_chosen_in_public(tmp_path: Path) -> None:
    train(tmp_path / "run", PLAN, validation=PUBLIC, weights="better", averaging=0.5)
    released = load_file(tmp_path / "run" / "model.safetensors")
    checkpoint = torch.load(tmp_path / "run" / "checkpoints" / "latest.pt", weights_only=True)
    assert any(torch.equal(released["0.weight"], checkpoint[kind]["0.weight"]) for kind in ("model", "averages"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights": "averaged"}, "averaging"),
        ({"averaging": 0.9}, "averaging"),
        ({"weights": "best"}, "weights must be one of"),
        ({"stop": lambda scores: True, "validation": PUBLIC}, "EarlyStop"),
        ({"scheduler": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o), "validation": PUBLIC}, 'mode="max"'),
    ],
)
def test_law_10_what_cannot_be_meant_is_refused(tmp_path: Path, options: Any, reason: str) -> None:
    with pytest.raises(ap.ApportionError, match=reason):
        train(tmp_path / "run", PLAN, **options)


def test_law_10_closure_optimizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleModel, match="LBFGS"):
        fit(
            tiny_model(), tiny_data(), PLAN, loss=torch.nn.functional.cross_entropy, out=tmp_path / "run",
            optimizer=lambda p: torch.optim.LBFGS(p), progress=False,
        )  # fmt: skip
