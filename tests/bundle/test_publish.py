"""Nothing else leaves; what the publisher states is shown; a private score is paid for before it exists."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_data, tiny_model, train

import apportion as ap
from apportion import ledger
from apportion.bundle import files, signing
from apportion.data.predict import load_table_model, predict_table
from apportion.errors import BundleError, InvalidArgument, LedgerError, RunError

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line on the built-in table."""
    from apportion import settings
    from apportion.budget import Budget
    from apportion.schedules import Uniform
    from apportion.training import tabular

    out = tmp_path_factory.mktemp("table") / "run"
    chosen = settings.Settings(dataset="wisconsin", examples=560, batches=4, epochs=4, hidden=(6, 5))
    job = tabular.prepare_job(chosen, Uniform(), Budget(epsilon=2.0, delta=1e-5))
    tabular.train_job(job, out, progress=False)
    return out


@pytest.fixture
def table(table_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(table_run, tmp_path / "run")
    return tmp_path / "run"


def test_no_sentinel_among_the_private_metrics_leaves(table: Path, tmp_path: Path, apportion: Call) -> None:
    """Every number and text in the run directory that is not published, replaced by a 12-digit sentinel."""
    sentinels = iter(range(918_273_645_001, 918_273_646_000))
    lines = [json.loads(line) for line in (table / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for name in line:
            line[name] = (
                {"loss": next(sentinels), "accuracy": next(sentinels)} if name == "holdout" else next(sentinels)
            )
        line["note"] = str(next(sentinels))
    (table / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (table / "checkpoints" / "latest.pt").write_bytes(str(next(sentinels)).encode())
    (table / "report.html").write_text(str(next(sentinels)))
    (table / "notes.txt").write_text(str(next(sentinels)))
    code, _, err = apportion("publish", table, "--to", tmp_path / "bundle", "--zip", "--evaluate-privately", "30")
    assert code == 0, err
    published = b"".join(path.read_bytes() for path in (tmp_path / "bundle").iterdir())
    published += (tmp_path / "bundle.zip").read_bytes()
    assert b"918273645" not in published
    assert b"918.273" not in published
    assert str(tmp_path).encode() not in published


def test_a_private_score_is_recorded_before_its_counts_and_priced(table: Path, tmp_path: Path, apportion: Call) -> None:
    before = ledger.read(table / files.LEDGER)
    plain = ap.certify(before).guarantee.epsilon
    code, _, err = apportion("publish", table, "--to", tmp_path / "bundle", "--evaluate-privately", "5")
    assert code == 0, err
    lines = [json.loads(line) for line in (tmp_path / "bundle" / files.LEDGER).read_text().splitlines()]
    assert [line["kind"] for line in lines[-3:]] == ["release", "event", "evaluation"]
    assert lines[-2]["body"]["event"] == {
        "kind": "gaussian-release", "sigma": 5.0, "replace_one": math.sqrt(2), "purpose": "evaluation",
    }  # fmt: skip
    certificate = json.loads((tmp_path / "bundle" / files.CERTIFICATE).read_text())
    assert certificate["epsilon"] > plain
    assert [component["purpose"] for component in certificate["components"]] == ["training", "evaluation"]
    found = certificate["evaluations"][0]
    assert abs(found["right"] + found["wrong"] - 123) < 8 * 5 * math.sqrt(2)
    assert ap.verify(tmp_path / "bundle").verified
    assert "noisy test score" in (tmp_path / "bundle" / files.CARD).read_text()
    assert "model-index" in (tmp_path / "bundle" / files.CARD).read_text()


def test_scores_add_up_over_publications(table: Path, tmp_path: Path, apportion: Call) -> None:
    for name in ("first", "second"):
        assert apportion("publish", table, "--to", tmp_path / name, "--evaluate-privately", "8")[0] == 0
    first, second = (json.loads((tmp_path / n / files.CERTIFICATE).read_text()) for n in ("first", "second"))
    assert (len(first["evaluations"]), len(second["evaluations"])) == (1, 2)
    assert second["epsilon"] > first["epsilon"]
    assert ap.verify(tmp_path / "first").verified
    assert ap.verify(tmp_path / "second").verified


@pytest.mark.parametrize("drop", [-1, -2])
def test_counts_without_their_event_are_no_ledger(run: Any, tmp_path: Path, drop: int) -> None:
    run.publish(tmp_path / "bundle", evaluate_privately=9.0, model=tiny_model(), holdout=tiny_data())
    lines = (tmp_path / "bundle" / files.LEDGER).read_bytes().splitlines(keepends=True)
    del lines[drop]
    if drop == -1:  # paid for and not released: over-counted, which is allowed
        assert len(ledger.parse(b"".join(lines)).evaluations) == 0
        return
    with pytest.raises(LedgerError):
        ledger.parse(b"".join(lines))


@pytest.mark.parametrize(
    "options",
    [
        {"evaluate_privately": 0.0, "model": tiny_model(), "holdout": tiny_data()},
        {"evaluate_privately": float("nan"), "model": tiny_model(), "holdout": tiny_data()},
        {"evaluate_privately": 5.0, "holdout": tiny_data()},
        {"evaluate_privately": 5.0, "model": tiny_model()},
        {"evaluate_privately": 5.0, "model": tiny_model(), "holdout": tiny_data(), "earlier_runs": -1},
        {"evaluate_privately": 5.0, "model": tiny_model(), "holdout": tiny_data(), "hyperparameters": "guessed"},
        {"evaluate_privately": 5.0, "model": tiny_model(), "holdout": tiny_data(), "intended_use": "<b>all</b>"},
    ],
    ids=range(7),
)
def test_what_is_refused_costs_nothing(run: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    before = (run.directory / files.LEDGER).read_bytes()
    with pytest.raises(InvalidArgument):
        run.publish(tmp_path / "bundle", **options)
    assert (run.directory / files.LEDGER).read_bytes() == before
    assert not (tmp_path / "bundle").exists()


def test_a_bad_key_or_an_existing_target_costs_nothing(run: Any, tmp_path: Path) -> None:
    before = (run.directory / files.LEDGER).read_bytes()
    paid = {"evaluate_privately": 5.0, "model": tiny_model(), "holdout": tiny_data()}
    (tmp_path / "key").write_text("no key")
    with pytest.raises(InvalidArgument, match="not a private key"):
        run.publish(tmp_path / "bundle", sign=tmp_path / "key", **paid)
    (tmp_path / "there.zip").write_text("")
    with pytest.raises(RunError, match="exists already"):
        run.publish(tmp_path / "there", as_zip=True, **paid)
    assert (run.directory / files.LEDGER).read_bytes() == before


def test_what_is_not_declared_is_stamped(bundle: Path) -> None:
    stated = json.loads((bundle / files.CERTIFICATE).read_text())["publication"]
    assert stated["hyperparameters"] == stated["earlier_runs"] == "not declared"
    text = (bundle / files.CARD).read_text()
    assert "not declared" in text
    assert "covers this run only" in text
    assert "copies or earlier states of the run directory" in text


@pytest.mark.parametrize("how", ["fixed", "public-data", "selected", "tuned-on-this-data"])
def test_what_is_declared_is_shown(table: Path, tmp_path: Path, apportion: Call, how: str) -> None:
    arguments = ("--to", tmp_path / "bundle", "--hyperparameters", how, "--earlier-runs", "12", "--license", "mit")
    assert apportion("publish", table, *arguments)[0] == 0
    text = (tmp_path / "bundle" / files.CARD).read_text()
    assert "12, none of them covered" in text
    assert text.startswith("---\nlicense: mit\n")
    # "selected" is only as good as the selection in the ledger, and this ledger records none.
    assert ("NOT in the guarantee" in text) == (how in ("tuned-on-this-data", "selected"))
    _, out, _ = apportion("verify", tmp_path / "bundle", "--json")
    assert json.loads(out)["publication"]["hyperparameters"] == how


def test_an_unsafe_run_forced_fails_strict(tmp_path: Path, apportion: Call) -> None:
    run = train(tmp_path / "run", seeded_for_research_only=3)
    code, _, err = apportion("publish", run.directory, "--to", tmp_path / "bundle")
    assert code == 2
    assert "seeded" in err
    assert apportion("publish", run.directory, "--to", tmp_path / "bundle", "--allow-unsafe")[0] == 0
    assert apportion("verify", tmp_path / "bundle")[0] == 0
    code, out, _ = apportion("verify", tmp_path / "bundle", "--strict", "--json")
    assert code == 1
    assert [c["name"] for c in json.loads(out)["checks"] if not c["holds"]] == ["safe"]
    for name in (files.CARD, files.WORDS):
        assert "**UNSAFE:" in (tmp_path / "bundle" / name).read_text()


def test_verify_states_each_check_by_name(bundle: Path, apportion: Call) -> None:
    _, out, _ = apportion("verify", bundle, "--strict", "--json")
    names = [check["name"] for check in json.loads(out)["checks"]]
    assert names == [
        "files", "manifest", "weights-format", "ledger", "certificate-format", "plan", "weights", "accounting", "claims",
        "card", "words", "noise-picture", "trade-off-picture", "safe",
    ]  # fmt: skip


def test_signatures(table: Path, tmp_path: Path, apportion: Call) -> None:
    for name in ("mine", "theirs"):
        assert apportion("keygen", "--to", tmp_path / name)[0] == 0
    assert (tmp_path / "mine").stat().st_mode & 0o077 == 0
    assert apportion("keygen", "--to", tmp_path / "mine")[0] == 2
    assert apportion("publish", table, "--to", tmp_path / "signed", "--sign", tmp_path / "mine", "--zip")[0] == 0
    assert apportion("publish", table, "--to", tmp_path / "unsigned")[0] == 0
    mine, theirs = tmp_path / "mine.pub", tmp_path / "theirs.pub"
    for bundle in (tmp_path / "signed", tmp_path / "signed.zip"):
        assert apportion("verify", bundle)[0] == 0
        assert apportion("verify", bundle, "--trusted", mine)[0] == 0
        assert apportion("verify", bundle, "--trusted", theirs, "--trusted", mine)[0] == 0
        assert apportion("verify", bundle, "--trusted", theirs)[0] == 1
    assert apportion("verify", tmp_path / "unsigned", "--trusted", mine)[0] == 1
    assert "not who made" in apportion("verify", tmp_path / "unsigned")[2]
    code, _, err = apportion("verify", tmp_path / "signed", "--trusted", tmp_path / "mine")
    assert code == 2
    assert "give the .pub file" in err


def test_a_signature_of_another_bundle_does_not_fit(run: Any, tmp_path: Path) -> None:
    signing.generate(tmp_path / "key")
    for name in ("a", "b"):
        run.publish(tmp_path / name, sign=tmp_path / "key")
    shutil.copy(tmp_path / "a" / files.SIGNATURE, tmp_path / "b" / files.SIGNATURE)
    assert "signature: the signature does not belong" in "\n".join(ap.verify(tmp_path / "b").problems)


def test_the_receiver_predicts_as_pytorch_does(table: Path, tmp_path: Path, apportion: Call) -> None:
    import torch
    from safetensors.torch import load_file

    from apportion.data import wisconsin
    from apportion.training import tabular

    assert apportion("publish", table, "--to", tmp_path / "bundle", "--zip")[0] == 0
    table_model, weights = load_table_model(tmp_path / "bundle.zip")
    network = tabular.network_of(table_model).double()
    network.load_state_dict(load_file(tmp_path / "bundle" / files.WEIGHTS))
    inputs = wisconsin()[1].inputs
    expected = network(torch.as_tensor(inputs)).detach().numpy()
    assert table_model.scores(inputs, weights) == pytest.approx(expected, abs=1e-12)


def test_predict_reads_a_table_with_other_columns_too(table: Path, tmp_path: Path, apportion: Call) -> None:
    assert apportion("publish", table, "--to", tmp_path / "bundle")[0] == 0
    features = list(load_table_model(tmp_path / "bundle")[0].ranges)
    data = tmp_path / "new.csv"
    data.write_text(",".join([*reversed(features), "name"]) + "\n" + ",".join([*"111111111", "x"]) + "\n")
    code, out, _ = apportion("predict", tmp_path / "bundle", data, "--json")
    assert code == 0
    found = json.loads(out)["predictions"][0]
    assert sum(found["probabilities"]) == pytest.approx(1)
    assert apportion("predict", tmp_path / "bundle", data, "--out", tmp_path / "out.csv")[0] == 0
    assert (tmp_path / "out.csv").read_text().startswith("predicted,p(benign),p(malignant)")
    data.write_text("mitoses\n1\n")
    code, _, err = apportion("predict", tmp_path / "bundle", data)
    assert code == 2
    assert "there is no column" in err


def test_predict_refuses_a_changed_bundle_and_one_without_a_table(table: Path, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="describes no table model"):
        predict_table(bundle, tmp_path / "x.csv")
    weights = bytearray((bundle / files.WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (bundle / files.WEIGHTS).write_bytes(weights)
    with pytest.raises(BundleError, match="not the files that the manifest lists"):
        predict_table(bundle, tmp_path / "x.csv")


def test_features_keep_their_order_through_the_settings_file() -> None:
    from apportion import canonical, settings

    chosen = settings.Settings(
        data="x.csv", target="y", classes=("a", "b"), ranges={"z": (0.0, 1.0), "a": (0.0, 2.0)}, epsilon=1.0
    )
    again = settings.from_json(canonical.loads(canonical.pretty(chosen.to_json())))
    assert list(again.ranges.items()) == list(chosen.ranges.items())
    assert again == chosen


def test_the_card_has_front_matter_and_loads_in_five_lines(table: Path, tmp_path: Path, apportion: Call) -> None:
    import re

    assert apportion("publish", table, "--to", tmp_path / "bundle", "--intended-use", "Teaching.")[0] == 0
    text = (tmp_path / "bundle" / files.CARD).read_text()
    assert text.startswith("---\nlibrary_name: pytorch\npipeline_tag: tabular-classification\ntags:\n")
    assert "Teaching." in text
    for picture in (files.NOISE, files.TRADE_OFF):
        assert f"({picture})" in text
        assert (tmp_path / "bundle" / picture).read_text().startswith("<svg")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    exec(code.group(1).replace('"model.safetensors"', repr(str(tmp_path / "bundle" / files.WEIGHTS))), {})


def test_onnx_computes_the_same_and_says_nothing_of_the_machine(table: Path, tmp_path: Path, apportion: Call) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    import numpy as np

    from apportion.data import wisconsin

    assert apportion("publish", table, "--to", tmp_path / "bundle", "--onnx")[0] == 0
    assert ap.verify(tmp_path / "bundle").verified
    content = (tmp_path / "bundle" / files.ONNX).read_bytes()
    assert b"site-packages" not in content
    assert b".py" not in content
    described = json.loads((tmp_path / "bundle" / files.MODEL).read_text())["onnx"]
    assert described["input"]["shape"] == ["batch", 9]
    assert described["largest_difference"] < 1e-4
    inputs = wisconsin()[1].inputs.astype(np.float32)
    found = onnxruntime.InferenceSession(content).run(["output"], {"input": inputs})[0]
    table_model, weights = load_table_model(tmp_path / "bundle")
    assert found == pytest.approx(table_model.scores(inputs, weights), abs=1e-4)
    (tmp_path / "bundle" / files.ONNX).write_bytes(b"\x80" + content[1:])
    assert not ap.verify(tmp_path / "bundle").verified
