"""Gradients that are sums of outer products: every layer that multiplies by a weight matrix."""

from collections.abc import Callable

import torch
from torch import Tensor

from apportion.training.gradients.pieces import Part, row_squares, weighted_rows, zeroed

# A built gradient may be this many times as large as the two tensors it is built from; beyond, the Gram matrices are
# both smaller and cheaper.
BUILD_UP_TO = 2.0

# A norm taken from Gram matrices is good to about `eps` times (random-phase estimate ÷ norm)², so it is not trusted
# when the gradient is this many times shorter than if its terms had random phases.
CANCELLATION = 10.0


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
        factors = factors.to(self.dtype)
        if self.built is not None:
            assert self.weight is not None
            sums[self.weight] = self.unpack(weighted_rows(factors, zeroed(self.built, dropped)))
            if self.bias is not None and self.bias_rows is not None:
                sums[self.bias] = weighted_rows(factors, zeroed(self.bias_rows, dropped))
            return sums
        inputs, gradient = zeroed(self.inputs, dropped), zeroed(self.gradient, dropped)
        inwards, outwards = inputs.shape[2], gradient.shape[2]
        scale_gradient = self.weight is None or outwards <= inwards
        if scale_gradient:
            gradient = gradient * factors[:, None, None]
        if self.bias is not None:
            rows = gradient.reshape(-1, outwards)
            ones = factors.new_ones(len(rows)) if scale_gradient else factors.repeat_interleave(gradient.shape[1])
            sums[self.bias] = ones @ rows
        if self.weight is not None:
            inputs = inputs if scale_gradient else inputs * factors[:, None, None]
            sums[self.weight] = self.unpack(gradient.reshape(-1, outwards).T @ inputs.reshape(-1, inwards))
        return sums

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
