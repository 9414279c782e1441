"""The gradient of every example's loss at the model's output.

Of any loss by autograd; of cross-entropy without it, because it is known: what softmax makes of the outputs, less one at the
label.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.training.gradients.links import Floats
from apportion.training.gradients.registry import RuleDoesNotApply
from apportion.training.losses import CrossEntropy, PerExampleLoss

IGNORED = -100  # the label that `cross_entropy` ignores unless told otherwise


def loss_gradient(loss: PerExampleLoss, output: Tensor, targets: Tensor) -> Tensor:
    """`output` (examples, …) is a leaf."""
    labels = _labels(loss, targets, *output.shape) if output.dim() == 2 and output.device.type == "cpu" else None
    if labels is not None:
        with torch.no_grad():
            known = torch.softmax(output, 1)
        _less_label(known.numpy().T, labels)
        return known
    version = output._version
    with torch.enable_grad():
        losses = loss(output.requires_grad_(), targets)
        gradient = torch.autograd.grad(losses, output, torch.ones_like(losses))[0]
    if output._version != version:
        raise RuleDoesNotApply("the loss modified the model's output in place")
    return gradient


def loss_gradient_of_columns(
    loss: PerExampleLoss, output: Floats, targets: Tensor, dtype: torch.dtype, *, out: Floats
) -> None:
    """The same for (outputs, columns), the first of which are the examples; anything may come out for the others.

    A loss that is not known is given outputs of the model's own type, and those of all columns: where examples are left over
    that do not fill a vector of the processor, PyTorch computes them by other instructions.
    """
    examples = targets.shape[0]
    labels = _labels(loss, targets, examples, len(output))
    if labels is not None:
        np.subtract(output, np.maximum.reduce(output, axis=0), out=out)
        np.exp(out, out=out)
        out /= np.add.reduce(out, axis=0)
        _less_label(out, labels)
        return
    rows = torch.from_numpy(output.T.copy()).to(dtype)
    more = torch.cat([targets, targets[:1].expand(len(rows) - examples, *targets.shape[1:])])
    out[...] = loss_gradient(loss, rows, more).numpy().T
    out[:, examples:] = 0


def _labels(loss: PerExampleLoss, targets: Tensor, examples: int, classes: int) -> NDArray[np.int64] | None:
    """The targets, if this is cross-entropy and they are labels of so many classes, or to be ignored, one per example.

    If not, the loss knows what they are (probabilities), or refuses them. No single label changes what is done with the
    others: the two ways differ in the last bits.
    """
    if not isinstance(loss, CrossEntropy) or targets.dtype != torch.int64 or targets.shape != (examples,):
        return None
    labels: NDArray[np.int64] = targets.numpy()
    if not examples:
        return None
    if np.maximum.reduce(labels.view(np.uint64)) < classes:  # a negative one would be enormous
        return labels
    fine = (labels == IGNORED) | ((labels >= 0) & (labels < classes))
    return labels if bool(np.all(fine)) else None


def _less_label(columns: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> None:
    """From (outputs, examples and perhaps more) one at the label; nothing is left of an example whose label is ignored."""
    if np.minimum.reduce(labels) < 0:
        ignored = (labels < 0).nonzero()[0]
        columns[np.maximum(labels, 0), np.arange(len(labels))] -= 1
        columns[:, ignored] = 0
    else:
        columns[labels, np.arange(len(labels))] -= 1
