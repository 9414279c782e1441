"""Per-example gradients by `torch.func`: right for every model, the oracle of all faster rules and their last fallback."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from apportion.training.clipping import PerExampleGradients
from apportion.training.losses import PerExampleLoss


def trainable(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that training may change, each once (tied weights under their first name)."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def per_example_gradients(
    model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor
) -> PerExampleGradients:
    """One backward pass per example, vectorised. Each example is a batch of one, so nothing can mix examples."""
    parameters = {name: parameter.detach() for name, parameter in trainable(model).items()}
    if len(inputs) == 0:
        return PerExampleGradients(gradients={name: p.new_zeros((0, *p.shape)) for name, p in parameters.items()})

    def loss_of_one(values: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(model, values, (example.unsqueeze(0),))
        return loss(outputs, target.unsqueeze(0)).squeeze(0)

    vectorised: Callable[..., Any] = vmap(grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    return PerExampleGradients(gradients=vectorised(parameters, inputs, targets))
