"""Small linear layers side by side: where each by itself is over in no time, calls are what takes time."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

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
    """Example i of layer l: weight gradient_l[i] ⊗ inputs_l[i], bias gradient_l[i], all in float64.

    The layers' inputs, and a one for the biases, are the columns of one matrix, their gradients those of another. The sums
    of all layers are then blocks of one product, and the squared norms one product with a matrix that says which column
    belongs to which layer. An example that is not finite in one layer is so in all, and taken out altogether.
    """

    def __init__(self, layers: Sequence[VectorProducts]) -> None:
        self.layers = layers
        inputs, gradients = _sides(layers)
        self._inwards = tuple([tensor.shape[1] for tensor in inputs])
        self._outwards = tuple([tensor.shape[1] for tensor in gradients])
        ones = inputs[0].new_ones((inputs[0].shape[0], 1))
        self.inputs = torch.cat([*inputs, ones], dim=1).double()
        self.gradient = torch.cat(gradients, dim=1).double()

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple([part for layer in self.layers for part in layer.parts])

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].dtype

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        """‖gradient ⊗ inputs‖² + ‖gradient‖² = ‖gradient‖² (‖inputs‖² + 1)."""
        biases = tuple([layer.bias is not None for layer in self.layers])
        of_inputs = self.inputs.square() @ _membership(self._inwards, biases)
        of_gradient = self.gradient.square() @ _membership(self._outwards, None)
        return [of_inputs.mul_(of_gradient).sum(1).sqrt_()], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        scaled = zeroed(self.gradient, dropped) * factors[:, None]
        product = scaled.T @ zeroed(self.inputs, dropped)  # (outwards of all, inwards of all and one)
        sums: dict[Part, Tensor] = {}
        row = column = 0
        for layer, inwards, outwards in zip(self.layers, self._inwards, self._outwards, strict=True):
            rows = product[row : row + outwards]
            row, column = row + outwards, column + inwards
            if layer.weight is not None:
                sums[layer.weight] = rows[:, column - inwards : column]
            if layer.bias is not None:
                sums[layer.bias] = rows[:, -1]
        return sums

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return {part: built for layer in self.layers for part, built in layer.instantiate(rows).items()}


@lru_cache(maxsize=64)
def _membership(widths: tuple[int, ...], last: tuple[bool, ...] | None) -> Tensor:
    """(columns, layers): 1 where the column is the layer's; with `last`, one more row, for the column of ones."""
    rows = sum(widths) + (last is not None)
    member = torch.zeros(rows, len(widths), dtype=torch.float64)
    for layer, (width, end) in enumerate(zip(widths, accumulate(widths), strict=True)):
        member[end - width : end, layer] = 1
    if last is not None:
        member[-1] = torch.tensor(last, dtype=torch.float64)
    return member
