"""Convolutions in one and two dimensions: a linear layer on the sequence of patches.

Patches are gathered channels-last, because then each is a few long runs of memory instead of many short ones. Where
images are large and have many channels, not even that: with the gradient laid out in rows as wide as the padded image,
all patches' entries at one place of the kernel are one slice of the image, and each place is one product.
"""

import torch
from torch import Tensor
from torch.nn import functional

from apportion.training.gradients.outer import BuiltProducts, outer_products, worth_building
from apportion.training.gradients.pieces import Instantiated, Part, Piece, as_sequence
from apportion.training.gradients.registry import RuleDoesNotApply, Use, rule_for, wide

# Patches are gathered for so many numbers at a time, which stay in cache.
PATCH_ENTRIES = 2**19

Convolution = torch.nn.Conv1d | torch.nn.Conv2d


@rule_for(torch.nn.Conv1d, torch.nn.Conv2d)
def convolution(use: Use) -> list[Piece]:
    layer = use.layer
    assert isinstance(layer, Convolution)
    if use.inputs.dim() != len(layer.kernel_size) + 2:
        raise RuleDoesNotApply("a convolution without a batch dimension")
    gradient = wide(use.gradient).flatten(2).transpose(1, 2)  # (N, positions, out channels)
    if "weight" not in use.parts:
        return [Instantiated({use.parts["bias"]: as_sequence(gradient, use.examples, layer.out_channels).sum(1)})]
    if _by_slices_is_quicker(layer, use.gradient):
        return [Instantiated(_by_slices(use, layer, gradient))]
    patches = _patches(layer, wide(use.inputs))  # (N, *positions, *kernel, channels), a view
    if layer.groups > 1:
        return _grouped(use, layer, patches, gradient)
    area = patches.shape[-1] * layer.weight[0, 0].numel()
    if worth_building(gradient.shape[1] * (len(gradient) // use.examples), area, layer.out_channels):
        return [_built_in_portions(use, layer, patches, gradient)]
    return [
        outer_products(
            use.parts["weight"],
            use.parts.get("bias"),
            as_sequence(patches, use.examples, area),
            as_sequence(gradient, use.examples, layer.out_channels),
            unpack=lambda built: _channels_first(layer, built),
        )
    ]


def _built_in_portions(use: Use, layer: Convolution, patches: Tensor, gradient: Tensor) -> Piece:
    """Patches of a few images at a time: all together they are many times the image, and fresh memory is slow."""
    N, positions, out_channels = gradient.shape
    area = use.parts["weight"].shape[1:].numel()
    built = gradient.new_empty(N, out_channels, area)
    at_once = max(1, PATCH_ENTRIES // (positions * area))
    scratch = gradient.new_empty(min(at_once, N), *patches.shape[1:])
    for start in range(0, N, at_once):
        rows = slice(start, min(start + at_once, N))
        gathered = scratch[: rows.stop - start].copy_(patches[rows]).view(-1, positions, area)
        torch.bmm(gradient[rows].transpose(1, 2), gathered, out=built[rows])
    if use.examples < N:
        built = built.reshape(use.examples, -1, out_channels, area).sum(1)
    bias = use.parts.get("bias")
    bias_rows = None if bias is None else as_sequence(gradient, use.examples, out_channels).sum(1)
    return BuiltProducts(use.parts["weight"], bias, built, bias_rows, lambda rows: _channels_first(layer, rows))


def channels_last(images: Tensor) -> Tensor:
    """The same images with the channels innermost in memory, which convolutions and pooling much prefer.

    With one channel both orders look alike, and PyTorch goes by the strides.
    """
    if images.dim() != 4:
        return images
    images = images.contiguous(memory_format=torch.channels_last)
    height, width = images.shape[2:]
    return images.as_strided(images.shape, (height * width, 1, width, 1)) if images.shape[1] == 1 else images


def _patches(layer: Convolution, inputs: Tensor) -> Tensor:
    """(N, channels, *space) → (N, *positions, *kernel, channels), a strided view of the padded input."""
    padded = _pad(layer, inputs).movedim(1, -1).contiguous()  # (N, *space, channels)
    batch, *space, channels = padded.shape
    strides = padded.stride()[1:-1]
    positions = [
        (size - dilation * (kernel - 1) - 1) // step + 1
        for size, kernel, step, dilation in zip(space, layer.kernel_size, layer.stride, layer.dilation, strict=True)
    ]
    return padded.as_strided(
        (batch, *positions, *layer.kernel_size, channels),
        (
            padded.stride(0),
            *(stride * step for stride, step in zip(strides, layer.stride, strict=True)),
            *(stride * dilation for stride, dilation in zip(strides, layer.dilation, strict=True)),
            1,
        ),
    )


def _pad(layer: Convolution, inputs: Tensor) -> Tensor:
    """What the layer itself pads, in its padding mode; "same" and "valid" are already resolved in the layer."""
    if not any(layer._reversed_padding_repeated_twice):
        return inputs
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)


def _by_slices_is_quicker(layer: Convolution, gradient: Tensor) -> bool:
    """As measured: steps of one, many channels, many positions; and built gradients no larger than the activations."""
    positions = gradient.shape[2:].numel()
    plain = layer.groups == 1 and set(layer.stride) == {1}
    kernel = layer.weight[0, 0].numel()
    return plain and layer.in_channels >= 16 and positions >= 256 and layer.out_channels * kernel <= 2 * positions


def _by_slices(use: Use, layer: Convolution, gradient: Tensor) -> dict[Part, Tensor]:
    """`gradient` (N, positions, out channels). One product for each place of the kernel; one dimension is two with
    height 1."""
    images, out = _pad(layer, wide(use.inputs)), use.gradient.shape[2:]
    images = images if images.dim() == 4 else images.unsqueeze(2)
    (rows, columns), (down, right) = (
        (layer.weight.shape[2:], layer.dilation)
        if len(out) == 2
        else (
            (1, layer.kernel_size[0]),
            (1, layer.dilation[0]),
        )
    )
    count, channels, _, width = images.shape
    # One more row, so that the last slices end inside.
    flat = functional.pad(images.movedim(1, -1), (0, 0, 0, 0, 0, 1)).reshape(count, -1, channels)
    wide_rows = functional.pad(gradient.reshape(count, -1, out[-1], gradient.shape[2]), (0, 0, 0, width - out[-1]))
    by_place = wide_rows.flatten(1, 2).transpose(1, 2)  # (N, out channels, rows of the gradient × width)
    length = by_place.shape[2]
    built = flat.new_empty(count, gradient.shape[2], channels, rows, columns)
    for i in range(rows):
        for j in range(columns):
            start = i * down * width + j * right
            built[..., i, j] = torch.bmm(by_place, flat[:, start : start + length])
    weight = use.parts["weight"]
    sums = {weight: built.reshape(use.examples, -1, *weight.shape).sum(1)}
    if "bias" in use.parts:
        sums[use.parts["bias"]] = as_sequence(gradient, use.examples, gradient.shape[2]).sum(1)
    return sums


def _channels_first(layer: Convolution, columns: Tensor) -> Tensor:
    """(…, kernel × channels) → (…, channels, *kernel), the weight's own order."""
    return columns.reshape(*columns.shape[:-1], *layer.kernel_size, -1).movedim(-1, -1 - len(layer.kernel_size))


def _grouped(use: Use, layer: Convolution, patches: Tensor, gradient: Tensor) -> list[Piece]:
    """Each group of channels by itself; the gradients are built, being smaller than the activations by the groups."""
    examples, groups = use.examples, layer.groups
    patches = patches.reshape(*patches.shape[:-1], groups, -1).movedim(
        -2, 1
    )  # (N, groups, *positions, *kernel, channels)
    weight = use.parts["weight"]
    area = weight.shape[1:].numel()
    # (examples, groups, T, …): an example's slices become one sequence
    patches = patches.reshape(examples, -1, groups, gradient.shape[1], area).transpose(1, 2).flatten(2, 3)
    by_group = gradient.reshape(examples, -1, groups, layer.out_channels // groups).transpose(1, 2)
    product = torch.matmul(by_group.transpose(-1, -2), patches)  # (examples, groups, out, kernel × channels)
    built: dict[Part, Tensor] = {weight: _channels_first(layer, product).reshape(examples, *weight.shape)}
    if "bias" in use.parts:
        built[use.parts["bias"]] = as_sequence(gradient, examples, layer.out_channels).sum(1)
    return [Instantiated(built)]
