"""A model that was checked stays the model that was checked, and nothing that was not noised is released."""

import copy
from pathlib import Path

import pytest
import torch
from conftest import sgd, tiny_data, tiny_model, tiny_plan, train
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from apportion import ledger
from apportion.errors import ApportionError, BatchMisused, IncompatibleModel, RunError
from apportion.training import start


def begin(out: Path, model: nn.Module | None = None, **changes: object) -> start:  # type: ignore[valid-type]
    values = {"optimizer": sgd, "loss": cross_entropy, "out": out}
    return start(model or tiny_model(), tiny_data(), tiny_plan(), **(values | changes))


def refused_in_a_loop(out: Path, model: nn.Module, meddle: object, reason: str) -> None:
    with pytest.raises(ApportionError, match=reason), begin(out, model) as run:
        for epoch in run:
            for batch in epoch:
                meddle(run, epoch, batch)  # type: ignore[operator]
                run.step(batch)
    assert not ledger.read(out / "ledger.jsonl").released


class Keeping(nn.Module):
    """Keeps the last batch's mean in a place that is published but not trained, from its tenth call on."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 2), 0
        if frozen:
            self.kept = nn.Parameter(torch.zeros(4), requires_grad=False)
        else:
            self.register_buffer("kept", torch.zeros(4))

    def keep(self, x: Tensor) -> None:
        with torch.no_grad():
            self.kept.copy_(x.mean(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


@pytest.mark.parametrize("frozen", [False, True], ids=["buffer", "frozen parameter"])
def test_state_that_is_published_but_not_trained_may_not_change(tmp_path: Path, frozen: bool) -> None:
    refused_in_a_loop(
        tmp_path / "run", Keeping(frozen), lambda run, epoch, batch: run.model.keep(batch.inputs), "kept is not trained"
    )


class Counting(nn.Linear):
    """Publishes, beside its parameters, what `keep` or, if it `watches`, its forward pass saw."""

    def __init__(self, *, watches: bool = False, plain: bool = False) -> None:
        super().__init__(4, 2)
        self.seen, self.watches, self.plain = 0.0, watches, plain

    def keep(self, x: Tensor) -> None:
        self.seen += float(x.sum())

    def forward(self, x: Tensor) -> Tensor:
        if self.watches:
            self.keep(x)
        return super().forward(x)

    def get_extra_state(self) -> object:
        return self.seen if self.plain else torch.tensor(self.seen)

    def set_extra_state(self, state: object) -> None:
        self.seen = float(state)  # type: ignore[arg-type]


def test_extra_state_of_a_module_is_published_too_and_may_not_change(tmp_path: Path) -> None:
    refused_in_a_loop(
        tmp_path / "run",
        Counting(),
        lambda run, epoch, batch: run.model.keep(batch.inputs),
        "extra_state is not trained",
    )


@pytest.mark.parametrize(
    ("model", "reason"), [(Counting(watches=True), "changes in the forward pass"), (Counting(plain=True), "no tensor")]
)
def test_extra_state_that_follows_the_data_or_cannot_be_published_is_refused_first(
    tmp_path: Path, model: nn.Module, reason: str
) -> None:
    with pytest.raises(IncompatibleModel, match=reason):
        begin(tmp_path / "run", model)
    assert not (tmp_path / "run").exists()


def test_extra_state_that_stays_and_tied_parameters_are_no_obstacle(tmp_path: Path) -> None:
    model = nn.Sequential(Counting(), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[2].weight = model[1].weight
    train(tmp_path / "run", model=model)
    assert ledger.read(tmp_path / "run" / "ledger.jsonl").released


def test_a_pinned_batchnorm_may_not_be_unpinned(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm1d(4).eval(), nn.Linear(4, 2))
    refused_in_a_loop(tmp_path / "run", model, lambda run, *_: run.model.train(), "put into training mode")


def test_a_gradient_left_behind_never_reaches_the_parameters(tmp_path: Path) -> None:
    def meddle(run: object, epoch: object, batch: object) -> None:
        cross_entropy(run.model(batch.inputs), batch.targets).backward()  # type: ignore[attr-defined]
        run.model[0].weight.requires_grad_(False)  # type: ignore[attr-defined]

    refused_in_a_loop(tmp_path / "run", tiny_model(), meddle, "frozen, unfrozen or exchanged")


def test_gradients_of_somebody_else_are_dropped() -> None:
    from apportion.randomness import RandomStream
    from apportion.training.step import private_step

    model, (x, y) = tiny_model(), tiny_data()
    optimizer = sgd(model.parameters())
    cross_entropy(1e6 * model(x), y).backward()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    constants = {"clip": 1.0, "sigma": 1.0, "nominal_batch_size": 60.0, "stream": RandomStream()}
    private_step(model, cross_entropy, optimizer, x, y, **constants)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(
    "meddle",
    [
        lambda run, epoch, batch: setattr(epoch, "sigma", 1e-6),
        lambda run, epoch, batch: setattr(batch, "inputs", torch.cat([batch.inputs] * 50)),
        lambda run, epoch, batch: setattr(run, "plan", tiny_plan(clip=100.0)),
        lambda run, epoch, batch: setattr(run, "model", tiny_model()),
    ],
    ids=["sigma", "inputs", "plan", "model"],
)
def test_what_a_step_uses_cannot_be_exchanged(tmp_path: Path, meddle: object) -> None:
    with pytest.raises(AttributeError), begin(tmp_path / "run") as run:
        for epoch in run:
            for batch in epoch:
                meddle(run, epoch, batch)  # type: ignore[operator]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_run_cannot_be_copied(tmp_path: Path, duplicate: object) -> None:
    with begin(tmp_path / "run") as run, pytest.raises(RunError, match="cannot be copied"):
        duplicate(run)  # type: ignore[operator]


def test_nothing_is_stepped_after_the_run_ended(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as run:
        for epoch in run:
            batches = iter(epoch)
            batch = next(batches)
            break
    with pytest.raises(BatchMisused):
        run.step(batch)
    with pytest.raises(BatchMisused):
        next(batches)


def test_two_open_runs_on_one_model_are_refused(tmp_path: Path) -> None:
    model = tiny_model()
    with begin(tmp_path / "a", model), pytest.raises(RunError, match="another open run"), begin(tmp_path / "b", model):
        pass
    with begin(tmp_path / "c", model):
        pass


def test_a_model_trained_before_says_so_in_its_ledger(tmp_path: Path) -> None:
    model = tiny_model()
    first = train(tmp_path / "first", model=model)
    second = train(tmp_path / "second", model=model)
    assert "starting point" not in first.certificate().to_json()["declared"]
    assert "on top" in second.certificate().to_json()["declared"]["starting point"]


def test_resuming_with_another_loss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), begin(tmp_path / "run"):
        raise KeyboardInterrupt

    def mine(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(RunError, match="another loss"), begin(tmp_path / "run", loss=mine, resume=True):
        pass


def test_a_loss_that_depends_on_the_batch_size_is_found_behind_dropout(tmp_path: Path) -> None:
    def scaled(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none") * 300 / len(targets)

    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 2))
    with pytest.raises(IncompatibleModel, match="size of the batch"):
        begin(tmp_path / "run", model, loss=scaled)
