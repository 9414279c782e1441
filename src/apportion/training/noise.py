"""Gaussian noise on a clipped sum: the step from private to public."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from apportion import _checks
from apportion.randomness import RandomStream
from apportion.training.clipping import ClippedSum


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateGradient:
    """Public: noisy sums, parameter name → tensor. The optimizer takes nothing else."""

    sums: Mapping[str, Tensor]
    sigma: float


def add_noise(clipped: ClippedSum, sigma: float, stream: RandomStream) -> PrivateGradient:
    """Independent N(0, (σ · bound)²) on every coordinate.

    Guarantees: one Gaussian release with noise multiplier σ, because `clipped.bound` bounds the sum's L2 sensitivity,
    rounding included. The sum and the noise are added in float64; later rounding is post-processing.
    """
    scale = _checks.positive("sigma", sigma) * clipped.bound
    sizes = [total.numel() for total in clipped.sums.values()]
    drawn = torch.from_numpy(stream.normals(sum(sizes))) * scale
    pieces = torch.split(drawn, sizes)
    noisy = {
        name: total.double() + piece.reshape(total.shape).to(total.device)
        for (name, total), piece in zip(clipped.sums.items(), pieces, strict=True)
    }
    return PrivateGradient(sums=noisy, sigma=sigma)
