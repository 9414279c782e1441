"""MNIST: 60,000 and 10,000 handwritten digits of 28 × 28 pixels (Y. LeCun, C. Cortes, C. J. C. Burges).

Pixels are divided by 255, so that the black background is 0. As a range of a table's feature that is −255…255, which
is what the published description of a model says.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apportion.data.dataset import Dataset, NamedDataset
from apportion.data.public_files import PublicFile, data_directory, find, obtain
from apportion.errors import DataError

CLASSES = tuple(map(str, range(10)))
SIDE = 28
FEATURES = tuple(f"pixel_{index}" for index in range(SIDE * SIDE))
RANGE = (-255.0, 255.0)
FOLDERS = ("mnist", "", "MNIST/raw")

_SOURCES = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
# Of the unpacked files: compressing the same bytes again may give another .gz.
_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_UNSIGNED_BYTES = 0x08


def mnist(directory: Path | str | None = None) -> tuple[Dataset, Dataset]:
    """(train, test): 784 pixels in [0, 1] per image, row by row, and the digits as classes."""
    root = data_directory(None if directory is None else Path(directory))
    return _part("train", root), _part("t10k", root)


def _part(part: str, root: Path) -> Dataset:
    images = _read(f"{part}-images-idx3-ubyte", root)
    labels = _read(f"{part}-labels-idx1-ubyte", root)
    if images.shape != (len(labels), SIDE, SIDE) or labels.ndim != 1:
        raise DataError(
            f"MNIST in {root}: the {part} files hold images of shape {images.shape} and labels of shape {labels.shape}; "
            f"expected (records, {SIDE}, {SIDE}) and (records,)"
        )
    if len(labels) and labels.max() >= len(CLASSES):
        raise DataError(f"MNIST in {root}: {part}-labels-idx1-ubyte holds labels that are no digit from 0 to 9")
    return Dataset(
        inputs=images.reshape(len(images), -1).astype(np.float32) / np.float32(255),
        targets=labels.astype(np.int64),
        features=FEATURES,
        classes=CLASSES,
    )


def _read(name: str, root: Path) -> NDArray[np.uint8]:
    path = find([name], FOLDERS, root)
    if path is None:
        sources = tuple(f"{source}/{name}.gz" for source in _SOURCES)
        file = PublicFile(name=f"{name}.gz", sources=sources, sha256=_SHA256[name], unpacked=gzip.decompress)
        path = obtain(file, FOLDERS, root)
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: not a readable .gz file ({error}); delete it to have it downloaded") from error
    return read_idx(content, path)


def read_idx(content: bytes, path: Path) -> NDArray[np.uint8]:
    """An array of unsigned bytes in the idx format: two zeros, type, rank, sizes (big-endian, 4 bytes), values."""
    rank = content[3] if len(content) >= 4 and content[:3] == bytes((0, 0, _UNSIGNED_BYTES)) else 0
    start = 4 + 4 * rank
    if not rank or len(content) < start:
        raise DataError(f"{path}: not an idx file of unsigned bytes")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    if len(content) - start != np.prod(shape, dtype=object):
        raise DataError(f"{path}: says shape {shape}, but holds {len(content) - start} values; is it cut off?")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


MNIST = NamedDataset(
    source="MNIST",
    target="digit",
    classes=CLASSES,
    ranges=lambda: dict.fromkeys(FEATURES, RANGE),
    load=mnist,
)
