"""Flat clipping: what one unit adds to a sum has L2 norm at most the clipping norm.

Types mark the privacy line. `PerExampleGradients` are sensitive. A `ClippedSum` is still private, but bounded, and
carries its bound; the noise is scaled to that bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Rounding in the gradients' own precision can push a clipped gradient over the clipping norm by a hair. The stated
# bound includes this much, and the noise is scaled to the stated bound, so the hair is paid for.
RELATIVE_SLACK = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}
# Factors aim this much below the clipping norm, which pays for the rounding of sums over the batch; every way of summing
# aims alike, so that two batches that went different ways still agree.
HEADROOM = {torch.float64: 2e-14, torch.float32: 6e-6, torch.bfloat16: 6e-6, torch.float16: 6e-6}


@dataclass(frozen=True, slots=True, kw_only=True)
class PerExampleGradients:
    """Sensitive: parameter name → tensor of shape (examples, *parameter.shape)."""

    gradients: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedSum:
    """Parameter name → sum of clipped gradients (before noise), in float64 or in the layer's own precision.

    `norms` are the examples' gradient norms before clipping, in float64.

    Guarantees: adding, removing or zeroing one example, with the others unchanged, moves `sums`, taken as one long
    vector, by at most `bound` in L2 norm. How rounding is kept within the bound is said where the sum is taken.
    """

    sums: Mapping[str, Tensor]
    norms: Tensor
    bound: float

    def plus(self, other: "ClippedSum") -> "ClippedSum":
        """Of two disjoint sets of examples; one example is in one of them, so the bound stays.

        In float64, so that a batch in many parts is rounded as one in few.
        """
        sums = {name: value.double() + other.sums[name] for name, value in self.sums.items()}
        return ClippedSum(sums=sums, norms=torch.cat([self.norms, other.norms]), bound=max(self.bound, other.bound))


def stated_bound(clip: float, dtype: torch.dtype) -> float:
    return clip * (1 + RELATIVE_SLACK[dtype])


def aimed_at(clip: float, dtype: torch.dtype) -> float:
    return clip * (1 - HEADROOM[dtype])


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """min(1, clip/norm) per example; 0 where the norm is NaN or infinite, so that such an example adds nothing."""
    factors = (clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def flat_norms(gradients: Mapping[str, Tensor]) -> Tensor:
    """(examples,) L2 norms over all parameters, in float64; scaled by the largest entry so that squares never overflow.

    NaN if any entry is NaN, infinite if any is infinite.
    """
    rows = [
        gradient.flatten(1).double() for gradient in gradients.values() if gradient[0:1].numel() or not len(gradient)
    ]
    largest = torch.stack([row.abs().amax(1) if row.shape[1] else row.new_zeros(len(row)) for row in rows]).amax(0)
    scale = torch.where(torch.isfinite(largest) & (largest > 0), largest, torch.ones_like(largest))
    squares = sum(((row / scale[:, None]) ** 2).sum(1) for row in rows)
    return scale * torch.as_tensor(squares).sqrt()


def clip_and_sum(per_example: PerExampleGradients, clip: float) -> ClippedSum:
    gradients = per_example.gradients
    dtype = max((gradient.dtype for gradient in gradients.values()), key=RELATIVE_SLACK.__getitem__)
    norms = flat_norms(gradients)
    factors = clip_factors(norms, aimed_at(clip, dtype))
    sums = {}
    for name, gradient in gradients.items():
        finite = torch.nan_to_num(gradient.flatten(1).double(), nan=0.0, posinf=0.0, neginf=0.0)
        sums[name] = (factors @ finite).reshape(gradient.shape[1:])
    return ClippedSum(sums=sums, norms=norms, bound=stated_bound(clip, dtype))
