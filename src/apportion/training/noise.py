"""Gaussian noise on a clipped sum: the step from private to public."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
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
        if total.numel() < 2 * _PAIRS:
            small.setdefault(sigma * clipped.scale(name), []).append(name)
        else:
            noisy[name] = _noisy(total, sigma * clipped.scale(name), stream, overwrite)
    for scale, names in small.items():  # in one go: a nearly empty piece of noise takes as many calls as a full one
        together = torch.cat([noisy[name].reshape(-1).cpu().double() for name in names])
        add_normal(together, scale, stream)
        for name, piece in zip(names, torch.split(together, [noisy[name].numel() for name in names]), strict=True):
            noisy[name] = piece.view(noisy[name].shape).to(noisy[name].device)
    return PrivateGradient(sums=noisy, sigma=sigma)


def _noisy(total: Tensor, scale: float, stream: RandomStream, overwrite: bool) -> Tensor:
    """The total with noise, in its own precision; a piece at a time, so that float64 stays in the cache."""
    flat = total.reshape(-1).cpu()
    noisy = flat if overwrite else torch.empty_like(flat)
    sums = torch.empty(min(len(flat), 2 * _PAIRS), dtype=torch.float64)
    for start in range(0, len(flat), 2 * _PAIRS):
        piece = sums[: len(flat) - start].copy_(flat[start : start + 2 * _PAIRS])
        add_normal(piece, scale, stream)
        noisy[start : start + 2 * _PAIRS] = piece
    return noisy.view(total.shape).to(total.device)


def add_normal(out: Tensor, scale: float, stream: RandomStream) -> None:
    """Add independent N(0, scale²) to `out` (one-dimensional, float64, on the CPU), two from each 16 random bytes."""
    scratch = _scratch.get(stream)
    if scratch is None:
        scratch = _scratch[stream] = _Scratch()
    values = out.numpy()
    for start in range(0, len(values), 2 * _PAIRS):
        piece = values[start : start + 2 * _PAIRS]
        pairs = (len(piece) + 1) // 2
        stream.fill(scratch.bytes[: 16 * pairs])
        words = scratch.bytes[: 16 * pairs].view(np.int64)
        box_muller(words[:pairs], words[pairs:], scale, piece[:pairs], piece[pairs:], scratch)


def box_muller(
    words: NDArray[np.int64],
    angles: NDArray[np.int64],
    scale: float,
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    scratch: "_Scratch",
) -> None:
    """Two normals from two uniform 64-bit words w and v: r cos θ is added to `first`, r sin θ to `second`.

    `second` may be one shorter. The radius is r = √(ln (1/u²)), u = |w + ½|/2⁶³: 63 random bits, so that the tail has the
    right mass down to 2⁻⁶² and reaches 9.4; _TOP is a hair above 2¹²⁶, so that r is never 0. The angle is θ = (v + ½)π/2⁶³.

    Everything is float64, and both r² and θ take all the values that float64 has there, however small r is. From a coarser
    set the noise could be recognised: whoever sees a noisy pair would subtract the two sums in question, and only the true
    one leaves something in the set. Angles of 32 bits, with waves in float32, tell any two sums apart in this way.
    """
    pairs = len(words)
    radius, angle, wave = scratch.radius[:pairs], scratch.angle[:pairs], scratch.wave[:pairs]
    radii, turns, wide = radius.numpy(), angle.numpy(), wave.numpy()
    # numpy starts sooner and takes roots faster, torch has the faster logarithm and waves
    np.add(words, 0.5, out=radii)
    np.multiply(radii, radii, out=radii)
    np.divide(_TOP, radii, out=radii)
    radius.log_()
    np.sqrt(radii, out=radii)
    np.multiply(radii, scale, out=radii)
    np.add(angles, 0.5, out=turns)
    np.multiply(turns, math.pi * 2.0**-63, out=turns)
    for waves, out in ((torch.cos, first), (torch.sin, second)):
        waves(angle, out=wave)
        np.multiply(wide, radii, out=wide)
        np.add(out, wide[: len(out)], out=out)


# As many as torch handles in one thread: sharing such small pieces among threads costs more than it gains, and costs
# hundreds of times more on a busy machine.
_PAIRS = 1 << 15

_TOP = 2.0**126 * (1 + 2.0**-52)


class _Scratch:
    """Memory that is used again from step to step."""

    def __init__(self) -> None:
        self.bytes = np.empty(16 * _PAIRS, np.uint8)
        self.radius, self.angle, self.wave = torch.empty(3, _PAIRS, dtype=torch.float64)


_scratch: WeakKeyDictionary[RandomStream, _Scratch] = WeakKeyDictionary()
