"""Noise that follows public scores, from the command line: planned, trained, resumed, published and verified."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from apportion import ledger

Call = Callable[..., tuple[int, str, str]]
SCHEDULE = ("--schedule", "validation", "--sigma0", "6", "--decay", "0.7", "--period", "2", "--average", "1")
TRAIN = (
    "train", "--dataset", "wisconsin", "--examples", "560", "--epsilon", "3", "--delta", "1e-5", "--batches", "4",
    *SCHEDULE, "--threshold", "2",
)  # fmt: skip
PLAN = ("plan", "--epsilon", "3", "--delta", "1e-5", "--batches", "100", *SCHEDULE)


def as_json(result: tuple[int, str, str]) -> dict:  # type: ignore[type-arg]
    code, out, err = result
    assert code == 0, err
    return json.loads(out)  # type: ignore[no-any-return]


def published(apportion: Call, run: Path, to: Path) -> dict:  # type: ignore[type-arg]
    code, _, err = apportion("publish", run, "--to", to)
    assert code == 0, err
    code, out, err = apportion("verify", to)
    assert (code, "VERIFIED" in out) == (0, True), err
    return json.loads((to / "certificate.json").read_text())  # type: ignore[no-any-return]


def test_plan_shows_the_cap_and_how_far_it_reaches(apportion: Call, tmp_path: Path) -> None:
    data = as_json(apportion(*PLAN, "--epochs", "150", "--json"))
    assert data["caps"][0]["kind"] == "renyi-filter"
    assert data["epsilon"] <= 3
    assert data["solved"] is None
    assert data["noise_lowered"]["epochs"] < data["noise_kept"]["epochs"]
    assert data["noise_lowered"]["sigmas"][:2] == [6.0, pytest.approx(4.2)]
    code, out, _ = apportion(*PLAN, "--epochs", "150", "--plot", tmp_path / "courses.svg")
    assert code == 0
    assert "improve at no check" in out
    assert "certified is the cap" in out
    assert (tmp_path / "courses.svg").exists()


def test_plan_with_a_floor_is_certified_as_the_floor(apportion: Call) -> None:
    data = as_json(apportion(*PLAN, "--floor", "1.5", "--epochs", "20", "--json"))
    fixed = as_json(
        apportion("account", "--batches", "100", "--sigma", "1.5", "--epochs", "20", "--delta", "1e-5", "--json")
    )
    assert data["epsilon"] == pytest.approx(fixed["tightest"]["epsilon"])
    assert min(data["noise_lowered"]["sigmas"]) == 1.5


def test_a_run_steered_by_public_scores_is_published_with_its_cap(apportion: Call, tmp_path: Path) -> None:
    state = as_json(
        apportion(*TRAIN, "--public-validation", "test", "--epochs", "4", "--out", tmp_path / "run", "--json")
    )
    assert state["slots"] is None
    read = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert len(read.scores) == 4
    assert [entry.event.sigma for entry in read.events] == pytest.approx([6.0, 4.2, 4.2, 2.94])  # type: ignore[union-attr]
    certificate = published(apportion, tmp_path / "run", tmp_path / "bundle")
    assert certificate["accountant"] == "renyi-filter"
    assert certificate["epsilon"] == 3.0, "the cap, not the four epochs"
    assert certificate["declared"]["validation data"] == "declared public by the publisher"
    assert certificate["declared"]["validation"] == "123 records declared public"


def test_paid_looks_are_events_under_the_cap(apportion: Call, tmp_path: Path) -> None:
    code, _, err = apportion(*TRAIN, "--pay-per-look", "10", "--epochs", "3", "--out", tmp_path / "run")
    assert code == 0, err
    read = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert [entry.event.sigma for entry in read.events if entry.slot is None] == [10.0] * 3  # type: ignore[union-attr]
    certificate = published(apportion, tmp_path / "run", tmp_path / "bundle")
    assert {part["purpose"] for part in certificate["components"]} == {"training", "validation"}
    assert "each look paid for" in certificate["declared"]["validation data"]


def test_settings_of_an_own_table_with_a_public_file(apportion: Call, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("age,ill\n" + "10,no\n80,yes\n" * 20)
    (tmp_path / "public.csv").write_text("age,ill\n20,no\n70,yes\n")
    (tmp_path / "s.toml").write_text(
        '[data]\nfile = "table.csv"\n[target]\ncolumn = "ill"\nclasses = ["no", "yes"]\n[features]\nage = [0, 100]\n'
        "[budget]\nepsilon = 3.0\ndelta = 1e-5\n[plan]\nexamples = 40\nbatches = 2\nschedule = 'validation'\n"
        "sigma0 = 6.0\ndecay = 0.7\nperiod = 2\nthreshold = 2.0\naverage = 1\nevery = 1\nfloor = 4.0\nepochs = 3\n"
        '[validation]\nfile = "public.csv"\n'
    )
    state = as_json(apportion("train", tmp_path / "s.toml", "--out", tmp_path / "run", "--json"))
    assert (state["slots"], state["slots_used"]) == (3, 3)
    certificate = published(apportion, tmp_path / "run", tmp_path / "bundle")
    assert certificate["declared"]["validation"] == "2 records declared public"
    assert certificate["sigmas"] == pytest.approx([6.0, 4.2, 4.2])
    (tmp_path / "public.csv").write_text("age,ill\n20,perhaps\n")
    code, _, err = apportion("train", tmp_path / "s.toml", "--out", tmp_path / "again")
    assert (code, "none of the declared classes" in err) == (2, True)
    assert not (tmp_path / "again").exists()


def test_a_dry_run_shows_the_cap_and_spends_nothing(apportion: Call, tmp_path: Path) -> None:
    data = as_json(apportion(*TRAIN, "--public-validation", "test", "--dry-run", "--json"))
    assert data["caps"]
    assert data["noise_to_signal"]["last"] < data["noise_to_signal"]["first"]
    assert "improve at no check" in apportion(*TRAIN, "--public-validation", "test", "--dry-run")[1]


TABLE = ("--data", "t.csv", "--target", "y", "--classes", "a,b", "--range", "x=0:1")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--public-validation FILE"),
        ((), "--pay-per-look SIGMA"),
        (("--public-validation", "test", "--pay-per-look", "3"), "both are given"),
        (("--public-validation", "test", "--spare-epochs", "2"), "spare_epochs"),
        (("--public-validation", "test", "--floor", "3"), "give epochs"),
        (("--public-validation", "test", "--sigma-end", "3"), "--floor"),
        (("--public-validation", "nowhere.csv"), "nowhere.csv"),
        (("--pay-per-look", "0.1"), "exceed the budget"),
        (("--pay-per-look", "10", "--floor", "3", "--epochs", "2"), "without a floor"),
        (("--public-validation", "test", "--period", "0"), "period"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(
    apportion: Call, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    code, _, err = apportion(*TRAIN, *arguments, "--out", tmp_path / "run")
    assert code == 2
    assert named in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("train", *TABLE, *TRAIN[5:], "--public-validation", "test", "--out", "x"), "name a file"),
        (("train", *TABLE, *TRAIN[5:], "--pay-per-look", "3", "--out", "x"), "--holdout"),
        (("train", *TRAIN[1:11], "--public-validation", "test", "--out", "x"), "belongs to --schedule validation"),
        (("train", *TRAIN[1:11], "--threshold", "1", "--out", "x"), "belongs to --schedule validation"),
        (("plan", "--rho", "1", "--batches", "3", "--sigma0", "4", "--floor", "1"), "--schedule validation"),
        ((*PLAN[:-6], "--decay", "0.5"), "--period"),
        (("account", "--batches", "3", "--epochs", "2", "--delta", "1e-5", *SCHEDULE[:8]), "certified is the cap"),
    ],
)
def test_options_in_the_wrong_place_say_where_they_belong(
    apportion: Call, arguments: tuple[str, ...], named: str
) -> None:
    code, _, err = apportion(*arguments)
    assert code == 2
    assert named in " ".join(err.split())


def test_an_adaptive_run_is_resumed(apportion: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apportion.training.steering import Steering

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Steering, "follow", interrupted)
        code, _, err = apportion(*TRAIN, "--public-validation", "test", "--epochs", "3", "--out", tmp_path / "run")
    assert (code, "--resume" in err) == (130, True)
    code, _, err = apportion("train", "--resume", tmp_path / "run")
    assert code == 0, err
    assert len(ledger.read(tmp_path / "run" / "ledger.jsonl").scores) == 3
