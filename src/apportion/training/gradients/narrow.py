"""Small linear layers side by side: where each by itself is over in no time, calls are what takes time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from apportion.training.gradients.outer import VectorProducts
from apportion.training.gradients.pieces import SMALL, Part, Piece, row_norms, zeroed

# Entries of the product of all layers' gradients with all layers' inputs, of which only some are used.
LARGEST_PRODUCT = 2**12


def side_by_side(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces, with those that are small linear layers on vectors made into one, if there are several."""
    narrow = [piece for piece in pieces if isinstance(piece, VectorProducts) and _is_small(piece)]
    inwards, outwards = (sum(widths) for widths in _widths(narrow))
    alike = len({tensor.dtype for piece in narrow for tensor in (piece.inputs, piece.gradient)}) == 1
    if len(narrow) < 2 or not alike or (inwards + 1) * outwards > LARGEST_PRODUCT:
        return list(pieces)
    return [*(piece for piece in pieces if piece not in narrow), NarrowProducts(narrow[::-1])]  # from first to last


def _is_small(piece: VectorProducts) -> bool:
    return piece.weight is not None and piece.inputs.numel() + piece.gradient.numel() <= SMALL


def _widths(layers: Sequence[VectorProducts]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple([layer.inputs.shape[1] for layer in layers]), tuple([layer.gradient.shape[1] for layer in layers])


class NarrowProducts:
    """Example i of layer l: weight gradient_l[i] ⊗ inputs_l[i], bias gradient_l[i].

    For the sums, the layers' inputs, and a one for the biases, are the columns of one matrix, their gradients those of
    another, both in float64: the sums of all layers are blocks of one product.
    """

    def __init__(self, layers: Sequence[VectorProducts]) -> None:
        self.layers = layers
        biases = tuple([layer.bias is not None for layer in layers])
        self._order = _order(*_widths(layers), biases, self.dtype, layers[0].inputs.device)

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple([part for layer in self.layers for part in layer.parts])

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].dtype

    def _sides(self) -> tuple[list[Tensor], list[Tensor]]:
        return [layer.inputs for layer in self.layers], [layer.gradient for layer in self.layers]

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        inputs, gradients = self._sides()
        squares = torch.stack([row_norms(rows) for rows in (*inputs, *gradients)]).double().square_()
        of_inputs, of_gradients = squares.add_(self._order.added).chunk(2)
        return [of_inputs.mul_(of_gradients).sum(0).sqrt_()], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        """Consecutive views of one tensor, which can be dealt with as a whole."""
        inputs, gradients = self._sides()
        ones = inputs[0].new_ones((factors.shape[0], 1))
        scaled = zeroed(torch.cat(gradients, dim=1), dropped) * factors[:, None]  # float64, as the factors are
        product = scaled.T @ zeroed(torch.cat([*inputs, ones], dim=1), dropped).double()
        sums = product.view(-1).index_select(0, self._order.places).split_with_sizes(self._order.sizes)
        return {part: total.view(part.shape) for part, total in zip(self.parts, sums, strict=True)}

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return {part: built for layer in self.layers for part, built in layer.instantiate(rows).items()}


@dataclass(frozen=True, slots=True)
class _Order:
    """Where what stands.

    `added` (twice the layers, 1) belongs to the squared norms of the layers' inputs, and then of their gradients: 1 for a
    bias, and what may be missing because squares vanished, which next to an enormous other factor is what the gradient's
    norm consists of. `places` are those of the sums in the product, parameter by parameter, `sizes` their numbers.
    """

    added: Tensor
    places: Tensor
    sizes: list[int]


@lru_cache(maxsize=64)
def _order(
    inwards: tuple[int, ...],
    outwards: tuple[int, ...],
    biases: tuple[bool, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> _Order:
    one = sum(inwards)
    places, sizes = [], []
    column = row = 0  # of the product
    for width, height, bias in zip(inwards, outwards, biases, strict=True):
        rows = torch.arange(row, row + height)[:, None] * (one + 1)
        blocks = [rows + torch.arange(column, column + width), *([rows + one] if bias else [])]
        places += [block.flatten() for block in blocks]
        sizes += [block.numel() for block in blocks]
        column, row = column + width, row + height
    vanished = torch.tensor([*inwards, *outwards], dtype=torch.float64) * torch.finfo(dtype).tiny
    added = vanished + torch.tensor([*biases, *(False for _ in biases)], dtype=torch.float64)
    return _Order(added[:, None].to(device), torch.cat(places).to(device), sizes)
