"""Gradients that are sums of outer products: every layer that multiplies by a weight matrix."""

from collections.abc import Callable

import torch
from torch import Tensor

from apportion.training.gradients.pieces import SMALL, Part, row_squares, weighted_rows, zeroed

# A built gradient may be this many times as large as the two tensors it is built from; beyond, the Gram matrices are
# both smaller and cheaper.
BUILD_UP_TO = 2.0

# A norm taken from Gram matrices is good to about `eps` times (random-phase estimate ÷ norm)², so it is not trusted
# when the gradient is this many times shorter than if its terms had random phases.
CANCELLATION = 10.0

# Sums over examples are rounded to the layer's precision only within blocks of so many examples.
SMALL_LAYER, SMALL_LAYER_BLOCK = 2**14, 64
LARGE_LAYER_BLOCK = 512


class OuterProducts:
    """Example i: weight Σ_t gradient[i,t] ⊗ inputs[i,t], bias Σ_t gradient[i,t].

    `inputs` (examples, T, inwards), `gradient` (examples, T, outwards); `weight` and `bias` are None where frozen or absent;
    `unpack` turns (…, outwards, inwards) into the weight's own order (…, outwards, *rest) where that is more than a reshape.
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
        dtype = torch.promote_types(inputs.dtype, gradient.dtype)
        self.inputs, self.gradient = inputs.to(dtype), gradient.to(dtype)
        self.built: Tensor | None = None
        self.bias_rows: Tensor | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for part in (self.weight, self.bias) if part is not None)

    @property
    def dtype(self) -> torch.dtype:
        return self.gradient.dtype

    def squares(self) -> tuple[Tensor, Tensor | None]:
        T, inwards, outwards = self.inputs.shape[1], self.inputs.shape[2], self.gradient.shape[2]
        if T == 1:
            of_gradient = row_squares(self.gradient)
            if self.weight is None:
                return of_gradient, None
            of_inputs = row_squares(self.inputs)
            return of_gradient * (of_inputs + 1 if self.bias is not None else of_inputs), None
        total = self.gradient.new_zeros(len(self.gradient))
        floor = None
        if self.bias is not None:
            self.bias_rows = self.gradient.sum(1)
            total = total + row_squares(self.bias_rows)
        if self.weight is not None:
            if inwards * outwards <= BUILD_UP_TO * T * (inwards + outwards):
                self.built = torch.bmm(self.gradient.transpose(1, 2), self.inputs)  # (examples, outwards, inwards)
                return total + row_squares(self.built), None
            of_weight, floor = self._gram_squares()
            total = total + of_weight
        return total, floor

    def _gram_squares(self) -> tuple[Tensor, Tensor]:
        """‖Σ_t g_t a_tᵀ‖² = Σ_{t,s} (a_t·a_s)(g_t·g_s), and the floor of trust (see CANCELLATION)."""
        T = self.inputs.shape[1]
        alike = torch.bmm(self.inputs, self.inputs.transpose(1, 2))  # (examples, T, T)
        alike *= torch.bmm(self.gradient, self.gradient.transpose(1, 2))
        random_phases = row_squares(self.inputs) * row_squares(self.gradient) / T
        return alike.sum((1, 2)), random_phases / CANCELLATION**2

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        sums: dict[Part, Tensor] = {}
        if self.bias is not None:
            rows = self.gradient.sum(1) if self.bias_rows is None else self.bias_rows
            sums[self.bias] = weighted_rows(factors, zeroed(rows, dropped))
        if self.weight is not None:
            if self.built is not None:
                sums[self.weight] = self.unpack(weighted_rows(factors, zeroed(self.built, dropped)))
            else:
                sums[self.weight] = self.unpack(self._product(factors, dropped))
        return sums

    def _product(self, factors: Tensor, dropped: Tensor | None) -> Tensor:
        """(outwards, inwards): the clipped sum as a matrix product, the smaller of the two tensors scaled."""
        inputs, gradient = zeroed(self.inputs, dropped), zeroed(self.gradient, dropped)
        weights = factors.to(self.dtype)[:, None, None]
        if gradient.shape[2] <= inputs.shape[2]:
            gradient = gradient * weights
        else:
            inputs = inputs * weights
        return summed_products(gradient, inputs)

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        inputs, gradient = self.inputs[rows].double(), self.gradient[rows].double()
        built: dict[Part, Tensor] = {}
        if self.weight is not None:
            built[self.weight] = self.unpack(torch.bmm(gradient.transpose(1, 2), inputs))
        if self.bias is not None:
            built[self.bias] = gradient.sum(1)
        return built


def joined(pieces: list[OuterProducts]) -> OuterProducts:
    """One layer called several times is the same layer called once on the concatenated sequence."""
    first = pieces[0]
    inputs = torch.cat([piece.inputs for piece in pieces], dim=1)
    gradient = torch.cat([piece.gradient for piece in pieces], dim=1)
    return OuterProducts(first.weight, first.bias, inputs, gradient, first.unpack)


def summed_products(left: Tensor, right: Tensor) -> Tensor:
    """Σ over examples and positions of left ⊗ right: (examples, T, n), (examples, T, m) → (n, m).

    In float64 if that is cheap; otherwise float32 within blocks of examples, float64 over blocks. The block, and so
    the rounding, does not grow with the batch.
    """
    examples, n, m = len(left), left.shape[2], right.shape[2]
    if left.numel() + right.numel() <= SMALL:
        return left.reshape(-1, n).T.double() @ right.reshape(-1, m).double()
    size = SMALL_LAYER_BLOCK if n * m <= SMALL_LAYER else LARGE_LAYER_BLOCK
    if examples <= size:
        return left.reshape(-1, n).T @ right.reshape(-1, m)
    if n * m <= SMALL_LAYER:
        even = examples - examples % size
        blocks = left[:even].reshape(examples // size, -1, n), right[:even].reshape(examples // size, -1, m)
        total = torch.bmm(blocks[0].transpose(1, 2), blocks[1]).sum(0, dtype=torch.float64)
        return total if even == examples else total + summed_products(left[even:], right[even:])
    total = (left[:size].reshape(-1, n).T @ right[:size].reshape(-1, m)).double()
    for start in range(size, examples, size):
        rows = slice(start, start + size)
        total += left[rows].reshape(-1, n).T @ right[rows].reshape(-1, m)
    return total
