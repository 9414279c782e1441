"""Gradients that are outer products, or sums of them: every layer that multiplies by a weight matrix."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from apportion.training.gradients.pieces import SMALL, Part, row_norms, weighted_rows, zeroed

# A built gradient may be this many times as large as the two tensors it is built from; beyond, the Gram matrices are
# both smaller and cheaper.
BUILD_UP_TO = 2.0

# A norm taken from Gram matrices is good to about `eps` times (random-phase estimate ÷ norm)², so it is not trusted
# when the gradient is this many times shorter than if its terms had random phases.
CANCELLATION = 10.0

# Sums over examples are rounded to the layer's precision only within blocks of so many examples.
EXAMPLES_PER_PRODUCT = 1024


class VectorProducts:
    """A linear layer on vectors. Example i: weight gradient[i] ⊗ inputs[i], bias gradient[i].

    `inputs` (examples, inwards), `gradient` (examples, outwards); `weight` or `bias` is None where frozen or absent.
    """

    def __init__(self, weight: Part | None, bias: Part | None, inputs: Tensor, gradient: Tensor) -> None:
        self.weight, self.bias, self.inputs, self.gradient = weight, bias, inputs, gradient

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for part in (self.weight, self.bias) if part is not None)

    @property
    def dtype(self) -> torch.dtype:
        return self.gradient.dtype

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        of_gradient = row_norms(self.gradient)
        of_bias = [] if self.bias is None else [of_gradient]
        of_weight = [] if self.weight is None else [of_gradient * row_norms(self.inputs)]
        return of_weight + of_bias, None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        """One matrix product, the smaller tensor scaled. If that is the inputs, the factors become one more column of
        them, and the bias one more of the product."""
        inputs, gradient = zeroed(self.inputs, dropped), zeroed(self.gradient, dropped)
        if self.weight is None:
            return {part: weighted_rows(factors, gradient) for part in self.parts}
        column = factors[:, None]
        small = inputs.numel() + gradient.numel() <= SMALL
        if not small:
            column = column.to(gradient.dtype)  # otherwise the scaled tensor, and with it the product, is float64
        if small or gradient.shape[1] <= inputs.shape[1]:
            scaled = gradient * column
            sums = {self.weight: summed_products(scaled, inputs)}
            if self.bias is not None:
                sums[self.bias] = scaled.sum(0, dtype=torch.float64)
            return sums
        scaled = inputs * column
        if self.bias is None:
            return {self.weight: summed_products(gradient, scaled)}
        product = summed_products(gradient, torch.cat([scaled, column], dim=1))
        return {self.weight: product[:, :-1], self.bias: product[:, -1]}

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return self.as_sequences().instantiate(rows)

    def as_sequences(self) -> "OuterProducts":
        return OuterProducts(self.weight, self.bias, self.inputs[:, None], self.gradient[:, None])


class OuterProducts:
    """A matrix on sequences. Example i: weight Σ_t gradient[i,t] ⊗ inputs[i,t], bias Σ_t gradient[i,t].

    `inputs` (examples, T, inwards), `gradient` (examples, T, outwards); `weight` or `bias` is None where frozen or
    absent; `unpack` turns (…, outwards, inwards) into the weight's own order where that differs.
    """

    def __init__(
        self,
        weight: Part | None,
        bias: Part | None,
        inputs: Tensor,
        gradient: Tensor,
        unpack: Callable[[Tensor], Tensor] = lambda built: built,
    ) -> None:
        self.weight, self.bias, self.unpack = weight, bias, unpack
        self.inputs, self.gradient = inputs, gradient
        self.built: Tensor | None = None
        self.bias_rows: Tensor | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for part in (self.weight, self.bias) if part is not None)

    @property
    def dtype(self) -> torch.dtype:
        return self.gradient.dtype

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        norms, floor = self._weight_norms()
        if self.bias is not None:
            self.bias_rows = self.gradient.sum(1)
            norms = [*norms, row_norms(self.bias_rows)]
        return norms, floor

    def _weight_norms(self) -> tuple[list[Tensor], Tensor | None]:
        if self.weight is None:
            return [], None
        T, inwards, outwards = self.inputs.shape[1], self.inputs.shape[2], self.gradient.shape[2]
        if inwards * outwards <= BUILD_UP_TO * T * (inwards + outwards):
            self.built = torch.bmm(self.gradient.transpose(1, 2), self.inputs)  # (examples, outwards, inwards)
            return [row_norms(self.built)], None
        # ‖Σ_t g_t a_tᵀ‖² = Σ_{t,s} (a_t·a_s)(g_t·g_s)
        alike = torch.bmm(self.inputs, self.inputs.transpose(1, 2))  # (examples, T, T)
        alike *= torch.bmm(self.gradient, self.gradient.transpose(1, 2))
        random_phases = row_norms(self.inputs) * row_norms(self.gradient) / T**0.5
        return [alike.sum((1, 2)).clamp_(min=0).sqrt_()], random_phases / CANCELLATION

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        sums: dict[Part, Tensor] = {}
        if self.weight is not None and self.built is not None:
            sums[self.weight] = self.unpack(weighted_rows(factors, zeroed(self.built, dropped)))
        elif self.weight is not None:
            inputs, gradient = zeroed(self.inputs, dropped), zeroed(self.gradient, dropped)
            weights = factors.to(self.dtype)[:, None, None]
            if gradient.shape[2] <= inputs.shape[2]:
                gradient = gradient * weights
            else:
                inputs = inputs * weights
            sums[self.weight] = self.unpack(summed_products(gradient, inputs))
        if self.bias is not None:
            rows = self.gradient.sum(1) if self.bias_rows is None else self.bias_rows
            sums[self.bias] = weighted_rows(factors, zeroed(rows, dropped))
        return sums

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        inputs, gradient = self.inputs[rows].double(), self.gradient[rows].double()
        built: dict[Part, Tensor] = {}
        if self.weight is not None:
            built[self.weight] = self.unpack(torch.bmm(gradient.transpose(1, 2), inputs))
        if self.bias is not None:
            built[self.bias] = gradient.sum(1)
        return built

    def as_sequences(self) -> "OuterProducts":
        return self


def joined(pieces: Sequence[VectorProducts | OuterProducts]) -> OuterProducts:
    """One layer called several times is the same layer called once on the concatenated sequence."""
    calls = [piece.as_sequences() for piece in pieces]
    inputs = torch.cat([call.inputs for call in calls], dim=1)
    gradient = torch.cat([call.gradient for call in calls], dim=1)
    return OuterProducts(calls[0].weight, calls[0].bias, inputs, gradient, calls[0].unpack)


def summed_products(left: Tensor, right: Tensor) -> Tensor:
    """Σ over examples (and positions) of left ⊗ right: (examples, …, n), (examples, …, m) → (n, m).

    Rounded to the tensors' precision only within blocks of examples; blocks are added in float64. The block, and so the
    rounding, does not grow with the batch.
    """
    dtype = torch.promote_types(left.dtype, right.dtype)
    left, right = left.to(dtype), right.to(dtype)
    if len(left) <= EXAMPLES_PER_PRODUCT:
        return _product(left, right)
    total = _product(left[:EXAMPLES_PER_PRODUCT], right[:EXAMPLES_PER_PRODUCT]).double()
    for start in range(EXAMPLES_PER_PRODUCT, len(left), EXAMPLES_PER_PRODUCT):
        rows = slice(start, start + EXAMPLES_PER_PRODUCT)
        total += _product(left[rows], right[rows])
    return total


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Long rows in the result are quicker, so the side with fewer columns goes first."""
    if left.dim() > 2:
        left, right = left.flatten(0, -2), right.flatten(0, -2)
    return left.T @ right if left.shape[1] <= right.shape[1] else (right.T @ left).T
