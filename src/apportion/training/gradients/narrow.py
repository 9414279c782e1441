"""Small linear layers side by side: where each by itself is over in no time, calls are what takes time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from apportion.training.gradients.outer import VectorProducts
from apportion.training.gradients.pieces import SMALL, Part, Piece

# Entries of the product of all layers' gradients with all layers' inputs, of which only some are used.
LARGEST_PRODUCT = 2**12


def side_by_side(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces, with those that are small linear layers on vectors made into one, if there are several."""
    narrow = [piece for piece in pieces if isinstance(piece, VectorProducts) and _is_small(piece)]
    inwards, outwards = (sum(widths) for widths in _widths(narrow))
    if len(narrow) < 2 or (inwards + 1) * outwards > LARGEST_PRODUCT:
        return list(pieces)
    return [*(piece for piece in pieces if piece not in narrow), NarrowProducts(narrow[::-1])]  # from first to last


def _is_small(piece: VectorProducts) -> bool:
    return piece.weight is not None and piece.inputs.numel() + piece.gradient.numel() <= SMALL


def _widths(layers: Sequence[VectorProducts]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple([layer.inputs.shape[1] for layer in layers]), tuple([layer.gradient.shape[1] for layer in layers])


class NarrowProducts:
    """Example i of layer l: weight gradient_l[i] ⊗ inputs_l[i], bias gradient_l[i].

    The layers' inputs, a one for the biases, and the layers' gradients are the rows of one matrix, in float64, which has
    the examples as columns: products are quicker so. Squared norms are sums over rows of its squares; the sums of all
    layers are blocks of one product of its two halves.
    """

    def __init__(self, layers: Sequence[VectorProducts]) -> None:
        self.layers = layers
        inputs, gradients = [layer.inputs for layer in layers], [layer.gradient for layer in layers]
        columns = torch.cat([*inputs, inputs[0].new_ones((inputs[0].shape[0], 1)), *gradients], dim=1)
        self._rows = columns.T.to(torch.float64, memory_format=torch.contiguous_format)
        biases = tuple([layer.bias is not None for layer in layers])
        self._order = _order(*_widths(layers), biases, columns.device)

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple([part for layer in self.layers for part in layer.parts])

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].dtype

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        squares = self._order.layers @ (self._rows * self._rows)
        of_inputs, of_gradients = squares.chunk(2)
        return [(of_inputs * of_gradients).sum(0).sqrt_()], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        """Consecutive views of one tensor, which can be dealt with as a whole."""
        rows = self._rows if dropped is None else self._rows.index_fill(1, dropped, 0)
        inputs, gradients = rows[: self._order.gradients], rows[self._order.gradients :]
        product = (gradients * factors) @ inputs.T  # (outwards of all, inwards of all and one)
        sums = product.view(-1).index_select(0, self._order.places).split_with_sizes(self._order.sizes)
        return {part: total.view(part.shape) for part, total in zip(self.parts, sums, strict=True)}

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return {part: built for layer in self.layers for part, built in layer.instantiate(rows).items()}


@dataclass(frozen=True, slots=True)
class _Order:
    """Where what stands. Rows before `gradients` are inputs and the one.

    `layers` (twice the layers, rows) adds up squares: of each layer's inputs, and 1 if it has a bias; then of each
    layer's gradients. Beyond that it adds what may be missing because squares vanished: next to an enormous other factor
    that is what the gradient's norm consists of. `places` are those of the sums in the product, parameter by parameter,
    each with its number of entries in `sizes`.
    """

    gradients: int
    layers: Tensor
    places: Tensor
    sizes: list[int]


@lru_cache(maxsize=64)
def _order(
    inwards: tuple[int, ...], outwards: tuple[int, ...], biases: tuple[bool, ...], device: torch.device
) -> _Order:
    one = sum(inwards)
    layers = torch.zeros(2 * len(inwards), one + 1 + sum(outwards), dtype=torch.float64)
    places, sizes = [], []
    column = row = 0  # of the product
    for number, (width, height, bias) in enumerate(zip(inwards, outwards, biases, strict=True)):
        layers[number, column : column + width] = 1
        layers[number, one] = bias + width * torch.finfo(torch.float64).tiny
        layers[len(inwards) + number, one + 1 + row : one + 1 + row + height] = 1
        layers[len(inwards) + number, one] = height * torch.finfo(torch.float64).tiny
        rows = torch.arange(row, row + height)[:, None] * (one + 1)
        blocks = [rows + torch.arange(column, column + width), *([rows + one] if bias else [])]
        places += [block.flatten() for block in blocks]
        sizes += [block.numel() for block in blocks]
        column, row = column + width, row + height
    return _Order(one + 1, layers.to(device), torch.cat(places).to(device), sizes)
