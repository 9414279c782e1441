"""The weights file, read without PyTorch: the safetensors layout, checked in full before a number is used.

Eight bytes: the length of the header. The header: JSON, tensor name → dtype, shape and position. Then the numbers, without
gaps. A pickle, or anything else that could execute, does not have this form.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from apportion import canonical
from apportion.errors import BundleError, InvalidArgument

MOST_HEADER_BYTES = 1 << 24
MOST_TENSORS = 1_000_000
_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "U16": 2, "U32": 4, "U64": 8, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(file: BinaryIO, size: int) -> tuple[dict[str, Tensor], int]:
    """The tensors by name, and where their bytes begin; refuses gaps, overlaps, unknown types and foreign metadata."""
    first = file.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    if not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
        raise BundleError("model.safetensors is not a safetensors file: its header does not fit")
    try:
        header = canonical.loads(file.read(length))
    except InvalidArgument as error:
        raise BundleError(f"model.safetensors is not a safetensors file: {error}") from None
    if not isinstance(header, dict) or len(header) > MOST_TENSORS:
        raise BundleError("model.safetensors is not a safetensors file: its header is not a JSON object")
    if header.pop("__metadata__", {"format": "pt"}) != {"format": "pt"}:
        raise BundleError("model.safetensors carries metadata; a published weights file holds tensors only")
    tensors = {name: _tensor(name, entry) for name, entry in header.items()}
    position = 0
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != position:
            raise BundleError("model.safetensors has gaps or overlaps between its tensors")
        position = tensor.end
    if 8 + length + position != size:
        raise BundleError("model.safetensors holds bytes that belong to no tensor")
    return tensors, 8 + length


def load(file: BinaryIO, size: int) -> Mapping[str, NDArray[Any]]:
    """All tensors as arrays, for models small enough to predict with here."""
    tensors, _ = read_header(file, size)
    arrays = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        if tensor.dtype not in _NUMPY:
            raise BundleError(f"{name} has dtype {tensor.dtype}, which cannot be computed with here; use PyTorch")
        data = file.read(tensor.end - tensor.start)  # in the order of the file, which has no gaps
        arrays[name] = np.frombuffer(data, _NUMPY[tensor.dtype]).reshape(tensor.shape)
    return arrays


def _tensor(name: str, entry: Any) -> Tensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BundleError(f"model.safetensors: {name!r:.60} must have dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BYTES:
        raise BundleError(f"model.safetensors: {name!r:.60} has unknown dtype {dtype!r:.40}")
    if not _counts(shape) or len(shape) > 16 or not _counts(offsets) or len(offsets) != 2:
        raise BundleError(f"model.safetensors: {name!r:.60} has a malformed shape or position")
    start, end = offsets
    if end - start != _BYTES[dtype] * math.prod(shape):
        raise BundleError(f"model.safetensors: {name!r:.60} does not have the size that its shape says")
    return Tensor(dtype=dtype, shape=tuple(shape), start=start, end=end)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 60 for item in value)
