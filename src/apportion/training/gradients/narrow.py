"""Small linear layers side by side: where each by itself is over in no time, calls are what takes time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.training.gradients.outer import VectorProducts
from apportion.training.gradients.pieces import SMALL, Part, Piece, zeroed

# Entries of the product of all layers' gradients with all layers' inputs, of which only some are used.
LARGEST_PRODUCT = 2**12
# Sums of so many squares are good to a few units of rounding without further ado.
WIDEST = 2**7


def side_by_side(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces, with those that are small linear layers on vectors made into one, if there are several."""
    narrow = [piece for piece in pieces if isinstance(piece, VectorProducts) and _is_small(piece)]
    inwards, outwards = (sum(widths) for widths in _widths(narrow))
    alike = len({tensor.dtype for piece in narrow for tensor in (piece.inputs, piece.gradient)}) == 1
    if len(narrow) < 2 or not alike or (inwards + 1) * outwards > LARGEST_PRODUCT:
        return list(pieces)
    return [*(piece for piece in pieces if piece not in narrow), NarrowProducts(narrow[::-1])]  # from first to last


def _is_small(piece: VectorProducts) -> bool:
    widest = max(piece.inputs.shape[1], piece.gradient.shape[1])
    return piece.weight is not None and widest <= WIDEST and piece.inputs.numel() + piece.gradient.numel() <= SMALL


def _widths(layers: Sequence[VectorProducts]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple([layer.inputs.shape[1] for layer in layers]), tuple([layer.gradient.shape[1] for layer in layers])


class NarrowProducts:
    """Example i of layer l: weight gradient_l[i] ⊗ inputs_l[i], bias gradient_l[i].

    The layers' inputs, a one for the biases, and the layers' gradients are the columns of one matrix. Its squares times
    zeros and ones are all squared norms; the sums of all layers are blocks of one product of its columns.
    """

    def __init__(self, layers: Sequence[VectorProducts]) -> None:
        self.layers = layers
        inputs, gradients = [layer.inputs for layer in layers], [layer.gradient for layer in layers]
        biases = tuple([layer.bias is not None for layer in layers])
        self._order = _order(*_widths(layers), biases, self.dtype)
        ones = inputs[0].new_ones((inputs[0].shape[0], 1))
        # Wherever they come from: it is for the calls that so few numbers take time, and NumPy's are quicker.
        self._columns = torch.cat([*inputs, ones, *gradients], dim=1).cpu()

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple([part for layer in self.layers for part in layer.parts])

    @property
    def names(self) -> list[str]:
        return [part.name for part in self.parts]

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].dtype

    @property
    def device(self) -> torch.device:
        return self.layers[0].inputs.device

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        squares = torch.mm(self._order.belongs, self._columns.square().t()).numpy()  # (twice the layers, examples)
        count = len(self.layers)
        with np.errstate(all="ignore"):  # what overflows is not trusted
            both = squares + self._order.added  # in float64
            norms = np.sqrt(np.einsum("li,li->i", both[:count], both[count:]))
        return [torch.from_numpy(norms).to(self.device)], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        sums = self.end_to_end(factors, dropped).to(self.device).split_with_sizes(self._order.sizes)
        return {part: total.view(part.shape) for part, total in zip(self.parts, sums, strict=True)}

    def end_to_end(self, factors: Tensor, dropped: Tensor | None) -> Tensor:
        """The sums of all parts, one after the other, in float64 and in the processor's memory."""
        columns = zeroed(self._columns, None if dropped is None else dropped.cpu()).double()
        first = self._order.of_inputs
        scaled = columns[:, first:] * factors.cpu()[:, None]
        product = torch.mm(scaled.t(), columns[:, :first]).numpy()
        return torch.from_numpy(product.reshape(-1)[self._order.places])

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return {part: built for layer in self.layers for part, built in layer.instantiate(rows).items()}


@dataclass(frozen=True, slots=True)
class _Order:
    """Where what stands.

    `belongs` (twice the layers, columns) is one where a column belongs to the squared norm of the inputs, or of the
    gradients, of a layer. `added` (twice the layers, 1) is what may be missing from them because squares vanished, which
    next to an enormous other factor is what the gradient's norm consists of. The first `of_inputs` columns are the layers'
    inputs and the one; `places` are those of the sums in the product, parameter by parameter, `sizes` their numbers.
    """

    belongs: Tensor
    added: NDArray[np.float64]
    of_inputs: int
    places: NDArray[np.int64]
    sizes: list[int]


@lru_cache(maxsize=64)
def _order(
    inwards: tuple[int, ...],
    outwards: tuple[int, ...],
    biases: tuple[bool, ...],
    dtype: torch.dtype,
) -> _Order:
    one = sum(inwards)
    belongs = torch.zeros(2 * len(biases), one + 1 + sum(outwards), dtype=dtype)
    belongs[: len(biases), one] = torch.tensor(biases, dtype=dtype)
    places, sizes = [], []
    column = row = 0  # of the product
    for layer, (width, height, bias) in enumerate(zip(inwards, outwards, biases, strict=True)):
        rows = torch.arange(row, row + height)[:, None] * (one + 1)
        blocks = [rows + torch.arange(column, column + width), *([rows + one] if bias else [])]
        places += [block.flatten() for block in blocks]
        sizes += [block.numel() for block in blocks]
        belongs[layer, column : column + width] = 1
        belongs[len(biases) + layer, one + 1 + row : one + 1 + row + height] = 1
        column, row = column + width, row + height
    vanished = np.array([*inwards, *outwards], np.float64)[:, None] * torch.finfo(dtype).tiny
    return _Order(belongs, vanished, one + 1, torch.cat(places).numpy(), sizes)
