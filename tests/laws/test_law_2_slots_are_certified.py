"""Law 2: the plan's slots are what is certified, run or not; an interrupted epoch has used its slot."""

from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_plan, train
from crashing import begin_run

import apportion as ap
from apportion import ledger
from apportion.errors import RunError

LEDGER = "ledger.jsonl"


def interrupted(out: Path, plan: Any, at: int) -> None:
    with pytest.raises(ZeroDivisionError), begin_run(out, plan) as run:
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
