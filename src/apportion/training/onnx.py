"""Export to ONNX, compared with the original before it is published.

The exporter writes the paths of source files, and whatever else it knows, into the file; all of that is taken out.
"""

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apportion.bundle.write import OnnxExport
from apportion.errors import IncompatibleModel, RunError

_BATCHES = (1, 2, 7)
_TOLERANCE = 1e-4  # relative to the largest output: other kernels sum in another order


def export(model: torch.nn.Module, input_shape: Sequence[int]) -> OnnxExport:
    """The model, in evaluation mode, as ONNX with a free batch size; `input_shape` is that of one record."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  the exporter needs it
    except ImportError as error:
        raise RunError(f"exporting needs onnx: pip install 'apportion[onnx]' ({error})") from error
    content, opset = _without_metadata(onnx, _exported(model, input_shape))
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    difference, output_shape = _compare(session, model, input_shape)
    dtype = str(_dtype(model)).removeprefix("torch.")
    signature = {
        "input": {"name": "input", "dtype": dtype, "shape": ["batch", *map(int, input_shape)]},
        "output": {"name": "output", "dtype": dtype, "shape": ["batch", *output_shape]},
        "opset": opset,
        "largest_difference": difference,
    }
    return OnnxExport(content=content, signature=signature)


def _exported(model: torch.nn.Module, input_shape: Sequence[int]) -> bytes:
    example = torch.randn((2, *input_shape), dtype=_dtype(model))
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations are not the user's
        path = Path(directory) / "model.onnx"
        try:
            torch.onnx.export(
                model, (example,), path,
                input_names=["input"], output_names=["output"], external_data=False, verbose=False,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )  # fmt: skip
        except Exception as error:
            raise IncompatibleModel([f"PyTorch cannot export this model to ONNX: {error}"]) from error
        return path.read_bytes()


def _without_metadata(onnx: Any, content: bytes) -> tuple[bytes, int]:
    loaded = onnx.load_model_from_string(content)
    for part in _parts(loaded):
        for field in ("metadata_props", "doc_string"):
            if field in part.DESCRIPTOR.fields_by_name:
                part.ClearField(field)
    opset = next(entry.version for entry in loaded.opset_import if entry.domain in ("", "ai.onnx"))
    return loaded.SerializeToString(deterministic=True), int(opset)


def _parts(message: Any) -> Iterator[Any]:
    """A message of the format and every message inside it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in value if field.is_repeated else (value,):
            yield from _parts(inner)


def _compare(session: Any, model: torch.nn.Module, input_shape: Sequence[int]) -> tuple[float, list[int]]:
    """The largest difference on random inputs of several batch sizes, and the shape of one output."""
    largest, shape = 0.0, []
    for batch in _BATCHES:
        inputs = torch.randn((batch, *input_shape), dtype=_dtype(model))
        with torch.no_grad():
            expected = _array(model(inputs))
        found = np.asarray(session.run(["output"], {"input": inputs.numpy()})[0], np.float64)
        if found.shape != expected.shape:
            raise IncompatibleModel([f"the exported model gives shape {found.shape}, the original {expected.shape}"])
        difference = float(np.max(np.abs(found - expected), initial=0.0))
        if not difference <= _TOLERANCE * max(1.0, float(np.max(np.abs(expected), initial=0.0))):
            raise IncompatibleModel([f"the exported model's outputs differ from the original's by {difference:g}"])
        largest, shape = max(largest, difference), [int(size) for size in expected.shape[1:]]
    return largest, shape


def _array(outputs: Any) -> NDArray[np.float64]:
    if not isinstance(outputs, torch.Tensor):
        raise IncompatibleModel(["only models with one tensor as output can be exported"])
    return np.asarray(outputs.numpy(), np.float64)


def _dtype(model: torch.nn.Module) -> torch.dtype:
    return next(model.parameters(), torch.empty(0)).dtype
