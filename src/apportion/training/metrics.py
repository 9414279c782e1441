"""Internal metrics: computed from private data, written to the run directory and published nowhere."""

import math
from typing import Any

import torch
from torch import Tensor

from apportion.training.clipping import ClippedSum
from apportion.training.counting import evaluating
from apportion.training.losses import PerExampleLoss
from apportion.training.records import Records

AT_ONCE = 4096  # records that are scored together, if memory allows


class Norms:
    """Gradient norms, counted in cells of 1 %: an epoch of any length takes the same memory."""

    _CELLS, _SMALLEST, _WIDTH = 6000, 1e-13, math.log(1.01)

    def __init__(self) -> None:
        self._counts = torch.zeros(self._CELLS, dtype=torch.int64)
        self.records = self.above = 0

    def add(self, norms: Tensor, threshold: float) -> None:
        self.records += len(norms)
        self.above += int((norms > threshold).sum())
        finite = norms[torch.isfinite(norms)].double().cpu()
        cells = (finite.clamp(min=self._SMALLEST).log() - math.log(self._SMALLEST)) / self._WIDTH
        self._counts += torch.bincount(cells.long().clamp(0, self._CELLS - 1), minlength=self._CELLS)

    def median(self) -> float | None:
        """Of the finite ones, to half a per cent."""
        total = int(self._counts.sum())
        if not total:
            return None
        cell = int(torch.searchsorted(self._counts.cumsum(0), (total + 1) // 2))
        return 0.0 if cell == 0 else self._SMALLEST * math.exp((cell + 0.5) * self._WIDTH)


class EpochMetrics:
    """Gradient norms of one epoch, for choosing the clipping norm next time; with per-layer clipping, of every layer."""

    def __init__(self) -> None:
        self._norms = Norms()
        self._layers: dict[str, Norms] = {}

    def add(self, clipped: ClippedSum, clip: float) -> None:
        self._norms.add(clipped.norms.detach(), clip)
        for name, norms in (clipped.layer_norms or {}).items():
            self._layers.setdefault(name, Norms()).add(norms.detach(), clip)

    def take(self) -> dict[str, Any]:
        """The summary of what was added since the last call."""
        norms, layers = self._norms, {name: some.median() for name, some in self._layers.items()}
        self._norms, self._layers = Norms(), {}
        median = norms.median()
        if median is None:
            return {}
        if layers:
            return {"gradient_norm_median": median, "layer_norm_medians": layers}
        return {"gradient_norm_median": median, "clipped_share": norms.above / norms.records}


def score(model: torch.nn.Module, loss: PerExampleLoss, data: Records, at_once: int = AT_ONCE) -> dict[str, float]:
    """Mean loss and, for class labels, accuracy, in evaluation mode; the model's modes are restored."""
    if not len(data):
        return {}
    total, right = 0.0, 0
    with evaluating(model), torch.no_grad():
        for inputs, targets in data.in_order(min(at_once, AT_ONCE)):
            outputs = model(inputs)
            total += float(loss(outputs, targets).double().sum())
            if _is_classification(outputs, targets):
                right += int((outputs.argmax(1) == targets).sum())
    result = {"loss": total / len(data)}
    return {**result, "accuracy": right / len(data)} if _is_classification(outputs, targets) else result


def _is_classification(outputs: Tensor, targets: Tensor) -> bool:
    return not targets.is_floating_point() and targets.dim() == 1 and outputs.dim() == 2
