"""Verification fails, with the reason, whatever was changed."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import train

import apportion as ap
from apportion import canonical
from apportion.bundle import files
from apportion.bundle.derived import derived
from apportion.errors import RunError, UnsafePublication

NAMES = sorted([*files.LISTED, files.MANIFEST])


def problems(bundle: Path) -> str:
    result = ap.verify(bundle)
    assert result.verified == (not result.problems)
    return "\n".join(result.problems)


def remanifest(bundle: Path) -> None:
    """What a forger would do: make the manifest fit the changed files."""
    prints = {p.name: files.fingerprint(p) for p in bundle.iterdir() if p.name not in (files.MANIFEST, files.SIGNATURE)}
    (bundle / files.MANIFEST).write_bytes(files.manifest_of(prints))


def edit_certificate(bundle: Path, **changes: object) -> None:
    path = bundle / files.CERTIFICATE
    certificate = json.loads(path.read_text()) | changes
    path.write_text(canonical.pretty(certificate))
    for name, content in derived(certificate, None).items():
        (bundle / name).write_bytes(content)
    remanifest(bundle)


def test_a_published_bundle_verifies(bundle: Path) -> None:
    assert problems(bundle) == ""
    assert sorted(path.name for path in bundle.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_one_flipped_byte_in_any_file_is_caught(bundle: Path, name: str) -> None:
    content = bytearray((bundle / name).read_bytes())
    for position in (0, len(content) // 3, len(content) // 2, len(content) - 1):
        content[position] ^= 1
        (bundle / name).write_bytes(content)
        assert problems(bundle), f"byte {position} of {name}"
        content[position] ^= 1


@pytest.mark.parametrize("name", [files.WEIGHTS, files.LEDGER, files.PLAN])
def test_a_flipped_byte_is_caught_even_with_a_new_manifest(bundle: Path, name: str) -> None:
    content = bytearray((bundle / name).read_bytes())
    position = content.find(b"8.0") if name == files.PLAN else len(content) // 2
    content[position] ^= 1
    (bundle / name).write_bytes(content)
    remanifest(bundle)
    assert problems(bundle)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_and_a_foreign_file_are_caught(bundle: Path, name: str) -> None:
    (bundle / "metrics.jsonl").write_text("{}")
    assert "unexpected: ['metrics.jsonl']" in problems(bundle)
    (bundle / "metrics.jsonl").unlink()
    (bundle / name).unlink()
    assert f"missing: ['{name}']" in problems(bundle)


def test_a_smaller_epsilon_on_the_certificate_is_caught(bundle: Path) -> None:
    claimed = json.loads((bundle / files.CERTIFICATE).read_text())["epsilon"]
    edit_certificate(bundle, epsilon=claimed * 0.99)
    assert "the ledger costs" in problems(bundle)


def test_a_larger_epsilon_is_a_true_claim(bundle: Path) -> None:
    claimed = json.loads((bundle / files.CERTIFICATE).read_text())["epsilon"]
    edit_certificate(bundle, epsilon=claimed * 1.5)
    assert problems(bundle) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"delta": 1e-9},
        {"adjacency": "add-remove"},
        {"adjacency": "replace-one"},
        {"unit": "person"},
        {"randomness": "seeded-for-research-only"},
        {"batching": {"kind": "partition", "batches": 3}},
        {"sigmas": [80.0, 80.0]},
        {"clip": 0.1},
        {"rho": 0.001},
        {"not_covered": []},
        {"declared": {}},
        {"slots": {"planned": 2, "used": 1}},
        {"guarantees": []},
        {"guarantees": [{"accountant": "gaussian", "epsilon": 0.1, "status": "proven"}]},
        {"guarantees": [{"accountant": "oracle", "epsilon": 10.0, "status": "proven"}]},
        {"guarantees": [{"accountant": "gaussian", "epsilon": 10.0, "status": "estimate"}]},
        {"accountant": "oracle"},
        {"weights": "0" * 64},
        {"note": "trust me"},
        {"format": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_any_other_false_claim_is_caught(bundle: Path, changes: dict[str, object]) -> None:
    path = bundle / files.CERTIFICATE
    path.write_text(canonical.pretty(json.loads(path.read_text()) | changes))
    remanifest(bundle)
    assert problems(bundle).startswith(("claims:", "certificate-format:"))


@pytest.mark.parametrize("value", ["2", None, True, [], {}], ids=str)
def test_epsilon_of_a_wrong_type_is_refused(bundle: Path, value: object) -> None:
    path = bundle / files.CERTIFICATE
    path.write_text(canonical.pretty(json.loads(path.read_text()) | {"epsilon": value}))
    remanifest(bundle)
    assert problems(bundle).startswith("certificate-format: certificate.epsilon:")


@pytest.mark.parametrize("name", [files.LEDGER, files.CERTIFICATE, files.PLAN, files.WEIGHTS])
def test_a_file_of_another_run_is_caught(bundle: Path, tmp_path: Path, name: str) -> None:
    train(tmp_path / "other").publish(tmp_path / "published")
    if name == files.PLAN:
        (bundle / name).write_text((bundle / name).read_text().replace("60", "61"))
    else:
        shutil.copyfile(tmp_path / "published" / name, bundle / name)
    remanifest(bundle)
    assert problems(bundle)


@pytest.mark.parametrize("damage", ["drop", "reorder", "edit"])
def test_a_changed_ledger_line_is_caught(bundle: Path, damage: str) -> None:
    path = bundle / files.LEDGER
    lines = path.read_bytes().splitlines(keepends=True)
    changed = {
        "drop": lines[:1] + lines[2:],
        "reorder": [lines[0], lines[2], lines[1], lines[3]],
        "edit": [lines[0], lines[1].replace(b'"sigma":8.0', b'"sigma":9.0'), *lines[2:]],
    }[damage]
    path.write_bytes(b"".join(changed))
    remanifest(bundle)
    assert problems(bundle).startswith("ledger: line")


def test_a_false_privacy_section_on_the_card_is_caught(bundle: Path) -> None:
    path = bundle / files.CARD
    path.write_text(path.read_text().replace("zero-out", "all people"))
    remanifest(bundle)
    assert problems(bundle).startswith("card:")


def test_links_and_directories_are_refused(bundle: Path, tmp_path: Path) -> None:
    (bundle / files.CARD).rename(tmp_path / "card")
    (bundle / files.CARD).symlink_to(tmp_path / "card")
    assert "not a regular file" in problems(bundle)
    assert "neither a directory nor an archive" in problems(tmp_path / "nowhere")


def test_publish_never_overwrites(run: ap.training.FinishedRun, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(RunError, match="exists already"):
        run.publish(tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_a_seeded_run_is_refused_and_forced_is_stamped(tmp_path: Path) -> None:
    run = train(tmp_path / "run", seeded_for_research_only=1)
    with pytest.raises(UnsafePublication, match="seeded"):
        run.publish(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
    run.publish(tmp_path / "bundle", allow_unsafe=True)
    assert "UNSAFE" in (tmp_path / "bundle" / files.CARD).read_text()
    assert ap.verify(tmp_path / "bundle").to_json()["unsafe"]


def test_a_non_private_run_is_refused(tmp_path: Path) -> None:
    plan = ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=3), epochs=1)
    with pytest.raises(UnsafePublication, match="without privacy"):
        train(tmp_path / "run", plan).publish(tmp_path / "bundle", allow_unsafe=True)


def test_changed_weights_are_not_published(run: ap.training.FinishedRun, tmp_path: Path) -> None:
    (run.directory / files.WEIGHTS).write_bytes(b"other weights")
    with pytest.raises(RunError, match="changed afterwards"):
        run.publish(tmp_path / "bundle")


def test_private_metrics_do_not_leave_the_run_directory(tmp_path: Path) -> None:
    data = __import__("conftest").tiny_data()
    run = train(tmp_path / "run", holdout=data)
    metrics = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    run.publish(tmp_path / "bundle")
    published = b"".join(path.read_bytes() for path in (tmp_path / "bundle").iterdir())
    for line in metrics:
        for value in (line["gradient_norm_median"], line["holdout"]["loss"], line["seconds"]):
            assert str(value)[:12].encode() not in published
