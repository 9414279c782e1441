"""`apportion train --stream-to`: a table larger than memory is trained on as one in memory."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from apportion.errors import RunError

pytest.importorskip("pyarrow")

Call = Callable[..., tuple[int, str, str]]
PATIENTS = Path(__file__).parent.parent.parent / "examples" / "patients.toml"


def test_a_streamed_table_trains_as_one_in_memory(apportion: Call, tmp_path: Path) -> None:
    found = {}
    for name, more in (("memory", ()), ("streamed", ("--stream-to", tmp_path))):
        torch.manual_seed(0)
        code, _, err = apportion(
            "train", PATIENTS, "--holdout", 0, "--epochs", 2, "--seeded-for-research-only", 5, *more,
            "--out", tmp_path / name, "--json",
        )  # fmt: skip
        assert code == 0, err
        found[name] = load_file(tmp_path / name / "model.safetensors")
    for key, value in found["memory"].items():
        torch.testing.assert_close(found["streamed"][key], value, rtol=0, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory", "streamed"]


def test_a_streamed_run_holds_records_out_rehearses_and_publishes_a_score(apportion: Call, tmp_path: Path) -> None:
    streamed = ("train", PATIENTS, "--holdout", 0.3, "--epochs", 2, "--stream-to", tmp_path)
    code, out, err = apportion(*streamed, "--dry-run", "--json")
    assert code == 0, err
    code, out, err = apportion(*streamed, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert 0 <= json.loads(out)["internal"]["accuracy"] <= 1
    code, _, err = apportion("publish", tmp_path / "run", "--to", tmp_path / "bundle", "--evaluate-privately", 20)
    assert code == 0, err
    assert apportion("verify", tmp_path / "bundle")[0] == 0


def test_what_needs_the_table_in_memory_is_refused(apportion: Call, tmp_path: Path) -> None:
    code, _, err = apportion("train", PATIENTS, "--stream-to", tmp_path, "--unit", "name", "--out", tmp_path / "run")
    assert (code, "leave --stream-to out" in err) == (2, True)
    code, _, err = apportion("train", "--dataset", "wisconsin", "--stream-to", tmp_path, "--out", tmp_path / "run")
    assert (code, "stream_to does not belong to --dataset" in err) == (2, True)
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_holds_the_same_records_out(apportion: Call, tmp_path: Path) -> None:
    from apportion.cli.train import _job
    from apportion.training import tabular

    code, _, err = apportion(
        "train", PATIENTS, "--holdout", 0.3, "--epochs", 1, "--stream-to", tmp_path, "--out", tmp_path / "run", "--json"
    )
    assert code == 0, err
    chosen, holdout = tabular.load_settings(tmp_path / "run")
    assert holdout is not None
    again, whole = _job(chosen, holdout), tabular.load_data(replace(chosen, stream_to=None), holdout, [])
    for streamed, kept in zip((again.train, again.test), whole, strict=False):
        rows = streamed.rows.read(0, 10_000)
        assert rows["inputs"].tolist() == kept.inputs.astype("float32").tolist()
    with pytest.raises(RunError, match="when the run began"):
        _job(chosen, holdout[:-1])
