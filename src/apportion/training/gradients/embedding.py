"""Embedding tables."""

import torch

from apportion.training.gradients.lookup import RowLookup
from apportion.training.gradients.pieces import Piece, as_sequence
from apportion.training.gradients.registry import RuleDoesNotApply, Use, rule_for, wide


@rule_for(torch.nn.Embedding)
def embedding(use: Use) -> list[Piece]:
    layer = use.layer
    assert isinstance(layer, torch.nn.Embedding)
    if layer.max_norm is not None or layer.scale_grad_by_freq:
        # Both look at other examples: one renormalises rows in the forward pass, the other counts over the batch.
        raise RuleDoesNotApply("max_norm and scale_grad_by_freq of an Embedding mix examples")
    ids = use.inputs.reshape(use.examples, -1).long()
    gradient = as_sequence(wide(use.gradient), use.examples, use.gradient.shape[-1])
    if layer.padding_idx is not None:
        gradient = gradient.masked_fill((ids == layer.padding_idx)[..., None], 0)
    return [RowLookup(use.parts["weight"], ids, gradient)]
