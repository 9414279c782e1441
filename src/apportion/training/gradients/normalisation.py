"""Layers that normalise within an example, and BatchNorm pinned to eval, which is a fixed map.

All have a small scale and shift, so their gradients are built: scale Σ gradient × normalised input, shift Σ gradient.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from apportion.training.gradients.pieces import Instantiated, Part, Piece
from apportion.training.gradients.registry import RuleDoesNotApply, Use, rule_for, wide


@rule_for(torch.nn.LayerNorm)
def layer_norm(use: Use) -> list[Piece]:
    layer = use.layer
    assert isinstance(layer, torch.nn.LayerNorm)
    return _scale_and_shift(
        use, functional.layer_norm(wide(use.inputs), layer.normalized_shape, eps=layer.eps), layer.normalized_shape
    )


@rule_for(torch.nn.RMSNorm)
def rms_norm(use: Use) -> list[Piece]:
    layer = use.layer
    assert isinstance(layer, torch.nn.RMSNorm)
    shape = list(layer.normalized_shape)
    return _scale_and_shift(use, functional.rms_norm(wide(use.inputs), shape, eps=layer.eps), shape)


@rule_for(torch.nn.GroupNorm)
def group_norm(use: Use) -> list[Piece]:
    layer = use.layer
    assert isinstance(layer, torch.nn.GroupNorm)
    return _per_channel(use, functional.group_norm(wide(use.inputs), layer.num_groups, eps=layer.eps))


@rule_for(torch.nn.InstanceNorm1d, torch.nn.InstanceNorm2d, torch.nn.InstanceNorm3d)
def instance_norm(use: Use) -> list[Piece]:
    layer = use.layer
    assert isinstance(layer, torch.nn.modules.instancenorm._InstanceNorm)
    if use.inputs.dim() < 3 or len(use.inputs) % use.examples:
        raise RuleDoesNotApply("InstanceNorm without a batch dimension")
    if layer.track_running_stats:
        if layer.training:
            raise RuleDoesNotApply("running statistics of InstanceNorm mix examples")
        return _per_channel(use, _with_running_statistics(layer, use.inputs))
    return _per_channel(use, functional.instance_norm(wide(use.inputs), eps=layer.eps))


@rule_for(torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
def batch_norm(use: Use) -> list[Piece]:
    layer = use.layer
    assert isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
    if layer.training or layer.running_mean is None:
        raise RuleDoesNotApply("BatchNorm with batch statistics mixes examples")
    return _per_channel(use, _with_running_statistics(layer, use.inputs))


def _with_running_statistics(layer: torch.nn.modules.batchnorm._NormBase, inputs: Tensor) -> Tensor:
    return functional.batch_norm(wide(inputs), layer.running_mean, layer.running_var, eps=layer.eps)


def _per_channel(use: Use, normalised: Tensor) -> list[Piece]:
    """(N, channels, *space): channels last, so that scale and shift have the trailing shape."""
    return _scale_and_shift(use, normalised.movedim(1, -1), normalised.shape[1:2], use.gradient.movedim(1, -1))


def _scale_and_shift(use: Use, normalised: Tensor, shape: Sequence[int], gradient: Tensor | None = None) -> list[Piece]:
    gradient = wide(use.gradient if gradient is None else gradient).reshape(use.examples, -1, *shape)
    built: dict[Part, Tensor] = {}
    if "weight" in use.parts:
        built[use.parts["weight"]] = (gradient * normalised.reshape(gradient.shape)).sum(1)
    if "bias" in use.parts:
        built[use.parts["bias"]] = gradient.sum(1)
    return [Instantiated(built)]
