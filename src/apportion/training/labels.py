"""Class labels that the loss cannot take are refused before anything is spent, and without being shown."""

import torch
from torch import Tensor

from apportion.errors import DataError
from apportion.training.compatibility import isolated, random_examples
from apportion.training.losses import PerExampleLoss

_MOST_VALUES = 10_000  # different ones that are tried; of more, as many of the smallest and of the largest


def check_labels(name: str, model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor) -> None:
    """Try the loss on every different label with a random output of the model.

    Only whole numbers are labels; `inputs` are looked at for their shape and type alone. The loss is called on the
    processor, where a label out of range is an error that can be caught; on a graphics card it would end the process.
    """
    if targets.is_floating_point() or targets.is_complex() or not len(targets):
        return
    values = torch.unique(targets).cpu()
    if len(values) > _MOST_VALUES:
        values = torch.cat([values[: _MOST_VALUES // 2], values[-_MOST_VALUES // 2 :]])
    with isolated(model), torch.no_grad():
        output = model(random_examples(model, inputs, targets)[0])[:1].cpu()
    if not _takes(loss, output, torch.tensor(0), targets):
        return  # a loss with parts on another device: what cannot be tried here cannot be told from a bad label
    refused = [value for value in values if not _takes(loss, output, value, targets)]
    if refused:
        bad = torch.isin(targets, torch.stack(refused).to(targets)).reshape(len(targets), -1).any(1)
        classes = f"0 to {output.shape[1] - 1}" if output.dim() > 1 else "what the loss expects"
        raise DataError(
            f"{name}: {int(bad.sum())} of {len(targets)} records hold a label that the loss refuses; the model's output has "
            f"shape {tuple(output.shape[1:])} per example, so labels must be {classes}. Nothing was spent; number the "
            "classes from 0, or give the model an output for each"
        )


def _takes(loss: PerExampleLoss, output: Tensor, value: Tensor, targets: Tensor) -> bool:
    label = value.to(targets.dtype).expand(1, *targets.shape[1:])
    try:
        with torch.no_grad():
            loss(output, label)
    except (IndexError, RuntimeError, ValueError, DataError):
        return False
    return True
