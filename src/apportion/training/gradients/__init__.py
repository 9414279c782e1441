"""From a batch to a clipped sum of per-example gradients."""

from collections.abc import Callable

import torch
from torch import Tensor

from apportion import _checks
from apportion.training.clipping import ClippedSum, clip_and_sum
from apportion.training.gradients.per_example import per_example_gradients, trainable
from apportion.training.losses import per_example

__all__ = ["clipped_sum", "per_example_gradients", "trainable"]


def clipped_sum(
    model: torch.nn.Module, loss: Callable[..., Tensor], inputs: Tensor, targets: Tensor, *, clip: float
) -> ClippedSum:
    """The sum over examples of their gradients, each scaled down to L2 norm at most `clip`.

    Guarantees: see `ClippedSum`. An example whose gradient is NaN or infinite adds nothing.
    """
    clip = _checks.positive("clip", clip)
    return clip_and_sum(per_example_gradients(model, per_example(loss), inputs, targets), clip)
