"""MNIST and CIFAR-10, read from tiny files in their formats. Downloads are exercised with file:// addresses only."""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import idx, write_mnist

from apportion.data import cifar10, mnist
from apportion.data.public_files import PublicFile, data_directory, obtain
from apportion.errors import DataError

Call = Callable[..., tuple[int, str, str]]


def cifar_files(records: int = 3) -> dict[str, bytes]:
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    row = np.concatenate([[7], np.full(1024, 255), np.zeros(1024), np.full(1024, 51)]).astype(np.uint8)
    return {name: row.tobytes() * records for name in names}


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
def test_mnist_is_read_from_the_usual_folders_with_black_at_zero(tmp_path: Path, folder: str) -> None:
    write_mnist(tmp_path / folder)
    train, test = mnist(tmp_path)
    assert (len(train), len(test)) == (60, 20)
    assert train.inputs.shape == (60, 784)
    assert train.inputs[0].reshape(28, 28)[:, :14].min() == 1
    assert train.inputs[0].reshape(28, 28)[:, 14:].max() == 0
    assert train.targets.tolist() == [i % 10 for i in range(60)]


def test_the_environment_names_the_directory_and_an_argument_overrules_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPORTION_DATA", str(tmp_path))
    write_mnist(tmp_path / "mnist")
    assert len(mnist()[0]) == 60
    assert data_directory(tmp_path / "other") == tmp_path / "other"


def test_unpacked_idx_files_are_read_too(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    for path in tmp_path.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(mnist(tmp_path)[1]) == 20


@pytest.mark.parametrize("as_archive", [True, False])
def test_cifar10_is_read_from_its_archive_or_unpacked(tmp_path: Path, as_archive: bool) -> None:
    if as_archive:
        write_archive(tmp_path / "cifar-10-binary.tar.gz", cifar_files())
    else:
        (tmp_path / "cifar-10-batches-bin").mkdir()
        for name, content in cifar_files().items():
            (tmp_path / "cifar-10-batches-bin" / name).write_bytes(content)
    train, test = cifar10(tmp_path)
    assert (train.inputs.shape, len(test)) == ((15, 3072), 3)
    red, green, blue = train.inputs[0].reshape(3, 32, 32)
    assert (red.min(), green.max(), blue.max()) == (1, -1, pytest.approx(51 / 127.5 - 1))
    assert train.classes[train.targets[0]] == "horse"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not gzip", "not a readable .gz"),
        (gzip.compress(b"not idx"), "not an idx file"),
        (gzip.compress(idx(np.zeros((60, 28, 28)))[:-1]), "cut off"),
        (gzip.compress(idx(np.zeros((59, 28, 28)))), r"\(59, 28, 28\)"),
    ],
)
def test_damaged_images_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    write_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        mnist(tmp_path)


def test_labels_that_are_no_class_are_refused_without_showing_them(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(60, 77))))
    with pytest.raises(DataError, match="no digit") as refusal:
        mnist(tmp_path)
    assert "77" not in str(refusal.value).replace(str(tmp_path), "")


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"no archive")
    with pytest.raises(DataError, match="not a readable archive"):
        cifar10(tmp_path)
    write_archive(archive, {"data_batch_1.bin": b""})
    with pytest.raises(DataError, match="lacks data_batch_2"):
        cifar10(tmp_path)
    write_archive(archive, cifar_files() | {"data_batch_3.bin": b"x"})
    with pytest.raises(DataError, match="its length is no multiple"):
        cifar10(tmp_path)


def file_at(source: Path, content: bytes) -> PublicFile:
    return PublicFile(name="a.bin", sources=(source.as_uri(),), sha256=hashlib.sha256(content).hexdigest())


def test_a_download_is_kept_if_its_checksum_is_right(tmp_path: Path) -> None:
    source = tmp_path / "server"
    source.write_bytes(b"the content")
    kept = obtain(file_at(source, b"the content"), ("folder", ""), tmp_path / "data")
    assert kept == tmp_path / "data" / "folder" / "a.bin"
    assert kept.read_bytes() == b"the content"
    source.unlink()
    assert obtain(file_at(source, b"the content"), ("folder", ""), tmp_path / "data") == kept, "not fetched again"


def test_a_download_with_another_checksum_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "server").write_bytes(b"tampered with")
    with pytest.raises(DataError, match="SHA-256") as refusal:
        obtain(file_at(tmp_path / "server", b"the content"), ("",), tmp_path / "data")
    assert not list(tmp_path.glob("data/*"))
    for way_out in ("--data-dir", "APPORTION_DATA", "network"):
        assert way_out in str(refusal.value)


def test_the_second_source_serves_where_the_first_fails(tmp_path: Path) -> None:
    (tmp_path / "mirror").write_bytes(b"the content")
    digest = hashlib.sha256(b"the content").hexdigest()
    sources = tuple((tmp_path / name).as_uri() for name in ("gone", "mirror"))
    assert obtain(PublicFile(name="a", sources=sources, sha256=digest), ("",), tmp_path / "data").is_file()


def test_the_pinned_checksums_are_those_of_the_real_files() -> None:
    """Of MNIST in APPORTION_DATA: the download itself needs a network and is not tested."""
    from apportion.data.mnist import _SHA256

    directory = Path(os.environ.get("APPORTION_DATA", ""), "mnist")
    if not (directory / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip("no MNIST in APPORTION_DATA")
    for name, expected in _SHA256.items():
        content = gzip.decompress((directory / f"{name}.gz").read_bytes())
        assert hashlib.sha256(content).hexdigest() == expected


def test_train_publish_verify_predict_on_mnist(apportion: Call, tmp_path: Path) -> None:
    write_mnist(tmp_path / "data")
    common = ("--epsilon", "4", "--delta", "1e-3", "--batches", "2", "--epochs", "2", "--hidden", "8")
    source = ("--dataset", "mnist", "--data-dir", tmp_path / "data", "--examples", "60")
    code, out, err = apportion("train", *source, *common, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert 0 <= json.loads(out)["internal"]["accuracy"] <= 1
    code, _, err = apportion("publish", tmp_path / "run", "--to", tmp_path / "bundle")
    assert code == 0, err
    declared = json.loads((tmp_path / "bundle" / "certificate.json").read_text())["declared"]
    assert declared["data"] == "MNIST"
    assert "784 in all, SHA-256" in declared["feature ranges"], "longer than a certificate admits"
    code, out, err = apportion("verify", tmp_path / "bundle")
    assert code == 0, err
    np.savez(tmp_path / "images.npz", pixel=np.zeros((3, 784)))
    code, out, err = apportion("predict", tmp_path / "bundle", tmp_path / "images.npz", "--json")
    assert len(json.loads(out)["predictions"]) == 3


def test_options_of_a_table_do_not_belong_to_a_named_data_set(apportion: Call, tmp_path: Path) -> None:
    common = ("train", "--epsilon", "1", "--delta", "1e-5", "--batches", "2", "--dry-run")
    code, _, err = apportion(*common, "--dataset", "mnist", "--target", "x")
    assert (code, "target does not belong" in err) == (2, True)
    code, _, err = apportion(*common, "--data", "t.csv", "--data-dir", tmp_path)
    assert (code, "data_dir" in err) == (2, True)
    code, _, err = apportion(*common, "--dataset", "imagenet")
    assert (code, "wisconsin, mnist, cifar10" in err) == (2, True)


def test_missing_files_leave_nothing_behind_and_name_the_ways_out(
    apportion: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["apportion.data.mnist"], "_SOURCES", (tmp_path.as_uri(),))
    common = ("train", "--epsilon", "1", "--delta", "1e-5", "--batches", "2", "--dataset", "mnist")
    code, _, err = apportion(*common, "--data-dir", tmp_path / "empty", "--out", tmp_path / "run")
    assert code == 2
    for way_out in ("--data-dir", "APPORTION_DATA", "network", "train-images-idx3-ubyte.gz"):
        assert way_out in err
    assert not list(tmp_path.iterdir())
