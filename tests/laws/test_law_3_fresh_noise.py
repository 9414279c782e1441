"""Law 3: randomness comes from the operating system; global seeds do not touch it; no key is used twice."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_plan, train
from crashing import begin_run

from apportion import randomness
from apportion.errors import RunError, UnsafePublication

KEYS = "keys.log"


def seed_the_world() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def test_law_3_two_identical_commands_give_different_noise(tmp_path: Path) -> None:
    weights = []
    for name in "ab":
        seed_the_world()
        train(tmp_path / name)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] != weights[1]
    assert (tmp_path / "a" / KEYS).read_text() != (tmp_path / "b" / KEYS).read_text()


def test_law_3_every_start_has_a_key_of_its_own(tmp_path: Path) -> None:
    plan = tiny_plan(epochs=5)
    for start in range(5):
        seed_the_world()
        with pytest.raises(ZeroDivisionError), begin_run(tmp_path / "run", plan, resume=start > 0) as run:
            for _ in run:
                raise ZeroDivisionError
    keys = (tmp_path / "run" / KEYS).read_text().split()
    assert len(set(keys)) == len(keys) == 5


def test_law_3_a_key_that_the_system_repeats_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    plan = tiny_plan(epochs=3)
    monkeypatch.setattr(randomness.os, "urandom", lambda count: bytes(count))
    with pytest.raises(ZeroDivisionError), begin_run(tmp_path / "run", plan):
        raise ZeroDivisionError
    with pytest.raises(RunError, match="second time"):
        train(tmp_path / "run", plan, resume=True)


def test_law_3_the_fingerprints_of_keys_stay_private(tmp_path: Path) -> None:
    train(tmp_path / "run").publish(tmp_path / "bundle")
    fingerprint = (tmp_path / "run" / KEYS).read_text().split()[0].encode()
    assert all(fingerprint not in path.read_bytes() for path in (tmp_path / "bundle").iterdir())


def test_law_3_a_seeded_run_is_not_published(tmp_path: Path) -> None:
    run = train(tmp_path / "run", seeded_for_research_only=1)
    with pytest.raises(UnsafePublication, match="seeded"):
        run.publish(tmp_path / "bundle")


def test_law_3_a_seeded_run_does_not_repeat_its_numbers_when_resumed(tmp_path: Path) -> None:
    plan = tiny_plan(epochs=3)
    with pytest.raises(ZeroDivisionError), begin_run(tmp_path / "run", plan, seeded_for_research_only=3):
        raise ZeroDivisionError
    train(tmp_path / "run", plan, resume=True, seeded_for_research_only=3)
    assert len(set((tmp_path / "run" / KEYS).read_text().split())) == 2
