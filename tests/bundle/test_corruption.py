"""Every single-byte corruption of a bundle is caught: exhaustively for JSON, sampled for the rest and for the archive."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import tiny_plan, train

import apportion as ap
from apportion.bundle import files, signing


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed bundle with everything in it that the tests can make without ONNX, and its archive."""
    directory = tmp_path_factory.mktemp("small")
    signing.generate(directory / "key")
    run = train(directory / "run", tiny_plan(epochs=1))
    run.publish(directory / "bundle", sign=directory / "key", as_zip=True)
    assert ap.verify(directory / "bundle").verified
    assert ap.verify(directory / "bundle.zip").verified
    return directory / "bundle"


def missed(bundle: Path, path: Path, positions: Iterable[int], flips: Iterable[int] = (1,)) -> list[tuple[int, int]]:
    """The corruptions of `path` that verification did not notice."""
    content = path.read_bytes()
    unnoticed = []
    for position in positions:
        for flip in flips:
            changed = content[position] ^ flip
            path.write_bytes(content[:position] + bytes([changed]) + content[position + 1 :])
            if ap.verify(bundle).verified:
                unnoticed.append((position, flip))
    path.write_bytes(content)
    return unnoticed


@pytest.mark.parametrize("name", [files.CERTIFICATE, files.PLAN, files.MANIFEST, files.SIGNATURE, files.LEDGER])
def test_every_byte_of_every_json_file_counts(small: Path, name: str) -> None:
    path = small / name
    assert missed(small, path, range(path.stat().st_size)) == []


@pytest.mark.parametrize("name", [files.WEIGHTS, files.CARD, files.WORDS, files.NOISE, files.TRADE_OFF])
def test_sampled_bytes_of_the_other_files_count(small: Path, name: str) -> None:
    path = small / name
    size = path.stat().st_size
    positions = {0, size - 1, *random.Random(1).sample(range(size), 40)}
    assert missed(small, path, positions, flips=(1, 0x80)) == []


def test_sampled_bytes_of_the_archive_count(small: Path) -> None:
    path = small.with_name("bundle.zip")
    size = path.stat().st_size
    directory_start = path.read_bytes().find(b"PK\1\2")
    positions = {*range(60), *random.Random(2).sample(range(size), 60), *range(directory_start, size, 9)}
    assert missed(path, path, positions) == []


@pytest.mark.parametrize("name", [files.CERTIFICATE, files.LEDGER, files.MANIFEST, files.WEIGHTS])
def test_a_byte_too_many_or_too_few_is_caught(small: Path, name: str) -> None:
    path = small / name
    content = path.read_bytes()
    for changed in (content + b"\n", content + b"\0", content[:-1], b"\n" + content, b""):
        path.write_bytes(changed)
        assert not ap.verify(small).verified
    path.write_bytes(content)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a table model, which describes itself in model.json."""
    from apportion.settings import Settings
    from apportion.training.tabular import prepare_job, train_job

    directory = tmp_path_factory.mktemp("table")
    chosen = Settings(dataset="wisconsin", examples=560, batching="shuffle", batches=2, epochs=1, hidden=())
    job = prepare_job(chosen, ap.Uniform(sigma0=9.0), ap.Budget(epsilon=3.0, delta=1e-5))
    train_job(job, directory / "run", progress=False).publish(directory / "bundle")
    assert ap.verify(directory / "bundle").verified
    return directory / "bundle"


def test_every_byte_of_the_models_description_counts(table: Path) -> None:
    path = table / files.MODEL
    assert missed(table, path, range(path.stat().st_size)) == []
