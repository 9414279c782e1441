"""The gradient of every example's loss at the model's output.

Of any loss by autograd; of cross-entropy without it, because it is known: what softmax makes of the outputs, less one at the
label.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.training.gradients.links import Floats
from apportion.training.gradients.registry import RuleDoesNotApply
from apportion.training.losses import CrossEntropy, PerExampleLoss


def loss_gradient(loss: PerExampleLoss, output: Tensor, targets: Tensor) -> Tensor:
    """`output` (examples, …) is a leaf."""
    labels = _labels(loss, targets, *output.shape) if output.dim() == 2 and output.device.type == "cpu" else None
    if labels is not None:
        with torch.no_grad():
            known = torch.softmax(output, 1)
        known.numpy()[np.arange(len(labels)), labels] -= 1
        return known
    version = output._version
    with torch.enable_grad():
        losses = loss(output.requires_grad_(), targets)
        gradient = torch.autograd.grad(losses, output, torch.ones_like(losses))[0]
    if output._version != version:
        raise RuleDoesNotApply("the loss modified the model's output in place")
    return gradient


def loss_gradient_of_columns(loss: PerExampleLoss, output: Floats, targets: Tensor, dtype: torch.dtype) -> Floats:
    """The same for (outputs, columns), the first of which are the examples; anything may come out for the others.

    A loss that is not known is given outputs of the model's own type.
    """
    examples = targets.shape[0]
    labels = _labels(loss, targets, examples, len(output))
    if labels is not None:
        known: Floats = output - output.max(axis=0)
        np.exp(known, out=known)
        known /= known.sum(axis=0)
        known[labels, np.arange(examples)] -= 1
        return known
    found = np.zeros_like(output)
    rows = torch.from_numpy(np.ascontiguousarray(output[:, :examples].T)).to(dtype)
    found[:, :examples] = loss_gradient(loss, rows, targets).numpy().T
    return found


def _labels(loss: PerExampleLoss, targets: Tensor, examples: int, classes: int) -> NDArray[np.int64] | None:
    """The targets, if this is cross-entropy and they are labels of so many classes, one per example.

    If not, the loss knows what they are (probabilities, labels to be ignored), or says what is wrong with them.
    """
    if not isinstance(loss, CrossEntropy) or targets.dtype != torch.int64 or targets.shape != (examples,):
        return None
    labels: NDArray[np.int64] = targets.numpy()
    return labels if examples and labels.min() >= 0 and labels.max() < classes else None
