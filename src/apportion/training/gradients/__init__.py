"""From a batch to a clipped sum of per-example gradients.

`recording` makes a model's layers note what they saw in one forward pass; the rules (one file per family of layers)
turn that into `pieces`, per-example gradients that need not be built; `summation` clips and adds them; `proving` lets
no rule near a model before it has reproduced autograd's own gradients there; `per_example` is the slow way that is
always right, `compiled` what PyTorch's compiler makes of it for small models, if asked.
"""

from collections.abc import Callable, Iterable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.clipping import FLAT, Clipping
from apportion.training.clipping import ClippedSum
from apportion.training.gradients import per_example
from apportion.training.gradients.by_unit import UnitSums
from apportion.training.gradients.per_example import per_example_gradients
from apportion.training.gradients.prepared import Preparation, Prepared

__all__ = [
    "Prepared",
    "clipped_sum",
    "clipped_sum_of_units",
    "compile_gradients",
    "per_example_gradients",
    "prepare",
    "trainable",
]

# So that a loop over `clipped_sum` is as quick as one over `prepare`; an entry goes when its model goes.
_PREPARATIONS: WeakKeyDictionary[torch.nn.Module, Preparation] = WeakKeyDictionary()
# Models for which compiling was asked, and for how many rows.
_COMPILED_ROWS: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()


def trainable(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that training may change, each once (tied weights under their first name)."""
    preparation = _PREPARATIONS.get(model)
    if preparation is not None and preparation.fits(model):  # quicker than to walk through the model
        return dict(preparation.parameters)
    return per_example.trainable(model)


def prepare(model: torch.nn.Module, loss: Callable[..., Tensor], compiled_rows: int | None = None) -> Prepared:
    """For many batches of one model: `prepare(model, loss)` once, then `prepared(inputs, targets, clip)` for each.

    With `compiled_rows` gradients are compiled, for so many examples at a time: see `compiled`.
    """
    return Prepared(model, loss, compiled_rows)


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
    return preparation_of(model).clipped_sum(model, loss, inputs, targets, clip, clipping)


def clipped_sum_of_units(
    model: torch.nn.Module,
    loss: Callable[..., Tensor],
    parts: Iterable[tuple[Tensor, Tensor]],
    sizes: Sequence[int] | NDArray[np.int64],
    *,
    clip: float,
    clipping: Clipping = FLAT,
    averaged: bool = True,
) -> ClippedSum:
    """As `clipped_sum`, but what is clipped is the mean (or the sum) of the gradients of all records of a unit.

    `parts` are inputs and targets of the records of one batch, in order, split anywhere; `sizes` says how many
    consecutive records are the first unit's, the second's, and so on.

    Guarantees: see `ClippedSum`, for units: a unit adds at most `clip`, whether it has no record or a thousand. A unit
    with a record whose gradient is NaN or infinite adds nothing.
    """
    preparation = preparation_of(model)
    units = UnitSums(preparation.parameters, sizes, clip=clip, clipping=clipping, averaged=averaged)
    for inputs, targets in parts:
        preparation.add_to_units(units, model, loss, inputs, targets)
    return units.result()


def compile_gradients(model: torch.nn.Module, rows: int | None) -> None:
    """From now on the model's gradients are computed by a compiled function, `rows` examples at a time; None: no more."""
    if _COMPILED_ROWS.get(model) == rows:
        return
    _PREPARATIONS.pop(model, None)
    if rows is None:
        del _COMPILED_ROWS[model]  # it is there, or `get` would have said None
    else:
        _COMPILED_ROWS[model] = rows


def preparation_of(model: torch.nn.Module) -> Preparation:
    """What is known about the model, made now if nothing is, or if the model has changed."""
    preparation = _PREPARATIONS.get(model)
    if preparation is None or not preparation.fits(model):
        preparation = _PREPARATIONS[model] = Preparation(model, _COMPILED_ROWS.get(model))
    return preparation
