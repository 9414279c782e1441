"""Gradients that are outer products, or sums of them: every layer that multiplies by a weight matrix."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from apportion.training.gradients.blocks import summed_products, weighted_rows
from apportion.training.gradients.pieces import Part, in_chunks, row_norms, zeroed

# A built gradient may be this many times as large as the two tensors it is built from; beyond, the Gram matrices are
# cheaper, because fresh memory for large built gradients costs as much as computing them.
BUILD_UP_TO = 1.75

# Terms of one example, of lengths that add up to at most L, may cancel to a gradient of norm N. A norm taken from Gram
# matrices is then good to about eps·(L/N)², and a sum, whose partial sums may be as long as L, to about √T·eps·L/N. So
# examples with L/N beyond this, or beyond `ROUNDINGS` / T if that is less (but 2 will do for all), are worked on in float64;
# N being the norm over all layers, and L that of their lengths.
ALIGNED, ROUNDINGS = 8.0, 256.0
# In float64 this much may cancel: beyond, gradients are built.
CANCELLATION = {torch.float32: 1e5, torch.float64: 30.0}
# At most so many numbers of Gram matrices at once.
GRAM_ENTRIES = 2**23
# Products of rows up to this length are good to a few units of rounding.
LONGEST_ROW = 2**12


class VectorProducts:
    """A linear layer on vectors. Example i: weight gradient[i] ⊗ inputs[i], bias gradient[i].

    `inputs` (examples, inwards), `gradient` (examples, outwards); `weight` or `bias` is None where frozen or absent.
    """

    def __init__(self, weight: Part | None, bias: Part | None, inputs: Tensor, gradient: Tensor) -> None:
        self.weight, self.bias, self.inputs, self.gradient = weight, bias, inputs, gradient

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple([part for part in (self.weight, self.bias) if part is not None])

    @property
    def dtype(self) -> torch.dtype:
        return self.gradient.dtype

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        of_gradient = row_norms(self.gradient)
        of_bias = [] if self.bias is None else [of_gradient]
        if self.weight is None:
            return of_bias, None
        of_inputs = row_norms(self.inputs).add_(_lost_below(self.inputs))
        return [of_inputs.mul_(of_gradient + _lost_below(self.gradient)), *of_bias], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        """One matrix product, the smaller tensor scaled. If that is the inputs, the factors become one more column of
        them, and the bias one more of the product."""
        inputs, gradient = zeroed(self.inputs, dropped), zeroed(self.gradient, dropped)
        if self.weight is None:
            return {part: weighted_rows(factors, gradient) for part in self.parts}
        column = factors[:, None].to(gradient.dtype)  # otherwise the scaled tensor, and with it the product, is float64
        if gradient.shape[1] <= inputs.shape[1]:
            scaled = gradient * column
            sums = {self.weight: summed_products(scaled, inputs)}
            if self.bias is not None:
                sums[self.bias] = weighted_rows(factors, gradient)
            return sums
        scaled = inputs * column
        if self.bias is None:
            return {self.weight: summed_products(gradient, scaled)}
        product = summed_products(gradient, torch.cat([scaled, column], dim=1))
        return {self.weight: product[:, :-1], self.bias: product[:, -1]}

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        inputs, gradient = self.inputs[rows].double(), self.gradient[rows].double()
        of_weight = {} if self.weight is None else {self.weight: gradient[:, :, None] * inputs[:, None, :]}
        return of_weight if self.bias is None else {**of_weight, self.bias: gradient}


def _lost_below(rows: Tensor) -> float:
    """At most so much of an example's norm is missing because squares vanished. Next to an enormous other factor it is
    what the gradient's norm consists of."""
    return math.sqrt(rows.shape[1:].numel() * torch.finfo(rows.dtype).tiny)


Unpack = Callable[[Tensor], Tensor]


def as_it_is(built: Tensor) -> Tensor:
    return built


def worth_building(T: int, inwards: int, outwards: int) -> bool:
    return inwards * outwards <= BUILD_UP_TO * T * (inwards + outwards)


def outer_products(
    weight: Part | None, bias: Part | None, inputs: Tensor, gradient: Tensor, unpack: Unpack = as_it_is
) -> "BuiltProducts | GramProducts":
    """A matrix on sequences. Example i: weight Σ_t gradient[i,t] ⊗ inputs[i,t], bias Σ_t gradient[i,t].

    `inputs` (examples, T, inwards), `gradient` (examples, T, outwards); `weight` or `bias` is None where frozen or
    absent; `unpack` turns (…, outwards, inwards) into the weight's own order where that differs.
    """
    if weight is not None and not worth_building(inputs.shape[1], inputs.shape[2], gradient.shape[2]):
        return GramProducts(weight, bias, inputs, gradient, unpack)
    # (examples, outwards, inwards); inputs and gradient can be freed from here on
    built = None if weight is None else torch.bmm(gradient.transpose(1, 2), inputs)
    return BuiltProducts(weight, bias, built, None if bias is None else gradient.sum(1), unpack)


class BuiltProducts:
    """Sums of outer products that are small enough to build."""

    def __init__(
        self, weight: Part | None, bias: Part | None, built: Tensor | None, bias_rows: Tensor | None, unpack: Unpack
    ) -> None:
        self.weight, self.bias, self.built, self.bias_rows, self.unpack = weight, bias, built, bias_rows, unpack

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for part in (self.weight, self.bias) if part is not None)

    @property
    def dtype(self) -> torch.dtype:
        return self._rows()[0].dtype

    def _rows(self) -> list[Tensor]:
        return [rows for rows in (self.built, self.bias_rows) if rows is not None]

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        return [row_norms(rows) for rows in self._rows()], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        sums = [weighted_rows(factors, zeroed(rows, dropped)) for rows in self._rows()]
        return self._in_own_order(sums)

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return self._in_own_order([built[rows].double() for built in self._rows()])

    def _in_own_order(self, tensors: Sequence[Tensor]) -> dict[Part, Tensor]:
        unpacked = tensors if self.built is None else [self.unpack(tensors[0]), *tensors[1:]]
        return dict(zip(self.parts, unpacked, strict=True))


class GramProducts:
    """Sums of outer products too large to build: norms from Gram matrices, the clipped sum as one product."""

    def __init__(self, weight: Part, bias: Part | None, inputs: Tensor, gradient: Tensor, unpack: Unpack) -> None:
        self.weight, self.bias, self.inputs, self.gradient, self.unpack = weight, bias, inputs, gradient, unpack
        self.bias_rows = None if bias is None else gradient.sum(1)
        self._found: tuple[Tensor, Tensor] | None = None
        self._wide = torch.empty(0, dtype=torch.int64)  # examples that are worked on in float64

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @property
    def dtype(self) -> torch.dtype:
        return self.gradient.dtype

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        norms, lengths = self._found = self._found or _gram_norms(self.inputs, self.gradient)
        aligned = max(2.0, min(ALIGNED, ROUNDINGS / max(1, self.inputs.shape[1])))
        floor = lengths / (CANCELLATION[self.dtype] if self.dtype == torch.float64 else aligned)
        if len(self._wide):
            again, _ = _gram_norms(self.inputs[self._wide].double(), self.gradient[self._wide].double())
            norms = norms.double().index_copy(0, self._wide, again)
            floor = floor.index_copy(0, self._wide, lengths[self._wide] / CANCELLATION[self.dtype])
        of_bias = [] if self.bias_rows is None else [row_norms(self.bias_rows)]
        return [norms, *of_bias], floor

    def widen(self, rows: Tensor) -> None:
        self._wide = rows

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        inputs, gradient = zeroed(self.inputs, dropped), zeroed(self.gradient, dropped)
        total = _weighted_products(
            inputs, gradient, factors.index_fill(0, self._wide, 0) if len(self._wide) else factors
        )
        if len(self._wide):
            inputs, gradient = inputs[self._wide].double(), gradient[self._wide].double()
            total = total + _weighted_products(inputs, gradient, factors[self._wide])
        sums = {self.weight: self.unpack(total)}
        if self.bias is not None and self.bias_rows is not None:
            sums[self.bias] = weighted_rows(factors, zeroed(self.bias_rows, dropped))
        return sums

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        inputs, gradient = self.inputs[rows].double(), self.gradient[rows].double()
        built = {self.weight: self.unpack(torch.bmm(gradient.transpose(1, 2), inputs))}
        if self.bias is not None and self.bias_rows is not None:
            built[self.bias] = self.bias_rows[rows].double()
        return built


def _weighted_products(inputs: Tensor, gradient: Tensor, factors: Tensor) -> Tensor:
    weights = factors.to(gradient.dtype)[:, None, None]
    if gradient.shape[2] <= inputs.shape[2]:
        return summed_products(gradient * weights, inputs)
    return summed_products(gradient, inputs * weights)


def _gram_norms(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """‖Σ_t g_t a_tᵀ‖ = √Σ_{t,s} (a_t·a_s)(g_t·g_s), and ‖a‖·‖g‖ over all positions, from the diagonals."""
    at_once = max(1, GRAM_ENTRIES // max(1, inputs.shape[1] ** 2))
    found = [
        _some_gram_norms(*both) for both in zip(in_chunks(inputs, at_once), in_chunks(gradient, at_once), strict=True)
    ]
    norms, lengths = zip(*found, strict=True)
    return torch.cat(norms), torch.cat(lengths)


def _some_gram_norms(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    alike, of_gradient = _gram(inputs), _gram(gradient)
    lengths = [
        gram.diagonal(dim1=1, dim2=2).sum(1).sqrt_() + _lost_below(tensor)
        for gram, tensor in ((alike, inputs), (of_gradient, gradient))
    ]
    products = alike.mul_(of_gradient) if alike.dtype == of_gradient.dtype else alike * of_gradient
    return products.sum((1, 2)).clamp_(min=0).sqrt_(), lengths[0] * lengths[1]


def _gram(rows: Tensor) -> Tensor:
    """(examples, T, width) → (examples, T, T). Sums over long rows are taken in blocks, and those are added in float64."""
    if rows.shape[2] <= LONGEST_ROW:
        return torch.bmm(rows, rows.transpose(1, 2))
    total = rows.new_zeros(len(rows), rows.shape[1], rows.shape[1], dtype=torch.float64)
    for some in torch.split(rows, LONGEST_ROW, dim=2):
        total += torch.bmm(some, some.transpose(1, 2))
    return total


Products = VectorProducts | BuiltProducts | GramProducts


def joined(calls: Sequence[Products]) -> Products | None:
    """Several calls of one layer as one: built gradients add, sequences are concatenated. None if they do not match."""
    if all(isinstance(call, BuiltProducts) for call in calls):
        built = [call for call in calls if isinstance(call, BuiltProducts)]
        weights = [call.built for call in built if call.built is not None]
        biases = [call.bias_rows for call in built if call.bias_rows is not None]
        total = [torch.stack(rows).sum(0) if rows else None for rows in (weights, biases)]
        return BuiltProducts(built[0].weight, built[0].bias, total[0], total[1], built[0].unpack)
    vectors = [call for call in calls if isinstance(call, VectorProducts)]
    grams = [call for call in calls if isinstance(call, GramProducts)]
    if len(vectors) == len(calls):
        inputs, gradient = torch.stack([v.inputs for v in vectors], 1), torch.stack([v.gradient for v in vectors], 1)
        return outer_products(vectors[0].weight, vectors[0].bias, inputs, gradient)
    if len(grams) == len(calls):
        inputs, gradient = torch.cat([g.inputs for g in grams], 1), torch.cat([g.gradient for g in grams], 1)
        return outer_products(grams[0].weight, grams[0].bias, inputs, gradient, grams[0].unpack)
    return None
