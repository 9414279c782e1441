"""Law 2: the plan's slots are what is certified, run or not; an interrupted epoch has used its slot."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_data, tiny_plan, train
from crashing import begin_run

import apportion as ap
from apportion import durable, ledger
from apportion.errors import RunError

LEDGER = "ledger.jsonl"
ADAPTIVE = ap.AdaptivePlan(
    budget=ap.Budget(rho=0.05),
    examples=60,
    batching=ap.Shuffle(batches=2),
    schedule=ap.ValidationDecay(sigma0=8.0, decay=0.7, period=2),
    clip=1.0,
)


def interrupted(out: Path, plan: Any, at: int, **options: Any) -> None:
    with pytest.raises(ZeroDivisionError), begin_run(out, plan, **options) as run:
        for epoch in run:
            for number, batch in enumerate(epoch):
                if (epoch.index, number) == (at, 1):
                    raise ZeroDivisionError
                run.step(batch)


def test_law_2_an_interrupted_epoch_is_not_run_again(tmp_path: Path) -> None:
    plan = tiny_plan(epochs=3, spare_epochs=1, schedule=ap.ExponentialDecay(sigma0=12.0, decay=0.1))
    interrupted(tmp_path / "run", plan, at=1)
    run = train(tmp_path / "run", plan, resume=True)
    recorded = ledger.read(tmp_path / "run" / LEDGER)
    assert [entry.event for entry in recorded.events] == [slot.event for slot in plan.slots]  # three, and the lost one
    assert run.certificate().epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-3)


def test_law_2_without_spare_epochs_an_interruption_costs_an_epoch(tmp_path: Path) -> None:
    plan = tiny_plan(epochs=3)
    interrupted(tmp_path / "run", plan, at=1)
    train(tmp_path / "run", plan, resume=True)
    assert ledger.read(tmp_path / "run" / LEDGER).used_slots == 3


def test_law_2_stopping_early_does_not_lower_the_guarantee(tmp_path: Path) -> None:
    plan = tiny_plan(epochs=3)
    with begin_run(tmp_path / "short", plan) as run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)
            break
    whole = train(tmp_path / "long", plan).certificate()
    short = run.finished.certificate()
    assert short.ledger.used_slots == 1
    assert short.epsilon == whole.epsilon


def test_law_2_a_torn_or_garbled_last_line_counts_as_a_used_slot(tmp_path: Path) -> None:
    plan = tiny_plan(epochs=3, spare_epochs=1)
    for number, rest in enumerate((b'{"body":{"event":', b"\0" * 300, b'{"body":{"event":\n')):
        out = tmp_path / str(number)
        interrupted(out, plan, at=1)
        with open(out / LEDGER, "ab") as file:
            file.write(rest)
        train(out, plan, resume=True)
        recorded = ledger.read(out / LEDGER)
        assert recorded.used_slots == 4  # one finished, one interrupted, one torn, one left


def test_law_2_damage_before_the_last_line_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    plan = tiny_plan(epochs=3)
    interrupted(tmp_path / "run", plan, at=1)
    damaged = (tmp_path / "run" / LEDGER).read_bytes().replace(b'"sigma":8.0', b'"sigma":9.0', 1)
    (tmp_path / "run" / LEDGER).write_bytes(damaged)
    with pytest.raises(ap.ApportionError, match="line 1"):
        train(tmp_path / "run", plan, resume=True)
    assert (tmp_path / "run" / LEDGER).read_bytes() == damaged


def test_law_2_a_ledger_older_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    plan = tiny_plan(epochs=3)
    interrupted(tmp_path / "run", plan, at=2)
    path = tmp_path / "run" / LEDGER
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(RunError, match="older than"):
        train(tmp_path / "run", plan, resume=True)


def test_law_2_a_checkpoint_of_another_run_or_model_is_refused(tmp_path: Path) -> None:
    import torch

    plan = tiny_plan(epochs=3)
    for name in "ab":
        interrupted(tmp_path / name, plan, at=1)
    mine, other = (tmp_path / name / "checkpoints" / "latest.pt" for name in "ab")
    kept = mine.read_bytes()
    for content, reason in ((other.read_bytes(), "another run"), (b"nonsense", "not a readable checkpoint")):
        mine.write_bytes(content)
        with pytest.raises(RunError, match=reason):
            train(tmp_path / "a", plan, resume=True)
    mine.write_bytes(kept)
    with pytest.raises(RunError, match="another model"):
        train(tmp_path / "a", plan, resume=True, model=torch.nn.Linear(4, 2))
    assert ledger.read(tmp_path / "a" / LEDGER).used_slots == 2
    train(tmp_path / "a", plan, resume=True)


def test_law_2_the_second_process_on_a_run_is_refused_also_after_a_crash_of_the_first(tmp_path: Path) -> None:
    plan = tiny_plan(epochs=3)
    interrupted(tmp_path / "run", plan, at=1)
    with begin_run(tmp_path / "run", plan, resume=True), pytest.raises(RunError, match="in use by another process"):
        begin_run(tmp_path / "run", plan, resume=True).__enter__()
    with pytest.raises(RunError, match="finished"):
        train(tmp_path / "run", plan, resume=True)


@pytest.mark.parametrize("plan", [tiny_plan(epochs=3, spare_epochs=1), ADAPTIVE], ids=["fixed", "adaptive"])
def test_law_2_status_counts_a_torn_line_and_changes_nothing(tmp_path: Path, apportion: Any, plan: Any) -> None:
    options = {"validation": ap.Public(tiny_data(20))} if plan is ADAPTIVE else {}
    interrupted(tmp_path / "run", plan, at=1, **options)
    with open(tmp_path / "run" / LEDGER, "ab") as file:
        file.write(b'{"body"')
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    code, out, _ = apportion("status", tmp_path / "run", "--json")
    state = json.loads(out)
    assert code == 0
    assert (state["slots_used"], state["finished"], state["resumable"]) == (3, False, True)
    assert state["slots"] == (None if plan is ADAPTIVE else 4)
    assert state["epsilon"] > 0
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_law_2_a_directory_that_cannot_be_written_is_refused_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    plan = tiny_plan(epochs=3, spare_epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(RunError, match="Read-only file system; nothing was spent"):
            train(tmp_path / "run", plan)
    interrupted(tmp_path / "run", plan, at=1)
    before = (tmp_path / "run" / LEDGER).read_bytes()
    for name in ("open", "write", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(durable.os, name, refuse)
            with pytest.raises(RunError, match="Read-only file system"):
                train(tmp_path / "run", plan, resume=True)
    assert (tmp_path / "run" / LEDGER).read_bytes() == before
    train(tmp_path / "run", plan, resume=True)
    assert ledger.read(tmp_path / "run" / LEDGER).released


def test_law_2_a_resumed_command_goes_on_and_a_finished_one_says_so(
    tmp_path: Path, apportion: Any, monkeypatch: Any
) -> None:
    arguments = [
        "train", "--dataset", "wisconsin", "--examples", "560", "--epsilon", "2", "--delta", "1e-5", "--batches", "2",
        "--epochs", "3", "--spare-epochs", "1", "--out", tmp_path / "run",
    ]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr("apportion.training.checkpoint.save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        code, _, err = apportion(*arguments)
    assert code == 130
    assert "--resume" in err
    code, _, _ = apportion("train", "--resume", tmp_path / "run", "--json")
    assert code == 0
    recorded = ledger.read(tmp_path / "run" / LEDGER)
    assert (recorded.used_slots, recorded.released) == (4, True)
    code, _, err = apportion("train", "--resume", tmp_path / "run", "--json")
    assert code == 0
    assert "finished already" in err
