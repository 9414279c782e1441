"""Linear layers, on vectors and on sequences."""

import torch

from apportion.training.gradients.outer import VectorProducts, outer_products
from apportion.training.gradients.pieces import Piece, as_sequence
from apportion.training.gradients.registry import Use, rule_for, wide


@rule_for(torch.nn.Linear)
def linear(use: Use) -> list[Piece]:
    inputs, gradient = wide(use.inputs), wide(use.gradient)
    weight, bias = use.parts.get("weight"), use.parts.get("bias")
    if inputs.dim() == 2 and len(inputs) == use.examples:
        return [VectorProducts(weight, bias, inputs, gradient)]
    inputs = as_sequence(inputs, use.examples, inputs.shape[-1])
    return [outer_products(weight, bias, inputs, as_sequence(gradient, use.examples, gradient.shape[-1]))]
