"""Gaussian noise on a clipped sum: the step from private to public."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from apportion import _checks
from apportion.plan import Noise
from apportion.randomness import RandomStream
from apportion.training.clipping import ClippedSum
from apportion.training.grid import noisy_sums_on_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateGradient:
    """Public: noisy sums, parameter name → tensor. The optimizer takes nothing else."""

    sums: Mapping[str, Tensor]
    sigma: float


def add_noise(
    clipped: ClippedSum, sigma: float, stream: RandomStream, kind: Noise = "float", *, overwrite: bool = False
) -> PrivateGradient:
    """Independent N(0, (σ · scale)²) on every coordinate, `scale` being the bound or, per layer, the parameter's own.

    With `kind` "grid", see `grid`. With `overwrite`, large sums become noisy where they are, which saves a copy as large
    as the model; the clipped sum is then used up.

    Guarantees: one Gaussian release with noise multiplier σ, because the sum's L2 sensitivity is at most 1, rounding
    included, once every parameter is divided by its scale. The sum and the noise are added in float64; later rounding is
    post-processing.
    """
    if kind == "grid":
        return PrivateGradient(sums=noisy_sums_on_grid(clipped, sigma, stream), sigma=sigma)
    _checks.positive("sigma", sigma)
    noisy = dict(clipped.sums)
    small: dict[float, list[str]] = {}  # the noise's standard deviation → parameters
    for name, total in clipped.sums.items():
        if total.numel() < _PIECE:
            small.setdefault(sigma * clipped.scale(name), []).append(name)
        else:
            noisy[name] = _noisy(total, sigma * clipped.scale(name), stream, overwrite)
    for scale, names in small.items():  # in one go: a nearly empty piece of noise takes as many calls as a full one
        together = torch.cat([noisy[name].reshape(-1).cpu().double() for name in names])
        stream.add_normals(together.numpy(), scale)
        for name, piece in zip(names, torch.split(together, [noisy[name].numel() for name in names]), strict=True):
            noisy[name] = piece.view(noisy[name].shape).to(noisy[name].device)
    return PrivateGradient(sums=noisy, sigma=sigma)


def _noisy(total: Tensor, scale: float, stream: RandomStream, overwrite: bool) -> Tensor:
    """The total with noise, in its own precision; a piece at a time, so that float64 stays in the cache."""
    flat = total.reshape(-1).cpu()
    noisy = flat if overwrite else torch.empty_like(flat)
    sums = torch.empty(min(len(flat), _PIECE), dtype=torch.float64)
    for start in range(0, len(flat), _PIECE):
        piece = sums[: len(flat) - start].copy_(flat[start : start + _PIECE])
        stream.add_normals(piece.numpy(), scale)
        noisy[start : start + _PIECE] = piece
    return noisy.view(total.shape).to(total.device)


_PIECE = 1 << 15  # values at a time: as many as stay in the cache
