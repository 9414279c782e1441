"""What is published verifies: every batching, every schedule, as a directory and as an archive."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_data, tiny_plan, train

import apportion as ap
from apportion.bundle import archive, files

BATCHINGS = {
    "shuffle": ap.Shuffle(batches=3),
    "partition": ap.Partition(batches=3),
    "poisson": ap.Poisson(rate=0.4),
}
SCHEDULES = {
    "uniform": ap.Uniform(sigma0=9.0),
    "time": ap.TimeDecay(sigma0=9.0, decay=0.1),
    "exponential": ap.ExponentialDecay(sigma0=9.0, decay=0.1),
    "step": ap.StepDecay(sigma0=9.0, decay=0.8, period=1),
    "polynomial": ap.PolynomialDecay(sigma0=9.0, decay=2.0, period=4, sigma_end=6.0),
    "hold": ap.Hold(schedule=ap.ExponentialDecay(sigma0=9.0, decay=0.1), start=1, end=2),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_publish_then_verify(tmp_path: Path, batching: str, schedule: str) -> None:
    plan = tiny_plan(batching=BATCHINGS[batching], schedule=SCHEDULES[schedule], spare_epochs=1)
    certificate = train(tmp_path / "run", plan).publish(tmp_path / "bundle", as_zip=True)
    for published in (tmp_path / "bundle", tmp_path / "bundle.zip"):
        result = ap.verify(published, strict=True)
        assert result.problems == ()
        assert result.to_json()["epsilon"] == certificate.epsilon


@pytest.mark.parametrize("budget", [ap.Budget(rho=0.05), ap.Budget(rho=0.05, delta=1e-7)], ids=str)
def test_rho_budgets_and_other_adjacencies(tmp_path: Path, budget: ap.Budget) -> None:
    plan = tiny_plan(
        budget=budget, batching=ap.Partition(batches=2), adjacency="replace-one", schedule=ap.Uniform(sigma0=15.0)
    )
    train(tmp_path / "run", plan).publish(tmp_path / "bundle")
    assert ap.verify(tmp_path / "bundle").problems == ()


def test_equal_bundles_give_equal_archives(run: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run.publish(tmp_path / name, name="model", as_zip=True)
    first, second = ((tmp_path / f"{name}.zip").read_bytes() for name in ("a", "b"))
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()


def test_the_archive_is_an_ordinary_zip(run: Any, tmp_path: Path) -> None:
    import zipfile

    run.publish(tmp_path / "bundle", as_zip=True)
    with zipfile.ZipFile(tmp_path / "bundle.zip") as opened:
        assert opened.testzip() is None
        assert set(opened.namelist()) == {path.name for path in (tmp_path / "bundle").iterdir()}
        opened.extractall(tmp_path / "unpacked")
    assert ap.verify(tmp_path / "unpacked").verified


def test_the_archive_says_where_each_member_is(bundle: Path, tmp_path: Path) -> None:
    with open(tmp_path / "b.zip", "wb") as file:
        archive.write({path.name: path for path in bundle.iterdir()}, file)
    content = (tmp_path / "b.zip").read_bytes()
    with open(tmp_path / "b.zip", "rb") as file:
        for member in archive.read(file, len(content)):
            assert content[member.start : member.start + member.size] == (bundle / member.name).read_bytes()


def test_certificates_follow_their_schema_by_an_independent_validator(bundle: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    import json

    from apportion.bundle import schema

    for name, kind in ((files.CERTIFICATE, "certificate"), (files.MANIFEST, "manifest")):
        jsonschema.Draft202012Validator.check_schema(schema.load(kind, 1))
        jsonschema.validate(json.loads((bundle / name).read_bytes()), schema.load(kind, 1))


def adaptive(**changes: Any) -> ap.AdaptivePlan:
    values: dict[str, Any] = {
        "budget": ap.Budget(epsilon=2.0, delta=1e-5),
        "examples": 60,
        "batching": ap.Shuffle(batches=3),
        "schedule": ap.ValidationDecay(sigma0=9.0, decay=0.7, period=2, window=1),
        "epochs": 4,
        "clip": 1.0,
    }
    return ap.AdaptivePlan(**(values | changes))


ADAPTIVE = {
    "rho": adaptive(budget=ap.Budget(rho=0.05)),
    "epsilon": adaptive(),
    "partition": adaptive(batching=ap.Partition(batches=3), order=8.0),
    "poisson": adaptive(batching=ap.Poisson(rate=0.4)),
    "floor": adaptive(batching=ap.Partition(batches=3), floor=ap.Uniform(sigma0=4.0), epochs=3),
    "grid": adaptive(noise="grid"),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_runs_are_published_by_their_cap_and_verify(tmp_path: Path, name: str) -> None:
    plan = ADAPTIVE[name]
    run = train(tmp_path / "run", plan, validation=ap.Public(tiny_data(20)))
    certificate = run.publish(tmp_path / "bundle", as_zip=True)
    assert certificate.guarantee.epsilon == plan.guarantees(plan.delta)[0].epsilon, "the cap, not the realised sum"
    for published in (tmp_path / "bundle", tmp_path / "bundle.zip"):
        assert ap.verify(published, strict=True).problems == ()
    words = (tmp_path / "bundle" / files.WORDS).read_text()
    assert ("floor" if name == "floor" else "cap") in words
    assert ("covered (sums rounded" in words) == (name == "grid")


def test_an_adaptive_bundle_with_an_edited_score_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", adaptive(), validation=ap.Public(tiny_data(20))).publish(tmp_path / "bundle")
    path = tmp_path / "bundle" / files.LEDGER
    path.write_bytes(path.read_bytes().replace(b'"score":0.', b'"score":1.', 1))
    assert ap.verify(tmp_path / "bundle").problems


def test_an_adaptive_run_is_drawn_and_explained(apportion: Any, tmp_path: Path) -> None:
    run = train(tmp_path / "run", adaptive(), validation=ap.Public(tiny_data(20)))
    run.publish(tmp_path / "bundle")
    for command in (("report", tmp_path / "run"), ("explain", tmp_path / "bundle"), ("status", tmp_path / "run")):
        code, _, err = apportion(*command)
        assert code == 0, err
