"""Linear layers, on vectors and on sequences."""

import torch

from apportion.training.gradients.outer import OuterProducts
from apportion.training.gradients.pieces import Piece, as_sequence
from apportion.training.gradients.registry import Use, rule_for, wide


@rule_for(torch.nn.Linear)
def linear(use: Use) -> list[Piece]:
    inputs = as_sequence(wide(use.inputs), use.examples, use.inputs.shape[-1])
    gradient = as_sequence(wide(use.gradient), use.examples, use.gradient.shape[-1])
    return [OuterProducts(use.parts.get("weight"), use.parts.get("bias"), inputs, gradient)]
