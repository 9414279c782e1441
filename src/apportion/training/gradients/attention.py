"""`torch.nn.MultiheadAttention`, whose projections are matrices inside one parameter and never called as layers.

The layer's forward pass is done here with the same parameters, examples outermost, and notes each projection as a
linear layer. The stock `TransformerEncoderLayer` then needs no rule of its own, as long as PyTorch's fused fast path,
which calls no layer at all, is off (`without_fast_path`).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from apportion.training.gradients.linear import linear
from apportion.training.gradients.recording import Forward, Recorder
from apportion.training.gradients.registry import RuleDoesNotApply


def is_plain(layer: torch.nn.Module) -> bool:
    """The usual configuration; others are left to the fallback."""
    return (
        type(layer) is torch.nn.MultiheadAttention
        and layer._qkv_same_embed_dim
        and layer.bias_k is None
        and not layer.add_zero_attn
    )


@contextmanager
def without_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def noting_attention(recorder: Recorder, site: str, layer: torch.nn.MultiheadAttention) -> Forward:
    """The layer's forward pass, noting its projections."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.dim() != 3 or (is_causal and attn_mask is None):
            raise RuleDoesNotApply("attention without a batch dimension or a mask")
        projected = _project(recorder, site, layer, query, key, value)
        q, k, v = (_heads(tensor, layer.num_heads) for tensor in projected)  # (N, heads, length, width)
        mask = _mask(attn_mask, key_padding_mask, q)
        dropout = layer.dropout if layer.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            weights = functional.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            mixed = weights @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        mixed = mixed.transpose(1, 2).flatten(2)
        output = functional.linear(mixed, layer.out_proj.weight, layer.out_proj.bias)
        blocks = {"weight": ("out_proj.weight", 0, None), "bias": ("out_proj.bias", 0, None)}
        output = recorder.note(site, linear, mixed, output, blocks, ":out")
        output = output if layer.batch_first else output.transpose(0, 1)
        return output, weights.mean(1) if weights is not None and average_attn_weights else weights

    return forward


def _project(
    recorder: Recorder, site: str, layer: torch.nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
) -> list[Tensor]:
    """Query, key and value, each (N, length, embedding); in one product if they are projections of the same tensor."""
    weight, bias, E = layer.in_proj_weight, layer.in_proj_bias, layer.embed_dim
    assert weight is not None
    if query is key and key is value:
        inputs = query if layer.batch_first else query.transpose(0, 1)
        blocks = {"weight": ("in_proj_weight", 0, None), "bias": ("in_proj_bias", 0, None)}
        output = recorder.note(site, linear, inputs, functional.linear(inputs, weight, bias), blocks, ":in")
        return list(output.chunk(3, dim=-1))
    projected = []
    for i, tensor in enumerate((query, key, value)):
        inputs = tensor if layer.batch_first else tensor.transpose(0, 1)
        rows = slice(i * E, (i + 1) * E)
        output = functional.linear(inputs, weight[rows], None if bias is None else bias[rows])
        blocks = {"weight": ("in_proj_weight", i * E, E), "bias": ("in_proj_bias", i * E, E)}
        projected.append(recorder.note(site, linear, inputs, output, blocks, f":in{i}"))
    return projected


def _heads(tensor: Tensor, heads: int) -> Tensor:
    return tensor.reshape(*tensor.shape[:-1], heads, -1).transpose(1, 2)


def _mask(attention: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
    """Both masks as one that is added to the scores; True in a mask of booleans means: do not attend."""
    total = None
    if attention is not None:
        total = _additive(attention, q)  # (T, S) or (N × heads, T, S)
        total = total.reshape(len(q), -1, *total.shape[1:]) if total.dim() == 3 else total
    if padding is not None:
        unseen = _additive(padding, q)[:, None, None, :]  # (N, S)
        total = unseen if total is None else total + unseen
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -math.inf)
    return mask.to(like.dtype)
