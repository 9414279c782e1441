"""Law 1: an event is on disk before anything computed with its noise can influence parameters.

A crash may over-count, never under-count. The process is killed at every single write, sync and rename, in every way
that matters, and resumed; a witness outside the code under test counts the updates.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_data, tiny_plan
from crashing import Crash, Scene

import apportion as ap
from apportion import ledger
from apportion.errors import ApportionError, LedgerError, RunError

PLANS = {
    "fixed": (
        tiny_plan(
            batching=ap.Shuffle(batches=2),
            epochs=2,
            spare_epochs=2,
            schedule=ap.ExponentialDecay(sigma0=9.0, decay=0.05),
        ),
        {},
    ),
    "adaptive": (
        ap.AdaptivePlan(
            budget=ap.Budget(rho=0.03),
            examples=60,
            batching=ap.Shuffle(batches=2),
            schedule=ap.ValidationDecay(sigma0=8.0, decay=0.7, period=2, window=1, threshold=2.0),
            clip=1.0,
        ),
        {"validation": ap.Public(tiny_data(20))},
    ),
}


def scene(tmp_path: Path, kind: str) -> Scene:
    plan, options = PLANS[kind]
    return Scene(tmp_path, plan, **options)


def operations(tmp_path: Path, monkeypatch: Any, kind: str) -> list[str]:
    root = tmp_path / "count"
    root.mkdir()
    return scene(root, kind).start(monkeypatch, resume=False).operations


def check(found: Scene, published: Path | None) -> None:
    """After the run has finished: nothing under-counted, no key twice, and a stranger agrees."""
    assert found.used_slots >= found.epochs_seen
    assert len(set(found.keys)) == len(found.keys)
    assert ledger.read(found.out / "ledger.jsonl").released
    if published is None:  # once in a while is enough: it depends on the ledger alone, which was just read
        return
    ap.training.FinishedRun(found.out).publish(published)
    verification = ap.verify(published)
    assert verification.verified, verification.problems


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("how", ["before", "half", "power", "full"])
def test_law_1_a_crash_at_any_operation_never_under_counts(
    tmp_path: Path, monkeypatch: Any, kind: str, how: str
) -> None:
    spent_nothing = 0
    every = operations(tmp_path, monkeypatch, kind)
    for number, operation in enumerate(every):
        if how == "half" and operation != "write":
            continue
        root = tmp_path / str(number)
        root.mkdir()
        found = scene(root, kind)
        with pytest.raises((Crash, ApportionError)):
            found.start(monkeypatch, resume=False, fail_at=number, how=how)
        try:
            assert found.used_slots >= found.epochs_seen
            resumable = not ledger.parse_intact_part((found.out / "ledger.jsonl").read_bytes()).released
        except (LedgerError, FileNotFoundError):
            assert found.epochs_seen == 0, "updates were seen, but no ledger"
            with pytest.raises(ApportionError, match="nothing was spent"):
                found.start(monkeypatch, resume=True)
            spent_nothing += 1
            continue
        if resumable:
            found.start(monkeypatch, resume=True)
        check(found, root / "published" if number % 5 == 0 else None)
    assert 0 < spent_nothing < len(every) / 2


@pytest.mark.parametrize("kind", PLANS)
def test_law_1_crashes_upon_crashes_never_under_count(tmp_path: Path, monkeypatch: Any, kind: str) -> None:
    dice = random.Random(5)
    total = len(operations(tmp_path, monkeypatch, kind))
    for number in range(8):
        root = tmp_path / str(number)
        root.mkdir()
        found = scene(root, kind)
        begun = finished = False
        for _ in range(50):
            try:
                how = dice.choice(["before", "half", "power", "full"])
                found.start(monkeypatch, resume=begun, fail_at=dice.randrange(10, total), how=how)
                finished = True
            except (Crash, RunError):
                recorded = ledger.parse_intact_part((found.out / "ledger.jsonl").read_bytes())
                begun, finished = True, recorded.released
            assert found.used_slots >= found.epochs_seen
            if finished:
                break
        else:
            pytest.fail("a run must come to an end: each start that gets anywhere uses a slot")
        check(found, root / "published")
