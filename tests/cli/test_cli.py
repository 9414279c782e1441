"""The command line as a person uses it. Exit codes: 0 success, 1 no, 2 wrong question; nothing written on 1 and 2."""

import json
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

from apportion.cli.plan import plan
from apportion.cli.train import train
from apportion.settings import Settings
from apportion.training import FinishedRun

Call = Callable[..., tuple[int, str, str]]
TRAIN = ("train", "--dataset", "wisconsin", "--epsilon", "2", "--delta", "1e-5", "--batches", "2", "--epochs", "3")
PLAN = ("plan", "--rho", "0.78125", "--batching", "shuffle", "--batches", "100")


def as_json(result: tuple[int, str, str]) -> dict:  # type: ignore[type-arg]
    code, out, err = result
    assert code == 0, err
    return json.loads(out)  # type: ignore[no-any-return]


@pytest.mark.parametrize("verb", ["", "plan", "account", "train", "status", "publish", "verify", "explain"])
def test_help_teaches(apportion: Call, verb: str) -> None:
    code, out, _ = apportion(*([verb] if verb else []), "--help")
    assert code == 0
    assert "Usage" in out


def test_version(apportion: Call) -> None:
    assert apportion("--version")[1].startswith("apportion 0.")


def test_plan_solves_epochs_as_the_paper_does(apportion: Call) -> None:
    data = as_json(apportion(*PLAN, "--schedule", "exponential", "--sigma0", "10", "--decay", "0.01", "--json"))
    assert (data["solved"], data["epochs"], len(data["sigmas"])) == ("epochs", 71, 71)
    assert data["rho"] == pytest.approx(0.776463, abs=1e-6)
    assert data["schedule"]["kind"] == "exponential"
    assert data["epsilon"] > 5
    assert data["delta"] == 1e-5


@pytest.mark.parametrize("schedule", ["time", "exponential", "step", "polynomial"])
def test_plan_solves_decay(apportion: Call, schedule: str) -> None:
    extra = {"step": ("--period", "10"), "polynomial": ("--period", "100", "--sigma-end", "2")}.get(schedule, ())
    data = as_json(apportion(*PLAN, "--schedule", schedule, "--sigma0", "10", "--epochs", "60", *extra, "--json"))
    assert data["solved"] == "decay"
    assert 0.999 * 0.78125 <= data["rho"] <= 0.78125


def test_plan_draws_and_prints_for_people(apportion: Call, tmp_path: Path) -> None:
    code, out, _ = apportion(*PLAN, "--sigma0", "8", "--plot", tmp_path / "noise.svg")
    assert code == 0
    assert "solved: epochs = 100" in out
    assert "█" in out
    assert (tmp_path / "noise.svg").read_text().startswith("<?xml")


def test_account_prices_by_every_valid_accountant(apportion: Call) -> None:
    common = ("--epochs", "400", "--delta", "1e-5", "--sigma", "6", "--json")
    data = as_json(apportion("account", "--batching", "shuffle", "--batches", "100", *common))
    found = {entry["accountant"]: entry for entry in data["guarantees"]}
    assert found["zcdp"]["epsilon"] == pytest.approx(21.5506, abs=1e-4)
    assert found["gaussian"]["epsilon"] == pytest.approx(19.131, abs=1e-3)
    assert data["tightest"]["accountant"] == "gaussian"
    assert data["rho"] == pytest.approx(400 / 72)
    assert {entry["adjacency"] for entry in data["guarantees"]} == {"zero-out"}


def test_account_states_groups(apportion: Call) -> None:
    common = ("account", "--batches", "10", "--epochs", "2", "--delta", "1e-5", "--sigma", "3", "--group", "2")
    data = as_json(apportion(*common, "--json"))
    assert data["group"]["group_size"] == 2
    assert data["group"]["epsilon"] > data["tightest"]["epsilon"]
    assert "groups of 2" in apportion(*common)[1]


def test_account_all_marks_what_is_not_valid(apportion: Call) -> None:
    common = (
        "account",
        "--batching",
        "shuffle",
        "--batches",
        "100",
        "--epochs",
        "400",
        "--delta",
        "1e-5",
        "--sigma",
        "6",
    )
    data = as_json(apportion(*common, "--all", "--json"))
    shown = apportion(*common, "--all")[1].split()
    assert all(entry["accountant"] in shown for entry in data["guarantees"]), "names are not cut off"
    invalid = {entry["accountant"]: entry for entry in data["guarantees"] if not entry["valid"]}
    assert invalid["moments"]["epsilon"] == pytest.approx(1.67047, abs=1e-4)
    assert invalid["paper-estimate"]["epsilon"] == pytest.approx(2.37316, abs=1e-4)
    assert all("not valid" in entry["reason"] for entry in invalid.values())
    assert data["tightest"]["epsilon"] > 19


def test_the_paper_estimate_outside_its_range_appears_only_with_all(apportion: Call) -> None:
    common = ("account", "--batching", "poisson", "--rate", "0.5", "--sigma", "1", "--epochs", "2", "--delta", "1e-5")
    plain = as_json(apportion(*common, "--json"))
    assert "paper-estimate" not in {entry["accountant"] for entry in plain["guarantees"]}
    everything = as_json(apportion(*common, "--all", "--json"))
    (estimate,) = (e for e in everything["guarantees"] if e["accountant"] == "paper-estimate")
    assert not estimate["valid"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*PLAN, "--sigma0", "8", "--epochs", "100"), "exactly one of sigma0 and epochs"),
        ((*PLAN,), "exactly one of sigma0 and epochs"),
        ((*PLAN, "--schedule", "exponential", "--sigma0", "8"), "exactly one of sigma0, decay and epochs"),
        ((*PLAN, "--sigma0", "-8"), "sigma0"),
        ((*PLAN, "--sigma0", "8", "--rate", "0.1"), "--rate"),
        ((*PLAN, "--sigma0", "8", "--decay", "0.1"), "--decay"),
        ((*PLAN, "--schedule", "step", "--sigma0", "8", "--decay", "0.5"), "--period"),
        (
            (*PLAN, "--schedule", "polynomial", "--sigma0", "1", "--decay", "2", "--period", "5", "--sigma-end", "2"),
            "sigma_end",
        ),
        ((*PLAN, "--epsilon", "1", "--sigma0", "8"), "--rho"),
        (("plan", "--epsilon", "1", "--batches", "5", "--sigma0", "8"), "--delta"),
        (("plan", "--epsilon", "1", "--delta", "2", "--batches", "5", "--sigma0", "8"), "delta"),
        (("plan", "--rho", "1", "--batching", "poisson", "--rate", "0.1", "--sigma0", "8"), "--epsilon"),
        (("plan", "--rho", "1", "--batching", "balls"), "balls"),
        (("account", "--epochs", "3", "--delta", "1e-5", "--batches", "3"), "--sigma0 is missing"),
        (("account", "--epochs", "0", "--delta", "1e-5", "--batches", "3", "--sigma", "1"), "--epochs"),
        (("account", "--epochs", "1", "--delta", "0", "--batches", "3", "--sigma", "1"), "--delta"),
        (("account", "--epochs", "1", "--delta", "1e-5", "--sigma", "1"), "--batches"),
        (
            (
                "account",
                "--batching",
                "shuffle",
                "--batches",
                "3",
                "--epochs",
                "1",
                "--delta",
                "1e-5",
                "--sigma",
                "1",
                "--adjacency",
                "add-remove",
            ),
            "add-remove",
        ),
        (("train", "--out", "x"), "--dataset"),
        (("train", "--dataset", "iris", "--out", "x"), "wisconsin"),
        (("train", "--data", "x.csv", "--out", "x"), "--target"),
        (("train", "--data", "x.csv", "--target", "y", "--range", "a", "--out", "x"), "name=LOW:HIGH"),
        (("train", "nowhere.toml", "--out", "x"), "nowhere.toml"),
        ((*TRAIN, "--hidden", "a,b", "--out", "x"), "--hidden"),
        ((*TRAIN, "--lr", "-1", "--out", "x"), "lr"),
        (TRAIN, "--out"),
        (("train", "--resume", "nowhere"), "nowhere"),
        (
            ("train", "--resume", "run", "--out", "x", "--range", "a=0:1", "--sigma-end", "0"),
            "leave out --out, --range, --sigma-end",
        ),
        (("train", "--resume", "run", "--dry-run"), "leave out --dry-run"),
        (("select", "c.toml", "--resume", "run", "--dry-run"), "leave out CONFIG, --dry-run"),
        (("status", "nowhere"), "nowhere"),
        (("publish", "nowhere", "--to", "x"), "nowhere"),
        (("verify", "nowhere"), "nowhere"),
        (("explain",), "--epsilon"),
        (("explain", "--epsilon", "-1", "--delta", "0.1"), "epsilon"),
        (("nonsense",), "nonsense"),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_clear_message_and_nothing_written(
    apportion: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = apportion(*arguments)
    assert code == 2
    assert named in err
    assert out == ""
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_budget_that_admits_nothing_is_a_no(apportion: Call) -> None:
    code, _, err = apportion("plan", "--rho", "0.1", "--batches", "3", "--sigma0", "0.5")
    assert code == 1
    assert "not even one epoch" in err


def test_train_publish_verify_status_and_explain(apportion: Call, tmp_path: Path) -> None:
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    trained = as_json(apportion(*TRAIN, "--examples", "560", "--out", run, "--json"))
    assert trained["finished"]
    assert trained["adjacency"] == "add-remove"
    assert trained["epsilon"] <= 2
    assert 0 <= trained["internal"]["accuracy"] <= 1
    assert {"plan.json", "ledger.jsonl", "checkpoints", "metrics.jsonl", "model.safetensors"} <= {
        path.name for path in run.iterdir()
    }
    published = as_json(apportion("publish", run, "--to", bundle, "--json"))
    assert published["epsilon"] == trained["epsilon"]
    verified = as_json(apportion("verify", bundle, "--json"))
    assert verified["verified"]
    assert all(check["holds"] for check in verified["checks"])
    assert as_json(apportion("status", run, "--json"))["slots_used"] == 3
    explained = as_json(apportion("explain", bundle, "--json"))
    assert explained["source"].startswith("the loss distribution")
    assert as_json(apportion("train", "--resume", run, "--json"))["finished"], "a finished run says so"
    before = (run / "ledger.jsonl").read_bytes()
    code, _, err = apportion(*TRAIN, "--out", run)
    assert (code, "exists already" in err) == (2, True)
    assert (run / "ledger.jsonl").read_bytes() == before


def test_a_broken_bundle_is_a_no_with_reasons(apportion: Call, bundle: Path) -> None:
    (bundle / "README.md").write_text("trust me")
    code, out, _ = apportion("verify", bundle, "--json")
    assert code == 1
    data = json.loads(out)
    assert not data["verified"]
    assert [check["name"] for check in data["checks"] if not check["holds"]] == ["manifest", "card"]
    assert apportion("verify", bundle)[0] == 1
    assert apportion("explain", bundle)[0] == 2


def test_an_archive_is_explained_as_its_directory_is(apportion: Call, run: FinishedRun, tmp_path: Path) -> None:
    run.publish(tmp_path / "published", as_zip=True)
    whole = as_json(apportion("explain", tmp_path / "published", "--json"))
    assert as_json(apportion("explain", tmp_path / "published.zip", "--json")) == whole


def test_a_run_directory_is_told_from_a_broken_bundle(apportion: Call, run: FinishedRun, bundle: Path) -> None:
    code, out, _ = apportion("verify", run.directory)
    assert code == 1
    assert "looks like a run directory" in out
    assert "apportion publish" in out
    code, _, err = apportion("explain", run.directory)
    assert (code, "looks like a run directory" in err) == (2, True)
    (bundle / "manifest.json").unlink()
    assert "missing: ['manifest.json']" in apportion("verify", bundle)[1]


def test_status_speaks_to_people(apportion: Call, run: FinishedRun) -> None:
    lines = apportion("status", run.directory)[1].splitlines()
    assert {"finished: yes", "resumable: no", "pending: nothing", "private: yes"} <= set(lines)


@pytest.mark.parametrize(("examples", "hint"), [(281, ""), (1119, ""), (279, "too long"), (1121, "too short")])
def test_a_number_far_from_the_declared_one_is_hinted_at_on_the_screen_and_not_said(
    apportion: Call, tmp_path: Path, examples: int, hint: str
) -> None:
    """560 records, an amount that is private; the hint itself must not reach anything that is written."""
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    code, _, err = apportion(*TRAIN, "--examples", str(examples), "--out", run, "--json")
    assert code == 0, err
    assert ("keep this to yourself" in err) == bool(hint)
    assert hint in err
    assert not any("560" in line for line in err.splitlines() if "--examples" in line)
    assert apportion("publish", run, "--to", bundle)[0] == 0
    written = [path for path in (*run.rglob("*"), *bundle.rglob("*")) if path.is_file()]
    assert not any(b"to yourself" in path.read_bytes() for path in written)


def test_without_examples_the_number_of_records_becomes_public(apportion: Call, tmp_path: Path) -> None:
    code, out, err = apportion(*TRAIN, "--out", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out)["adjacency"] == "zero-out"
    assert "560" in err
    assert "public" in err


def test_a_large_delta_is_warned_about(apportion: Call) -> None:
    arguments = [argument if argument != "1e-5" else "0.01" for argument in TRAIN]
    _, _, err = apportion(*arguments, "--examples", "560", "--dry-run", "--json")
    assert "exceeds 1/examples" in err


def test_a_dry_run_spends_and_writes_nothing(apportion: Call, tmp_path: Path) -> None:
    data = as_json(apportion(*TRAIN, "--dry-run", "--out", tmp_path / "run", "--json"))
    assert data["compatible"]
    assert data["noise_to_signal"]["first"] > 0
    assert data["seconds"] >= 0
    assert list(tmp_path.iterdir()) == []


def test_no_hidden_layer_can_be_asked_for(apportion: Call) -> None:
    per_layer = ("--clipping", "per-layer", "--dry-run", "--json")
    assert as_json(apportion(*TRAIN, *per_layer))["clipping"]["layers"] == 2
    assert as_json(apportion(*TRAIN, "--hidden", "", *per_layer))["clipping"]["layers"] == 1


def test_no_option_is_passed_over_because_no_setting_has_its_name() -> None:
    """Options become settings by name (`given_settings`), so those that are none must be handled by the verb itself."""
    settings = {field.name for field in fields(Settings)}
    of_train, of_plan = (set(signature(verb).parameters) - settings for verb in (train, plan))
    assert of_train == {"config", "out", "resume", "dry_run", "seeded_for_research_only", "as_json"}
    assert of_plan == {"config", "layers", "adjacency", "parameters", "plot", "as_json"}


def test_own_csv_with_a_config(apportion: Call, tmp_path: Path) -> None:
    rows = "\n".join(f"{20 + i % 60},{i % 7},{'yes' if i % 2 else 'no'}" for i in range(80))
    (tmp_path / "patients.csv").write_text(f"age,dose,ill\n{rows}\n")
    (tmp_path / "settings.toml").write_text(
        """
        [data]
        file = "patients.csv"
        holdout = 0.2
        [target]
        column = "ill"
        classes = ["no", "yes"]
        [features]
        age = [0, 70]
        dose = [0, 6]
        [budget]
        epsilon = 2.0
        delta = 1e-3
        [plan]
        examples = 60
        batches = 2
        epochs = 2
        [model]
        hidden = []
        """
    )
    code, out, err = apportion("train", tmp_path / "settings.toml", "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["slots"] == 2
    assert "values lie outside their declared range" in err


def test_all_problems_of_a_config_are_reported_at_once(apportion: Call, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        '[data]\nfille = "x"\n[plan]\nepochs = "ten"\n[features]\nage = 3\n[moodel]\na = 1\n'
    )
    code, _, err = apportion("train", tmp_path / "s.toml", "--out", tmp_path / "run")
    assert code == 2
    for problem in ("fille", "epochs", "age", "moodel"):
        assert problem in err


def test_noise_on_a_grid_is_certified_as_covering_floating_point(apportion: Call, tmp_path: Path) -> None:
    as_json(apportion(*TRAIN, "--noise", "grid", "--out", tmp_path / "run", "--json"))
    published = as_json(apportion("publish", tmp_path / "run", "--to", tmp_path / "bundle", "--json"))
    assert published["floating_point"] == "covered"
    assert as_json(apportion("verify", tmp_path / "bundle", "--json"))["verified"]
    code, _, err = apportion(*TRAIN, "--noise", "loud", "--out", tmp_path / "other")
    assert (code, "noise" in err) == (2, True)


def test_a_seeded_run_needs_force_to_be_published(apportion: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    as_json(apportion(*TRAIN, "--seeded-for-research-only", "3", "--out", run, "--json"))
    code, _, err = apportion("publish", run, "--to", tmp_path / "bundle")
    assert (code, "seeded" in err) == (2, True)
    assert as_json(apportion("publish", run, "--to", tmp_path / "bundle", "--allow-unsafe", "--json"))["unsafe"]


def test_explain_gives_attacker_rates_and_beliefs(apportion: Call, tmp_path: Path) -> None:
    arguments = ("explain", "--epsilon", "1", "--delta", "1e-5")
    data = as_json(apportion(*arguments, "--plot", tmp_path / "tradeoff.png", "--json"))
    assert [entry["false_positive_rate"] for entry in data["attacker"]] == [0.001, 0.01, 0.1]
    assert data["attacker"][1]["true_positive_rate"] == pytest.approx(0.01 * 2.718281828 + 1e-5)
    assert data["posterior"][1]["posterior"] == pytest.approx(2.718281828 / 3.718281828)
    assert (tmp_path / "tradeoff.png").read_bytes()[:4] == b"\x89PNG"
    assert "at most" in apportion(*arguments)[1]


def test_plan_compares_noise_with_signal(apportion: Call) -> None:
    common = (*PLAN, "--sigma0", "8", "--examples", "60000", "--parameters", "10000")
    data = as_json(apportion(*common, "--json"))
    assert data["noise_to_signal"]["first"] == pytest.approx(8 * 100 / 600)
    assert [entry["change"] for entry in data["alternatives"]] == ["batch × 2", "batch × 4", "epochs ÷ 2", "epochs × 2"]
    code, out, _ = apportion(*common)
    assert (code, "noise/signal" in out, "batch × 2" in out) == (0, True, True)
    code, _, err = apportion(*PLAN, "--sigma0", "8", "--examples", "60000")
    assert (code, "--parameters" in err) == (2, True)


def test_a_dry_run_says_what_would_change_and_how_long_it_takes(apportion: Call) -> None:
    data = as_json(apportion(*TRAIN, "--dry-run", "--json"))
    assert data["compatible"]
    assert data["parameters"] == 9 * 16 + 16 + 16 * 2 + 2
    assert data["seconds"] > 0
    assert all(entry["seconds"] > 0 for entry in data["alternatives"])
    code, out, _ = apportion(*TRAIN, "--dry-run")
    assert (code, "Nothing was spent" in out, "epochs ÷ 2" in out) == (0, True, True)
