"""A whole pipeline from the command line: one file, one ledger, one certificate; published, verified and used."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import apportion as ap
from apportion import ledger

Command = Callable[..., tuple[int, str, str]]

FILE = """
[data]
dataset = "wisconsin"
[budget]
epsilon = 4.0
delta = 1e-5
[pca]
dimensions = 5
share = 0.1
[scaling]
low = -3.0
high = 3.0
share = 0.1
[class_weights]
share = 0.05
[evaluation]
measures = ["confusion", "auroc", "calibration"]
bins = 5
share = 0.15
[training]
examples = 560
batches = 4
schedule = "exponential"
decay = 0.02
epochs = 6
share = 0.6
[model]
hidden = [8]
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "pipeline.toml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--batches", "0:4,2:3"), "batches = {0 = 4, 2 = 3}"),
        (
            ("--clipping", "per-layer", "--layer-noise", "each"),
            'batches = 4\nclipping = "per-layer"\nlayer_noise = "each"',
        ),
    ],
)
def test_options_of_plan_beside_a_file_say_what_lines_in_the_file_say(
    apportion: Command, config: Path, tmp_path: Path, options: tuple[str, ...], line: str
) -> None:
    written = tmp_path / "written.toml"
    written.write_text(FILE.replace("batches = 4", line))
    overruled, said, plain = (
        apportion("plan", *arguments, "--json") for arguments in ((config, *options), (written,), (config,))
    )
    assert overruled[0] == 0, overruled[2]
    assert overruled[1] == said[1] != plain[1]


def test_the_layers_of_a_file_are_not_overruled(apportion: Command, config: Path) -> None:
    code, _, err = apportion("plan", config, "--clipping", "per-layer", "--layers", "9")
    assert (code, "--layers does not belong beside CONFIG" in err) == (2, True)


def test_the_pipeline_verifies_and_its_ledger_costs_what_the_plan_says(
    apportion: Command, config: Path, tmp_path: Path
) -> None:
    code, out, err = apportion("plan", config, "--json")
    assert code == 0, err
    planned = json.loads(out)
    assert [stage["stage"] for stage in planned["stages"]] == [
        "pca", "scaling", "class-weights", "training", "evaluation",
    ]  # fmt: skip
    assert sum(stage["share"] for stage in planned["stages"]) == pytest.approx(1.0)
    assert 0.999 * 4 <= planned["epsilon"] <= 4.0

    code, out, err = apportion("train", config, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["pending"] == []
    recorded = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert [event.component for event in recorded.events] == [0, 1, 2, *[None] * 6, 3]
    assert ap.certify(recorded).guarantee.epsilon == planned["epsilon"]
    (evaluation,) = recorded.evaluations
    assert evaluation.tables is not None
    assert set(evaluation.tables) == {"confusion", "auroc", "calibration"}

    code, out, err = apportion("publish", tmp_path / "run", "--to", tmp_path / "bundle", "--json")
    assert code == 0, err
    published = json.loads(out)
    assert [part["purpose"] for part in published["components"]] == [
        "training", "pca", "scaling", "class-weights", "evaluation",
    ]  # fmt: skip
    code, out, err = apportion("verify", tmp_path / "bundle", "--json")
    assert code == 0, err
    verified = json.loads(out)
    assert verified["verified"]
    assert verified["recomputed_epsilon"] == planned["epsilon"]
    assert "Projection(9, 5), Standardise(5)" in (tmp_path / "bundle" / "README.md").read_text()
    _check_predictions(apportion, tmp_path)


def _check_predictions(apportion: Command, tmp_path: Path) -> None:
    """Raw inputs in, by numpy: the same answers as the trained network gives."""
    import torch
    from safetensors.torch import load_file

    from apportion.data import wisconsin
    from apportion.training import Projection, Standardise

    _, test = wisconsin()
    raw = np.rint((test.inputs + 1) / 2 * 9 + 1)
    rows = [",".join(test.features), *(",".join(f"{value:g}" for value in row) for row in raw)]
    (tmp_path / "raw.csv").write_text("\n".join(rows) + "\n")
    code, out, err = apportion("predict", tmp_path / "bundle", tmp_path / "raw.csv", "--json")
    assert code == 0, err
    found = np.array([p["probabilities"] for p in json.loads(out)["predictions"]])
    model = torch.nn.Sequential(
        Projection(9, 5), Standardise(5), torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    )
    model.load_state_dict(load_file(tmp_path / "bundle" / "model.safetensors"))
    expected = torch.softmax(model(torch.tensor(test.inputs, dtype=torch.float32)), 1).detach().numpy()
    assert np.allclose(found, expected, atol=1e-5)


def test_the_plan_is_shown_as_a_table_and_a_bar(apportion: Command, config: Path) -> None:
    code, out, _ = apportion("plan", config)
    assert code == 0
    for text in ("pca", "10.0%", "60.0%", "evaluation", "ε alone", "█" * 6 + "▓" * 6, "(ε, δ) = ("):
        assert text in out, text
    assert apportion("plan", config, "--adjacency", "zero-out")[0] == 2


def test_a_dry_run_shows_the_shares_and_spends_nothing(apportion: Command, config: Path, tmp_path: Path) -> None:
    code, out, err = apportion("train", config, "--dry-run", "--json")
    assert code == 0, err
    assert json.loads(out)["stages"][0]["stage"] == "pca"
    assert not list(tmp_path.iterdir())


def test_an_evaluation_that_a_crash_left_out_is_made_up_for_by_resuming(
    apportion: Command, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apportion.training import tabular

    with monkeypatch.context() as patch:
        patch.setattr(tabular, "evaluate_as_planned", lambda *_: None)
        assert apportion("train", config, "--out", tmp_path / "run")[0] == 0
    code, out, _ = apportion("status", tmp_path / "run", "--json")
    assert json.loads(out)["pending"] == ["evaluation"]
    before = json.loads(out)["epsilon"]
    code, out, err = apportion("train", "--resume", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["pending"] == []
    assert json.loads(out)["epsilon"] == before
    assert len(ledger.read(tmp_path / "run" / "ledger.jsonl").evaluations) == 1


def test_a_description_whose_projection_cannot_be_is_refused() -> None:
    from apportion.bundle import model
    from apportion.errors import BundleError

    table = {
        "target": "class", "classes": ["a", "b"], "hidden": [], "activation": "tanh",
        "features": [{"name": "x", "low": 0.0, "high": 1.0}], "projection": 2,
    }  # fmt: skip
    with pytest.raises(BundleError, match="at most as many"):
        model.table_of({"format": 1, "table": table, "onnx": None})
