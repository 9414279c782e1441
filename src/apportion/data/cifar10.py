"""CIFAR-10: 50,000 and 10,000 colour photographs of 32 × 32 pixels in ten classes (A. Krizhevsky, 2009).

Source: https://www.cs.toronto.edu/~kriz/cifar.html, the binary version: per image one byte for the class, then 1,024
bytes each of red, green and blue, row by row.
"""

import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apportion.data.dataset import Dataset, NamedDataset
from apportion.data.public_files import PublicFile, data_directory, find, obtain
from apportion.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CHANNELS, SIDE = 3, 32
PIXELS = CHANNELS * SIDE * SIDE
FEATURES = tuple(f"pixel_{index}" for index in range(PIXELS))
RANGE = (0.0, 255.0)
FOLDERS = ("cifar10", "", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin")

_TRAIN, _TEST = tuple(f"data_batch_{number}.bin" for number in range(1, 6)), ("test_batch.bin",)
_ARCHIVE = PublicFile(
    name="cifar-10-binary.tar.gz",  # md5 c32a1d4ab5d03f1284b67883e8d87530, as its page says
    sources=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)


def cifar10(directory: Path | str | None = None) -> tuple[Dataset, Dataset]:
    """(train, test): 3,072 values in [−1, 1] per image, channel by channel, row by row."""
    root = data_directory(None if directory is None else Path(directory))
    files = _unpacked(root) or _from_archive(obtain(_ARCHIVE, FOLDERS, root))
    return _dataset(files, _TRAIN), _dataset(files, _TEST)


def _unpacked(root: Path) -> dict[str, bytes] | None:
    """The six files if they lie there unpacked."""
    paths = {name: find([name], FOLDERS, root) for name in (*_TRAIN, *_TEST)}
    found = {name: path.read_bytes() for name, path in paths.items() if path is not None}
    return found if len(found) == len(paths) else None


def _from_archive(path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    files[member.name.rpartition("/")[2]] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: not a readable archive ({error}); delete it to have it downloaded") from error
    missing = [name for name in (*_TRAIN, *_TEST) if name not in files]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}; expected the binary version of CIFAR-10")
    return files


def _dataset(files: Mapping[str, bytes], names: tuple[str, ...]) -> Dataset:
    records = np.concatenate([_records(files[name], name) for name in names])
    return Dataset(
        inputs=records[:, 1:].astype(np.float32) / np.float32(127.5) - np.float32(1),
        targets=records[:, 0].astype(np.int64),
        features=FEATURES,
        classes=CLASSES,
    )


def _records(content: bytes, name: str) -> NDArray[np.uint8]:
    """One row per image: its class, then its pixels."""
    if len(content) % (1 + PIXELS):
        raise DataError(f"{name}: its length is no multiple of {1 + PIXELS} bytes; is it cut off?")
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    if len(records) and records[:, 0].max() >= len(CLASSES):
        raise DataError(f"{name}: holds labels that are none of the ten classes")
    return records


CIFAR10 = NamedDataset(
    source="CIFAR-10",
    target="object",
    classes=CLASSES,
    ranges=lambda: dict.fromkeys(FEATURES, RANGE),
    load=cifar10,
)
