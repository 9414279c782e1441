"""Which rule knows which layer."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from apportion.training.gradients.pieces import Part, Piece


class Use(NamedTuple):
    """One use of a layer in a forward pass, as its rule sees it.

    `inputs` and `gradient` (at the output) have the examples outermost, possibly several consecutive slices of each;
    `parts` holds the layer's trainable parameters under their names in the layer.
    """

    layer: torch.nn.Module
    parts: Mapping[str, Part]
    inputs: Tensor
    gradient: Tensor
    examples: int


Rule = Callable[[Use], list[Piece]]

RULES: dict[type[torch.nn.Module], Rule] = {}


class RuleDoesNotApply(Exception):
    """This layer, used in this way, is beyond its rule; a slower way must do."""


def rule_for(*layers: type[torch.nn.Module]) -> Callable[[Rule], Rule]:
    """Registers a rule for exactly these types: a subclass may compute something else, so it does not inherit."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(layers, rule))
        return rule

    return register


def wide(tensor: Tensor) -> Tensor:
    """At least float32: norms and sums are never taken in half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
