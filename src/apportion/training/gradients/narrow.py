"""Small linear layers side by side: where each by itself is over in no time, calls are what takes time.

Hence NumPy, whose calls are quicker, in the processor's memory; and float64 throughout, which for so few numbers costs next
to nothing.

The numbers of an example must not depend on its place, nor on how many others there are: when one is taken away, a ReLU at
its edge makes whole gradients of what happens to the last bits of the others. Products by BLAS may do that, because columns
that are left over are computed by other instructions than the rest. So there are `MULTIPLE` columns or a multiple of it, the
last ones zero; and `places_are_alike` tries whether all columns are then treated alike on this machine. What a loss of the
user's own does is PyTorch's: it is given all columns (`loss_gradient`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.training.gradients.links import Floats
from apportion.training.gradients.outer import VectorProducts
from apportion.training.gradients.pieces import Part, Piece

MULTIPLE = 16
# Multiplications up to which NumPy does not share out a product among threads that nobody has asked for.
ALONE = 2**18
# Examples that are summed one after the other where float64 is the model's own precision. Where that is float32, a block is
# as large as can be: what is rounded off in float64 is nothing there.
BLOCK = 192
# Entries of the product of all layers' gradients with all layers' inputs: what is called small, whatever the batch.
LARGEST_PRODUCT = 2**12
# Sums of so many squares are good to a few units of rounding without further ado.
WIDEST = 2**7


def are_narrow(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether linear layers whose weights have these shapes are small, each and all of them together, and none is empty."""
    inwards, outwards = sum(shape[1] for shape in shapes), sum(shape[0] for shape in shapes)
    largest = max((shape[1] + 1) * shape[0] for shape in shapes)
    sizes_fit = min(map(min, shapes)) > 0 and max(map(max, shapes)) <= WIDEST
    return sizes_fit and largest * BLOCK <= ALONE and (inwards + 1) * outwards <= LARGEST_PRODUCT


@lru_cache(maxsize=64)
def places_are_alike(shape: tuple[int, ...], bias: bool) -> bool:
    """Whether products with a weight of this shape treat all examples alike, to the last bit, in both passes."""
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(shape[0], shape[1] + bias))
    for matrix in (weight, weight[:, : shape[1]].T):
        column = generator.normal(size=(matrix.shape[1], 1))
        expected = np.matmul(matrix, np.repeat(column, MULTIPLE, axis=1))[:, :1]
        for count in (1, 2, 3, 5, 8, 13, 35, 61):
            found = product(matrix, np.repeat(column, count * MULTIPLE, axis=1))
            if not np.array_equal(found, np.broadcast_to(expected, found.shape)):
                return False
    return True


def product(left: Floats, right: Floats, out: Floats | None = None) -> Floats:
    """(n, m), (m, columns) → (n, columns)."""
    columns, at_once = right.shape[1], ALONE // left.size // MULTIPLE * MULTIPLE
    if columns <= at_once:
        return np.matmul(left, right, out=out)
    found = np.empty((len(left), columns)) if out is None else out
    for i in range(0, columns, at_once):
        np.matmul(left, right[:, i : i + at_once], out=found[:, i : i + at_once])
    return found


def side_by_side(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces, with those that are small linear layers on vectors made into one, if there are several."""
    found = [piece for piece in pieces if isinstance(piece, VectorProducts) and _may_be_joined(piece)]
    alike = len({tensor.dtype for piece in found for tensor in (piece.inputs, piece.gradient)}) == 1
    if len(found) < 2 or not alike or not are_narrow([_shape(piece) for piece in found]):
        return list(pieces)
    return [*(piece for piece in pieces if piece not in found), _joined(found[::-1])]  # from first to last


def one_by_one(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces, with layers that were joined by themselves again."""
    return [one for piece in pieces for one in (piece.apart() if isinstance(piece, NarrowProducts) else [piece])]


def _may_be_joined(piece: VectorProducts) -> bool:
    return piece.weight is not None and max(_shape(piece)) <= WIDEST


def _shape(piece: VectorProducts) -> tuple[int, int]:
    return piece.gradient.shape[1], piece.inputs.shape[1]


def _joined(layers: Sequence[VectorProducts]) -> "NarrowProducts":
    order = order_of(tuple([_shape(layer) for layer in layers]), tuple([layer.bias is not None for layer in layers]))
    inputs, parts = layers[0].inputs, tuple([part for layer in layers for part in layer.parts])
    examples = inputs.shape[0]
    rows = order.empty(examples)
    for place, layer in zip(order.layers, layers, strict=True):
        for span, tensor in ((place.inputs, layer.inputs), (place.gradients, layer.gradient)):
            rows[span, :examples] = tensor.cpu().numpy().T
    return NarrowProducts(order, parts, rows, examples, inputs.dtype, inputs.device)


class NarrowProducts:
    """Example i of layer l: weight gradient_l[i] ⊗ inputs_l[i], bias gradient_l[i].

    The layers' inputs, each with a one for the bias, and the layers' gradients are the `rows` of one matrix, whose columns
    are the examples, and zeros after the last. `precision` is the model's own.
    """

    dtype = torch.float64

    def __init__(
        self,
        order: "Order",
        parts: tuple[Part, ...],
        rows: Floats,
        examples: int,
        precision: torch.dtype,
        device: torch.device,
    ) -> None:
        self.parts, self.device = parts, device
        self._order, self._rows, self._examples = order, rows, examples
        self._block = BLOCK if precision == torch.float64 else order.largest_block
        rows[:, examples:] = 0

    @property
    def names(self) -> list[str]:
        return [part.name for part in self.parts]

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        rows, layers = self._rows, self._order.layers
        squares, totals = np.empty((self._order.tallest, rows.shape[1])), np.empty((2 * len(layers), rows.shape[1]))
        with np.errstate(all="ignore"):  # what overflows is not trusted
            for total, span in zip(totals, self._order.spans, strict=True):
                some = rows[span]
                np.add.reduce(np.multiply(some, some, out=squares[: len(some)]), axis=0, out=total)
            totals += self._order.lost
            totals[: len(layers)] *= totals[len(layers) :]
            norms = np.sqrt(np.add.reduce(totals[: len(layers), : self._examples], axis=0))
        return [torch.from_numpy(norms).to(self.device)], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        sums = self.end_to_end(factors, dropped).to(self.device).split_with_sizes(self._order.sizes)
        return {part: total.view(part.shape) for part, total in zip(self.parts, sums, strict=True)}

    def end_to_end(self, factors: Tensor, dropped: Tensor | None) -> Tensor:
        """The sums of all parts, one after the other, in float64 and in the processor's memory."""
        rows, order, weights = self._rows[:, : self._examples], self._order, factors.cpu().numpy()
        if dropped is not None:
            rows = rows.copy()
            rows[:, dropped.cpu().numpy()] = 0  # by replacement, because 0 × NaN is NaN
        totals = []
        for start in range(0, max(1, self._examples), self._block):
            some = slice(start, start + self._block)
            scaled = rows[order.of_inputs :, some] * weights[some]
            totals.append(total := np.empty(len(order.places)))
            for layer, sums in zip(order.layers, order.matrices(total), strict=True):
                np.matmul(scaled[layer.among_gradients], rows[layer.with_one, some].T, out=sums)
        return torch.from_numpy(_pairwise(totals)[order.places])

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return {part: built for layer in self.apart() for part, built in layer.instantiate(rows).items()}

    def apart(self) -> list[VectorProducts]:
        parts, found, rows = iter(self.parts), [], self._rows[:, : self._examples]
        for layer in self._order.layers:
            both = [torch.from_numpy(rows[span].T.copy()).to(self.device) for span in (layer.inputs, layer.gradients)]
            found.append(VectorProducts(next(parts), next(parts) if layer.bias else None, *both))
        return found


def _pairwise(totals: list[Floats]) -> Floats:
    """Their sum, by pairs of pairs: one after the other, roundings would add up."""
    while len(totals) > 1:
        pairs = [first + second for first, second in zip(totals[::2], totals[1::2], strict=False)]
        totals = pairs + totals[2 * len(pairs) :]
    return totals[0]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the matrix of all layers one of them stands."""

    inputs: slice
    with_one: slice  # the same, and a row of ones for the bias
    gradients: slice
    among_gradients: slice  # the same, without the inputs' rows before them
    entries: slice  # of its sums, in a vector of all
    shape: tuple[int, int]  # of its sums: those of the bias are the last column
    bias: bool


@dataclass(frozen=True, slots=True)
class Order:
    """Where in the matrix of so many layers what stands, the layers one after the other.

    `lost` (2 · layers, 1) is what may be missing from the squares of inputs and gradients because squares vanished, which
    next to an enormous other factor is what the gradient's norm consists of. The layers' sums, or their weights, each with
    the bias as its last column, are one vector: `places` has for every entry of the parameters, one after the other, where
    it is there, `sources` the reverse; `sizes` are the parameters'.
    """

    layers: list[Place]
    spans: list[slice]  # of the rows of all inputs, each with its ones, and then of all gradients
    ones: NDArray[np.int64]
    of_inputs: int  # rows of these and the inputs
    height: int
    tallest: int  # of the spans
    largest_block: int  # of examples, for no product to be shared out
    lost: Floats
    places: NDArray[np.int64]
    sources: NDArray[np.int64]
    sizes: list[int]

    def empty(self, examples: int) -> Floats:
        """A matrix that has nothing but the ones. It is PyTorch's memory, so that whoever counts that (`memory`) sees it."""
        columns = -(-max(1, examples) // MULTIPLE) * MULTIPLE
        rows: Floats = torch.empty(self.height, columns, dtype=torch.float64).numpy()
        rows[self.ones] = 1
        return rows

    def matrices(self, vector: Floats) -> list[Floats]:
        return [vector[layer.entries].reshape(layer.shape) for layer in self.layers]


@lru_cache(maxsize=64)
def order_of(shapes: tuple[tuple[int, ...], ...], biases: tuple[bool, ...]) -> Order:
    """Of layers whose weights have these shapes (outwards, inwards), with a bias to be trained or none."""
    wide = [shape[1] + bias for shape, bias in zip(shapes, biases, strict=True)]
    heights = [*wide, *(shape[0] for shape in shapes)]
    ends, of_inputs = np.cumsum(heights).tolist(), sum(wide)
    spans = [slice(end - height, end) for end, height in zip(ends, heights, strict=True)]
    layers, places = [], []
    entry = 0
    for i, ((outwards, inwards), width) in enumerate(zip(shapes, wide, strict=True)):
        with_one, gradients, size = spans[i], spans[len(shapes) + i], outwards * width
        layers.append(
            Place(
                inputs=slice(with_one.start, with_one.start + inwards),
                with_one=with_one,
                gradients=gradients,
                among_gradients=slice(gradients.start - of_inputs, gradients.stop - of_inputs),
                entries=slice(entry, entry + size),
                shape=(outwards, width),
                bias=biases[i],
            )
        )
        entries = np.arange(entry, entry + size).reshape(outwards, width)
        places += [block.reshape(-1) for block in (entries[:, :inwards], entries[:, inwards:])[: 1 + biases[i]]]
        entry += size
    in_order = np.concatenate(places)
    summed = [float(shape[1]) for shape in shapes] + [float(shape[0]) for shape in shapes]
    return Order(
        layers=layers,
        spans=spans,
        ones=np.array([layer.with_one.stop - 1 for layer in layers if layer.bias], np.int64),
        of_inputs=of_inputs,
        height=ends[-1],
        tallest=max(heights),
        largest_block=ALONE // max(layer.shape[0] * layer.shape[1] for layer in layers) // MULTIPLE * MULTIPLE,
        lost=np.array(summed)[:, None] * np.finfo(np.float64).tiny,
        places=in_order,
        sources=np.argsort(in_order),
        sizes=[len(block) for block in places],
    )
