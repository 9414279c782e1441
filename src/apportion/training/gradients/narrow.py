"""Small linear layers side by side: where each by itself is over in no time, calls are what takes time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from apportion.training.gradients.outer import VectorProducts
from apportion.training.gradients.pieces import SMALL, Part, Piece, zeroed

# Entries of the product of all layers' gradients with all layers' inputs, of which only some are used.
LARGEST_PRODUCT = 2**12


def side_by_side(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces, with those that are small linear layers on vectors made into one, if there are several."""
    narrow = [piece for piece in pieces if isinstance(piece, VectorProducts) and _is_small(piece)]
    inwards, outwards = (sum(t.shape[1] for t in side) for side in _sides(narrow))
    alike = len({tensor.dtype for side in _sides(narrow) for tensor in side}) == 1
    if len(narrow) < 2 or not alike or (inwards + 1) * outwards > LARGEST_PRODUCT:
        return list(pieces)
    return [*(piece for piece in pieces if piece not in narrow), NarrowProducts(narrow)]


def _sides(layers: Sequence[VectorProducts]) -> tuple[list[Tensor], list[Tensor]]:
    return [layer.inputs for layer in layers], [layer.gradient for layer in layers]


def _is_small(piece: VectorProducts) -> bool:
    return piece.weight is not None and piece.inputs.numel() + piece.gradient.numel() <= SMALL


class NarrowProducts:
    """Example i of layer l: weight gradient_l[i] ⊗ inputs_l[i], bias gradient_l[i].

    For the sums, the layers' inputs, and a one for the biases, are the columns of one matrix, their gradients those of
    another, both in float64: the sums of all layers are blocks of one product.
    """

    def __init__(self, layers: Sequence[VectorProducts]) -> None:
        self.layers = layers

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple([part for layer in self.layers for part in layer.parts])

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].dtype

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        return [norm for layer in self.layers for norm in layer.norms()[0]], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        inputs, gradients = _sides(self.layers)
        ones = inputs[0].new_ones((len(factors), 1))
        scaled = zeroed(torch.cat(gradients, dim=1), dropped) * factors[:, None]  # float64, as the factors are
        product = scaled.T @ zeroed(torch.cat([*inputs, ones], dim=1), dropped).double()
        sums: dict[Part, Tensor] = {}  # the product is (outwards of all, inwards of all and one)
        row = column = 0
        for layer in self.layers:
            inwards, outwards = layer.inputs.shape[1], layer.gradient.shape[1]
            rows = product[row : row + outwards]
            row, column = row + outwards, column + inwards
            if layer.weight is not None:
                sums[layer.weight] = rows[:, column - inwards : column]
            if layer.bias is not None:
                sums[layer.bias] = rows[:, -1]
        return sums

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return {part: built for layer in self.layers for part, built in layer.instantiate(rows).items()}
