"""Clipping: what one unit adds to a sum has L2 norm at most the clipping norm, over all parameters or in every layer.

Types mark the privacy line. `PerExampleGradients` are sensitive. A `ClippedSum` is still private, but bounded, and
carries its bound; the noise is scaled to that bound.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from apportion.clipping import FLAT, Automatic, Clipping, PerLayer
from apportion.training.layers import Layer, layers_of

# Rounding in the gradients' own precision can push a clipped gradient over the clipping norm by a hair. The stated
# bound includes this much, and the noise is scaled to the stated bound, so the hair is paid for.
RELATIVE_SLACK = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}
# Factors aim this much below the clipping norm, which pays for the rounding of sums over the batch; every way of summing
# aims alike, so that two batches that went different ways still agree.
HEADROOM = {torch.float64: 2e-14, torch.float32: 6e-6, torch.bfloat16: 6e-6, torch.float16: 6e-6}
# Terms, one for each example or for each position of one, that are added up one after the other before float64 takes over.
LONGEST_BLOCK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PerExampleGradients:
    """Sensitive: parameter name → tensor of shape (examples, *parameter.shape)."""

    gradients: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedSum:
    """Parameter name → sum of clipped gradients (before noise), in float64 or in the layer's own precision.

    `norms` are the examples' gradient norms before clipping, in float64.

    Guarantees: adding, removing or zeroing one example, with the others unchanged, moves `sums`, taken as one long
    vector, by at most `bound` in L2 norm; and by at most 1 if every parameter is first divided by its `scale`. How
    rounding is kept within the bound is said where the sum is taken; in large batches it is not, before
    `for_batches_of` has widened the bound.
    """

    sums: Mapping[str, Tensor]
    norms: Tensor
    bound: float
    scales: Mapping[str, float] | None = None  # None: the bound, for every parameter
    layer_norms: Mapping[str, Tensor] | None = None  # of per-layer clipping: `norms` of each layer by itself

    def scale(self, name: str) -> float:
        """What noise on this parameter is a multiple of."""
        return self.bound if self.scales is None else self.scales[name]

    def for_batches_of(self, examples: float, dtype: torch.dtype) -> "ClippedSum":
        """With the bound widened by what rounding may add in batches of so many examples: see `slack_of_a_batch`."""
        more = 1 + slack_of_a_batch(examples, dtype)
        if more == 1:
            return self
        scales = None if self.scales is None else {name: more * scale for name, scale in self.scales.items()}
        return replace(self, bound=more * self.bound, scales=scales)

    def without_sums(self) -> "ClippedSum":
        return replace(self, sums={})

    def plus(self, other: "ClippedSum") -> "ClippedSum":
        """Of two disjoint sets of examples; one example is in one of them, so the bound stays.

        In float64, so that a batch in many parts is rounded as one in few.
        """
        sums = {name: value.double() + other.sums[name] for name, value in self.sums.items()}
        scales = layer_norms = None
        if self.scales is not None and other.scales is not None:
            scales = {name: max(scale, other.scales[name]) for name, scale in self.scales.items()}
        if self.layer_norms is not None and other.layer_norms is not None:
            layer_norms = {name: torch.cat([n, other.layer_norms[name]]) for name, n in self.layer_norms.items()}
        return ClippedSum(
            sums=sums,
            norms=torch.cat([self.norms, other.norms]),
            bound=max(self.bound, other.bound),
            scales=scales,
            layer_norms=layer_norms,
        )


def together(by_layer: Mapping[str, ClippedSum]) -> ClippedSum:
    """The flatly clipped sums of L layers as one.

    Guarantees: divided by √L times its own bound, each layer moves by at most 1/√L, so that all of them together move by
    at most 1.
    """
    root = math.sqrt(len(by_layer))
    layer_norms = {label: one.norms.double() for label, one in by_layer.items()}
    return ClippedSum(
        sums={name: total for one in by_layer.values() for name, total in one.sums.items()},
        norms=torch.linalg.vector_norm(torch.stack(list(layer_norms.values())), dim=0),
        bound=math.hypot(*(one.bound for one in by_layer.values())),
        scales={name: root * one.bound for one in by_layer.values() for name in one.sums},
        layer_norms=layer_norms,
    )


def stated_bound(clip: float, dtype: torch.dtype) -> float:
    return clip * (1 + RELATIVE_SLACK[dtype])


def slack_of_a_batch(examples: float, dtype: torch.dtype) -> float:
    """What must be added to the stated bound, relative to it, for batches of so many examples: nothing for small ones.

    `examples` is the nominal size, which is public. Without one record all that follow stand in other blocks of the sum, so
    that none of the roundings need cancel. In a block of K examples with T terms each, K·T ≤ `LONGEST_BLOCK`, partial sums
    are at most K·C long, and each of the K·T additions moves them by at most u·K·C (u = 2⁻²⁴ in float32). A batch is in
    random order, drawn in secret, so that the additions of n/K blocks move the sum by about their root: by 0.23·u·K·√(nT)·C,
    as 0.23 is the root of the mean square, and in two neighbouring batches by √2 times that. Allowed is half as much again,
    for the T for which it is largest: 16·u·n·C up to `LONGEST_BLOCK` examples, beyond that as √n. The stated slack and the
    headroom pay for the first 16.

    In batches made to be bad (gradients in one entry; terms that cancel as far as they may) at most .6 of this was found. In
    an order made for it as well, up to 20 times as much: hence the random one.
    """
    unit = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps / 2
    most = math.sqrt(LONGEST_BLOCK * examples * min(examples, LONGEST_BLOCK)) / 2
    return max(0.0, most * unit - RELATIVE_SLACK[dtype] - HEADROOM[dtype])


def aimed_at(clip: float, dtype: torch.dtype) -> float:
    return clip * (1 - HEADROOM[dtype])


def clip_factors(norms: Tensor, clip: float, stability: float | None = None) -> Tensor:
    """min(1, clip/norm) per example, or clip/(norm + stability) if that is given.

    0 where the norm is NaN or infinite, so that such an example adds nothing; or so large that the factor has lost digits.
    """
    tiny = torch.finfo(norms.dtype).tiny
    factors = scaling(norms.clamp(min=tiny), clip, stability)
    return torch.where(torch.isfinite(norms) & (factors >= tiny), factors, torch.zeros_like(factors))


def scaling(norms: Tensor, clip: float, stability: float | None) -> Tensor:
    """The factors of examples whose norms are ordinary numbers; anything may come out for others."""
    values = norms.cpu().numpy()  # for which a few thousand numbers take fewer microseconds
    factors = clip / (np.maximum(values, clip) if stability is None else values + stability)
    return torch.from_numpy(factors).to(norms.device)


def stability_of(clipping: Clipping) -> float | None:
    return clipping.stability if isinstance(clipping, Automatic) else None


def as_rows(gradients: Tensor) -> Tensor:
    """(examples, *shape) → (examples, entries); a parameter without dimensions has one entry."""
    return gradients.flatten(1) if gradients.dim() > 1 else gradients[:, None]


def flat_norms(gradients: Mapping[str, Tensor]) -> Tensor:
    """(examples,) L2 norms over all parameters, in float64; scaled by the largest entry so that squares never overflow.

    NaN if any entry is NaN, infinite if any is infinite.
    """
    rows = [as_rows(gradient).double() for gradient in gradients.values() if gradient[0:1].numel() or not len(gradient)]
    largest = torch.stack([row.abs().amax(1) if row.shape[1] else row.new_zeros(len(row)) for row in rows]).amax(0)
    scale = torch.where(torch.isfinite(largest) & (largest > 0), largest, torch.ones_like(largest))
    squares = sum(((row / scale[:, None]) ** 2).sum(1) for row in rows)
    return scale * torch.as_tensor(squares).sqrt()


def clip_and_sum(
    per_example: PerExampleGradients, clip: float, clipping: Clipping = FLAT, dtype: torch.dtype | None = None
) -> ClippedSum:
    """`dtype` is the precision in which the gradients were computed; their own, if it is not given."""
    gradients = per_example.gradients
    if isinstance(clipping, PerLayer):
        layers = layers_of(gradients, clipping, clip)
        return together({layer.label: _layer(gradients, layer, dtype) for layer in layers})
    if dtype is None:
        dtype = max((gradient.dtype for gradient in gradients.values()), key=RELATIVE_SLACK.__getitem__)
    norms = flat_norms(gradients)
    factors = clip_factors(norms, aimed_at(clip, dtype), stability_of(clipping))
    sums = {}
    for name, gradient in gradients.items():
        finite = torch.nan_to_num(as_rows(gradient).double(), nan=0.0, posinf=0.0, neginf=0.0)
        sums[name] = (factors @ finite).reshape(gradient.shape[1:])
    return ClippedSum(sums=sums, norms=norms, bound=stated_bound(clip, dtype))


def _layer(gradients: Mapping[str, Tensor], layer: Layer, dtype: torch.dtype | None) -> ClippedSum:
    own = {name: gradients[name] for name in layer.parameters}
    return clip_and_sum(PerExampleGradients(gradients=own), layer.clip, dtype=dtype)
