"""What chains are made of: linear layers, each followed by an activation or none."""

from collections.abc import Callable
from dataclasses import dataclass
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.training.gradients.pieces import Part

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Activation:
    """`apply` overwrites its argument; `pull_back` takes the gradient at the output, and overwrites it, and the output.

    The same for arrays.
    """

    apply: Callable[[Tensor], object]
    pull_back: Callable[[Tensor, Tensor], object]
    apply_to_array: Callable[[Floats], object]
    pull_back_array: Callable[[Floats, Floats], object]


def _after_relu(gradient: Tensor, output: Tensor) -> None:
    torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def _after_tanh(gradient: Tensor, output: Tensor) -> None:
    torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient)


def _after_sigmoid(gradient: Tensor, output: Tensor) -> None:
    torch.ops.aten.sigmoid_backward.grad_input(gradient, output, grad_input=gradient)


def _relu(values: Floats) -> None:
    np.maximum(values, 0, out=values)


def _array_after_relu(gradient: Floats, output: Floats) -> None:
    gradient *= output > 0


def _tanh(values: Floats) -> None:
    np.tanh(values, out=values)


def _array_after_tanh(gradient: Floats, output: Floats) -> None:
    gradient *= 1 - output * output


def _sigmoid(values: Floats) -> None:
    np.negative(values, out=values)
    np.exp(values, out=values)
    values += 1
    np.reciprocal(values, out=values)


def _array_after_sigmoid(gradient: Floats, output: Floats) -> None:
    gradient *= output * (1 - output)


ACTIVATIONS: dict[type[torch.nn.Module], Activation] = {
    torch.nn.ReLU: Activation(torch.relu_, _after_relu, _relu, _array_after_relu),
    torch.nn.Tanh: Activation(torch.tanh_, _after_tanh, _tanh, _array_after_tanh),
    torch.nn.Sigmoid: Activation(torch.sigmoid_, _after_sigmoid, _sigmoid, _array_after_sigmoid),
}


@dataclass(frozen=True, slots=True)
class Link:
    """A linear layer, its parameters where they are trainable, and what its output goes through."""

    reference: "ref[torch.nn.Module]"
    weight: Part | None
    bias: Part | None
    activation: Activation | None

    @property
    def layer(self) -> torch.nn.Linear:
        layer = self.reference()
        assert isinstance(layer, torch.nn.Linear), "the model is gone"
        return layer
