"""Internal metrics: computed from private data, written to the run directory and published nowhere."""

from typing import Any

import torch
from torch import Tensor

from apportion.training.clipping import ClippedSum
from apportion.training.losses import PerExampleLoss
from apportion.training.records import Records

_PIECE = 4096


class EpochMetrics:
    """Gradient norms of one epoch, for choosing the clipping norm next time; with per-layer clipping, of every layer."""

    def __init__(self) -> None:
        self._norms: list[Tensor] = []
        self._layers: dict[str, list[Tensor]] = {}
        self._clip = 0.0

    def add(self, clipped: ClippedSum, clip: float) -> None:
        self._norms.append(clipped.norms.detach().cpu())
        for name, norms in (clipped.layer_norms or {}).items():
            self._layers.setdefault(name, []).append(norms.detach().cpu())
        self._clip = clip

    def take(self) -> dict[str, Any]:
        """The summary of what was added since the last call."""
        norms = torch.cat(self._norms) if self._norms else torch.empty(0)
        layers = {name: _median(torch.cat(some)) for name, some in self._layers.items()}
        self._norms, self._layers = [], {}
        median = _median(norms)
        if median is None:
            return {}
        if layers:
            return {"gradient_norm_median": median, "layer_norm_medians": layers}
        return {"gradient_norm_median": median, "clipped_share": float((norms > self._clip).double().mean())}


def _median(norms: Tensor) -> float | None:
    finite = norms[torch.isfinite(norms)]
    return float(finite.median()) if len(finite) else None


def score(model: torch.nn.Module, loss: PerExampleLoss, data: Records) -> dict[str, float]:
    """Mean loss and, for class labels, accuracy, in evaluation mode; the model's modes are restored."""
    if not len(data):
        return {}
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    total, right = 0.0, 0
    try:
        with torch.no_grad():
            for inputs, targets in data.in_order(_PIECE):
                outputs = model(inputs)
                total += float(loss(outputs, targets).double().sum())
                if _is_classification(outputs, targets):
                    right += int((outputs.argmax(1) == targets).sum())
    finally:
        for module, training in modes:
            module.training = training
    result = {"loss": total / len(data)}
    return {**result, "accuracy": right / len(data)} if _is_classification(outputs, targets) else result


def _is_classification(outputs: Tensor, targets: Tensor) -> bool:
    return not targets.is_floating_point() and targets.dim() == 1 and outputs.dim() == 2
