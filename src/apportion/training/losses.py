"""A loss that gives one value per example, whatever form the user's loss came in."""

import copy
import inspect
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from apportion.errors import DataError, IncompatibleModel

PerExampleLoss = Callable[[Tensor, Tensor], Tensor]


def per_example(loss: Callable[..., Tensor]) -> PerExampleLoss:
    """`loss(outputs, targets)` → tensor of shape (examples,).

    Accepts a function that takes `reduction="none"` (everything in `torch.nn.functional`), a loss module of `torch.nn`
    (its reduction is overruled), or a callable that returns one value per example by itself. Losses that keep further
    dimensions (one value per output, say) are averaged over those, example by example.
    """
    if isinstance(loss, _Checked):
        return loss
    if loss is torch.nn.functional.cross_entropy:
        return CrossEntropy(partial(loss, reduction="none"))
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        compute: Callable[..., Tensor] = copy.copy(loss)
        vars(compute)["reduction"] = "none"
        return _Checked(compute)
    return _Checked(partial(loss, reduction="none") if _takes_reduction(loss) else loss)


class _Checked:
    """A loss whose result is what it should be, or else an error says what is wrong."""

    def __init__(self, compute: Callable[..., Tensor]) -> None:
        self._compute = compute

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            values = self._compute(outputs, targets)
        except IndexError:  # torch's own message shows the label
            raise DataError(
                "the loss refuses a record's label: it is out of the range of the model's outputs"
            ) from None
        if values.dim() == 0 or values.shape[0] != targets.shape[0]:
            raise IncompatibleModel(
                [
                    f"the loss must give one value per example, but for {len(targets)} examples it gave a tensor of "
                    f"shape {tuple(values.shape)}; return the unreduced losses, or accept reduction='none'"
                ]
            )
        return values.flatten(1).mean(1) if values.dim() > 1 else values


class CrossEntropy(_Checked):
    """PyTorch's own, with nothing set: what its gradient is, need not be asked."""


def _takes_reduction(loss: Callable[..., Tensor]) -> bool:
    try:
        return "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        return False
