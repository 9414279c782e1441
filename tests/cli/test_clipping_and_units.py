"""Clipping modes, values by epoch and persons, from the command line and from a settings file."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import apportion as ap
from apportion import ledger

Command = Callable[..., tuple[int, str, str]]

TABLE = [
    "--data",
    "visits.csv",
    "--target",
    "ill",
    "--classes",
    "no,yes",
    "--range",
    "age=0:100",
    "--range",
    "dose=0:9",
]
PLAN = ["--epsilon", "8", "--delta", "1e-3", "--batches", "3", "--epochs", "2"]


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """40 patients with 1 to 5 visits each."""
    rows = ["patient,age,dose,ill"]
    for patient in range(40):
        rows += [
            f"p{patient},{20 + patient},{visit},{'yes' if patient % 2 else 'no'}" for visit in range(1 + patient % 5)
        ]
    (tmp_path / "visits.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(apportion: Command, *arguments: str) -> dict[str, Any]:
    code, out, err = apportion("plan", "--rho", "0.5", "--epochs", "10", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)  # type: ignore[no-any-return]


def test_plan_charges_every_layer(apportion: Command) -> None:
    flat = planned(apportion, "--batches", "5")
    scaled = planned(apportion, "--batches", "5", "--clipping", "per-layer", "--layers", "4")
    each = planned(apportion, "--batches", "5", "--clipping", "per-layer", "--layers", "4", "--layer-noise", "each")
    assert scaled["sigmas"] == flat["sigmas"]
    assert each["sigmas"][0] == pytest.approx(2 * flat["sigmas"][0])
    assert each["clipping"] == {"kind": "per-layer", "layers": 4, "noise": "each"}


def test_plan_and_account_take_batches_by_epoch(apportion: Command) -> None:
    found = planned(apportion, "--batches", "0:5,4:50")
    assert found["batching"] == {
        "kind": "partition",
        "batches": [{"from": 0, "value": 5}, {"from": 4, "value": 50}],
    }
    arguments = ("account", "--sigma", "3", "--epochs", "6", "--delta", "1e-5", "--json")
    code, out, err = apportion(*arguments, "--batches", "0:5,4:50", "--all")
    assert code == 0, err
    few, many = (json.loads(apportion(*arguments, "--batches", k)[1])["tightest"]["epsilon"] for k in ("50", "5"))
    assert few < json.loads(out)["tightest"]["epsilon"] < many


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "--rho", "1", "--epochs", "3", "--batches", "5", "--layers", "2"), "--layers does not belong"),
        (("plan", "--rho", "1", "--epochs", "3", "--batches", "5", "--clipping", "per-layer"), "needs --layers"),
        (("plan", "--rho", "1", "--epochs", "3", "--batches", "5:3"), "epoch 0"),
        (("plan", "--rho", "1", "--epochs", "3", "--batches", "many"), "--batches must be a number"),
        (("train", *TABLE, *PLAN, "--records-per-unit", "3", "--dry-run"), "belongs to --unit"),
        (("train", *TABLE, *PLAN, "--layer-noise", "each", "--dry-run"), "belongs to --clipping per-layer"),
        (("train", *TABLE, *PLAN, "--unit", "doctor", "--ignore", "patient", "--dry-run"), "no column 'doctor'"),
        (("train", *TABLE, *PLAN, "--unit", "age", "--dry-run"), "neither target nor feature"),
        (("train", "--dataset", "wisconsin", *PLAN, "--unit", "id", "--dry-run"), "names no persons"),
    ],
)
def test_mistakes_are_named(apportion: Command, visits: Path, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = apportion(*arguments)
    assert code == 2
    assert message in " ".join(err.split())


def test_persons_are_trained_published_and_verified(apportion: Command, visits: Path) -> None:
    code, _, err = apportion(
        *("train", *TABLE, *PLAN, "--unit", "patient", "--records-per-unit", "2", "--unit-gradient", "sum"),
        *("--clipping", "per-layer", "--layer-noise", "each", "--clip", "0:1,1:0.5", "--holdout", "0.2"),
        *("--examples", "32", "--out", "run", "--json"),
    )
    assert code == 0, err
    recorded = ledger.read(visits / "run" / "ledger.jsonl").plan
    assert isinstance(recorded, ap.TrainingPlan)
    assert recorded.unit == ap.Person(gradient="sum", most_records=2)
    assert recorded.clipping == ap.PerLayer(layers=2, noise="each")
    assert recorded.clip == ap.ByEpoch({0: 1.0, 1: 0.5})
    assert [slot.charged for slot in recorded.slots] == [slot.sigma / math.sqrt(2) for slot in recorded.slots]
    code, _, err = apportion("publish", "run", "--to", "bundle")
    assert code == 0, err
    code, out, _ = apportion("verify", "bundle")
    assert code == 0
    assert "per person" in out


def test_a_noisy_score_is_not_published_for_persons(apportion: Command, visits: Path) -> None:
    assert apportion("train", *TABLE, *PLAN, "--unit", "patient", "--holdout", "0.2", "--out", "run")[0] == 0
    code, _, err = apportion("publish", "run", "--to", "bundle", "--evaluate-privately", "5")
    assert code == 2
    assert "priced for one record" in " ".join(err.split())
    assert not Path("bundle").exists()


def test_without_examples_the_number_of_persons_is_public(apportion: Command, visits: Path) -> None:
    code, out, err = apportion("train", *TABLE, *PLAN, "--unit", "patient", "--dry-run", "--json")
    assert code == 0, err
    assert "number of training persons, 40, is treated as public" in " ".join(err.split())
    assert json.loads(out)["unit"] == "person"


def test_a_settings_file_says_the_same(apportion: Command, visits: Path) -> None:
    (visits / "settings.toml").write_text(
        """
        [data]
        file = "visits.csv"
        holdout = 0.2
        [target]
        column = "ill"
        classes = ["no", "yes"]
        [features]
        age = [0, 100]
        dose = [0, 9]
        [unit]
        column = "patient"
        records = 3
        gradient = "mean"
        [budget]
        epsilon = 8.0
        delta = 1e-3
        [plan]
        examples = 32
        batches = {0 = 3, 1 = 2}
        clip = {0 = 1.0, 1 = 0.25}
        clipping = "automatic"
        epochs = 2
        """
    )
    code, _, err = apportion("train", "settings.toml", "--out", "run")
    assert code == 0, err
    recorded = ledger.read(visits / "run" / "ledger.jsonl").plan
    assert isinstance(recorded, ap.TrainingPlan)
    assert recorded.unit == ap.Person(most_records=3)
    assert recorded.clipping == ap.Automatic()
    assert recorded.batching == ap.Partition(batches=ap.ByEpoch({0: 3, 1: 2}))
    assert recorded.clip == ap.ByEpoch({0: 1.0, 1: 0.25})
    code, _, err = apportion("train", "--resume", "run")  # reads its own settings again
    assert code == 0, err
    assert "finished" in err


@pytest.mark.parametrize("line", ["batches = {1 = 3}", "clip = {0 = 'a'}", "batches = {a = 3}", "unit = 'patient'"])
def test_mistakes_in_a_settings_file_are_named(apportion: Command, visits: Path, line: str) -> None:
    (visits / "settings.toml").write_text(f"[data]\nfile = 'visits.csv'\n[plan]\n{line}\n")
    code, _, err = apportion("train", "settings.toml", "--dry-run")
    assert code == 2
    assert f"[plan] {line.split()[0]}" in err


def test_a_held_out_person_is_held_out_with_all_records() -> None:
    import numpy as np

    from apportion.data.dataset import draw_holdout_of_persons
    from apportion.randomness import RandomStream

    persons = np.array(["a", "b", "a", "c", "b"] * 200)
    held = draw_holdout_of_persons(persons, 0.5, RandomStream(1))
    for person in "abc":
        assert len(set(held[persons == person])) == 1
