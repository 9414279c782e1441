"""Callbacks are told public values only; private metrics stay in the run directory, and with loggers that keep to it."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_data, tiny_model, tiny_plan, train
from safetensors.torch import load_file

import apportion as ap
from apportion import ledger
from apportion.errors import InvalidArgument
from apportion.training import EpochReport, LinearThenConstant, Logger, TensorBoard

PLAN = tiny_plan(epochs=3, schedule=ap.ExponentialDecay(sigma0=14.0, decay=0.01))


class Kept:
    """A logger that remembers what it was told."""

    def __init__(self, keeps_to_run_directory: bool) -> None:
        self.keeps_to_run_directory = keeps_to_run_directory
        self.told: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def open(self, run_directory: Path) -> None:
        assert run_directory.is_dir()

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        self.told.append((epoch, dict(values)))

    def close(self) -> None:
        self.closed += 1


def test_callbacks_are_told_public_values_only(tmp_path: Path) -> None:
    reports: list[EpochReport] = []
    model = tiny_model()
    train(
        tmp_path / "run", PLAN, model=model, callbacks=[reports.append], validation=ap.Public(tiny_data(20)),
        scheduler=LinearThenConstant(end=0.05, over=2), holdout=tiny_data(30),
    )  # fmt: skip
    recorded = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert [report.sigma for report in reports] == pytest.approx(PLAN.sigmas)
    assert [report.completed for report in reports] == [1, 2, 3]
    assert [report.score for report in reports] == [recorded_score.score for recorded_score in recorded.scores]
    assert [report.learning_rate for report in reports] == pytest.approx([0.075, 0.05, 0.05])
    public = {"index", "completed", "sigma", "learning_rate", "score", "weights"}
    assert {field.name for field in fields(EpochReport)} == public, "whatever is added must be public"
    for name, value in load_file(tmp_path / "run" / "model.safetensors").items():
        assert torch.equal(reports[-1].weights()[name], value)


def test_a_callback_cannot_change_the_model_through_what_it_is_told(tmp_path: Path) -> None:
    model = tiny_model()
    before = []

    def spoil(report: EpochReport) -> None:
        before.append(model[0].weight.detach().clone())
        for tensor in report.weights().values():
            tensor.fill_(1e9)
        assert torch.equal(model[0].weight, before[-1])

    train(tmp_path / "run", PLAN, model=model, callbacks=[spoil])
    assert len(before) == 3


def test_private_metrics_reach_only_loggers_that_keep_to_the_run_directory(tmp_path: Path) -> None:
    inside, outside = Kept(True), Kept(False)
    assert isinstance(inside, Logger)
    train(tmp_path / "run", PLAN, loggers=[inside, outside], holdout=tiny_data(30))
    assert [epoch for epoch, _ in inside.told] == [0, 1, 2]
    assert set(outside.told[0][1]) == {"sigma", "learning_rate"}
    private = set(inside.told[0][1]) - set(outside.told[0][1])
    assert {"private/holdout/accuracy", "private/gradient_norm_median", "private/seconds"} <= private
    assert inside.closed == outside.closed == 1
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["holdout"]["accuracy"] for line in lines] == [v["private/holdout/accuracy"] for _, v in inside.told]


def test_an_exception_in_a_callback_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    logger = Kept(False)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", PLAN, callbacks=[lambda report: 1 / 0], loggers=[logger])
    assert logger.closed == 1
    train(tmp_path / "run", PLAN, resume=True)
    assert ledger.read(tmp_path / "run" / "ledger.jsonl").used_slots == 3


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"callbacks": ["print"]}, "callable"), ({"loggers": [print]}, "keeps_to_run_directory")],
)
def test_what_cannot_watch_is_refused(tmp_path: Path, options: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        train(tmp_path / "run", PLAN, **options)
    assert not (tmp_path / "run").exists()


def test_tensorboard_keeps_private_metrics_in_the_run_directory_only(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path / "run", PLAN, loggers=[TensorBoard(), TensorBoard(tmp_path / "shown")], holdout=tiny_data(30))
    found = {}
    for name, directory in (("inside", tmp_path / "run" / "tensorboard"), ("outside", tmp_path / "shown")):
        events = EventAccumulator(str(directory))
        events.Reload()
        found[name] = {tag: [point.value for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert [point.wall_time for point in events.Scalars("sigma")] == [0, 1, 2], (
        "outside, clock times tell of the records"
    )
    assert set(found["outside"]) == {"sigma", "learning_rate"}
    assert found["outside"]["sigma"] == pytest.approx(PLAN.sigmas)
    assert "private/holdout/accuracy" in found["inside"]


def test_tensorboard_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InvalidArgument, match=r"apportion\[tensorboard\]"):
        TensorBoard()
