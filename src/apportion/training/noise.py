"""Gaussian noise on a clipped sum: the step from private to public."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
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


def add_noise(clipped: ClippedSum, sigma: float, stream: RandomStream, kind: Noise = "float") -> PrivateGradient:
    """Independent N(0, (σ · scale)²) on every coordinate, `scale` being the bound or, per layer, the parameter's own.

    With `kind` "grid", see `grid`.

    Guarantees: one Gaussian release with noise multiplier σ, because the sum's L2 sensitivity is at most 1, rounding
    included, once every parameter is divided by its scale. The sum and the noise are added in float64; later rounding is
    post-processing.
    """
    if kind == "grid":
        return PrivateGradient(sums=noisy_sums_on_grid(clipped, sigma, stream), sigma=sigma)
    _checks.positive("sigma", sigma)
    sizes = [total.numel() for total in clipped.sums.values()]
    drawn = torch.empty(sum(sizes), dtype=torch.float64)
    fill_normal(drawn, sigma * clipped.bound if clipped.scales is None else sigma, stream)
    noisy = {}
    for (name, total), piece in zip(clipped.sums.items(), torch.split(drawn, sizes), strict=True):
        noise = piece.view(total.shape)
        if clipped.scales is not None:
            noise.mul_(clipped.scales[name])
        noisy[name] = noise.add_(total) if total.device.type == "cpu" else total.double() + noise.to(total.device)
    return PrivateGradient(sums=noisy, sigma=sigma)


def fill_normal(out: Tensor, scale: float, stream: RandomStream) -> None:
    """Fill `out` (one-dimensional, float64, on the CPU) with independent N(0, scale²), two from each 12 random bytes."""
    scratch = _scratch.get(stream)
    if scratch is None:
        scratch = _scratch[stream] = _Scratch()
    for start in range(0, len(out), 2 * _PAIRS):
        piece = out[start : start + 2 * _PAIRS]
        pairs = (len(piece) + 1) // 2
        stream.fill(scratch.bytes[: 12 * pairs])
        words = scratch.words[: 8 * pairs].view(torch.int64)
        angles = scratch.words[8 * pairs : 12 * pairs].view(torch.int32)
        box_muller(words, angles, scale, piece[:pairs], piece[pairs:], scratch)


def box_muller(words: Tensor, angles: Tensor, scale: float, first: Tensor, second: Tensor, scratch: "_Scratch") -> None:
    """Two normals from each uniform 64-bit word and 32-bit angle: first = r cos θ, second = r sin θ (perhaps one fewer).

    The radius r = √(−2 ln u) is computed in float64 from a uniform u rounded to multiples of 2⁻⁵⁴ (0 to 2⁻⁵⁵), so that
    the tail has the right mass down to 2⁻⁵³ and reaches 8.7. The angle has 32 bits and half a cell's offset, so that no
    coordinate is exactly 0. The products are float64: noise on the coarser grid of float32 would show the low bits of the
    sum wherever the two nearly cancel.
    """
    pairs = len(words)
    radius, angle, wave = scratch.radius[:pairs], scratch.angle[:pairs], scratch.wave[:pairs]
    radius.copy_(words)
    torch.add(_HALF, radius, alpha=2.0**-64, out=radius).clamp_(min=2.0**-55).log_().mul_(-2.0).sqrt_().mul_(scale)
    angle.copy_(angles).add_(0.5).mul_(math.pi * 2.0**-31)
    torch.cos(angle, out=wave)
    first.copy_(wave).mul_(radius)
    torch.sin(angle, out=wave)
    second.copy_(wave[: len(second)]).mul_(radius[: len(second)])


# As many as torch handles in one thread: sharing such small pieces among threads costs more than it gains, and costs
# hundreds of times more on a busy machine.
_PAIRS = 1 << 15

_HALF = torch.tensor(0.5, dtype=torch.float64)  # what makes a signed word times 2⁻⁶⁴ uniform on [0, 1]


class _Scratch:
    """Memory that is used again from step to step."""

    def __init__(self) -> None:
        self.bytes = np.empty(12 * _PAIRS, np.uint8)
        self.words = torch.from_numpy(self.bytes)
        self.radius = torch.empty(_PAIRS, dtype=torch.float64)
        self.angle = torch.empty(_PAIRS)
        self.wave = torch.empty(_PAIRS)


_scratch: WeakKeyDictionary[RandomStream, _Scratch] = WeakKeyDictionary()
