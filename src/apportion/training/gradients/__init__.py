"""From a batch to a clipped sum of per-example gradients.

`recording` makes a model's layers note what they saw in one forward pass; the rules (one file per family of layers)
turn that into `pieces`, per-example gradients that need not be built; `summation` clips and adds them; `proving` lets
no rule near a model before it has reproduced autograd's own gradients there; `per_example` is the slow way that is
always right.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from apportion.clipping import FLAT, Clipping
from apportion.training.clipping import ClippedSum
from apportion.training.gradients.per_example import per_example_gradients, trainable
from apportion.training.gradients.prepared import Preparation, Prepared

__all__ = ["Prepared", "clipped_sum", "per_example_gradients", "prepare", "trainable"]

# So that a loop over `clipped_sum` is as quick as one over `prepare`; an entry goes when its model goes.
_PREPARATIONS: WeakKeyDictionary[torch.nn.Module, Preparation] = WeakKeyDictionary()


def prepare(model: torch.nn.Module, loss: Callable[..., Tensor]) -> Prepared:
    """For many batches of one model: `prepare(model, loss)` once, then `prepared(inputs, targets, clip)` for each."""
    return Prepared(model, loss)


def clipped_sum(
    model: torch.nn.Module,
    loss: Callable[..., Tensor],
    inputs: Tensor,
    targets: Tensor,
    *,
    clip: float,
    clipping: Clipping = FLAT,
) -> ClippedSum:
    """The sum over examples of their gradients, each scaled down to L2 norm at most `clip`, in the way of `clipping`.

    Guarantees: see `ClippedSum`. An example whose gradient is NaN or infinite adds nothing; with per-layer clipping that
    is said of every layer by itself.
    """
    preparation = _PREPARATIONS.get(model)
    if preparation is None or not preparation.fits(model):
        preparation = Preparation(model)
        if not preparation.holds_model:
            _PREPARATIONS[model] = preparation
    return preparation.clipped_sum(model, loss, inputs, targets, clip, clipping)
