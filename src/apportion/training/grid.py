"""Noise on a public grid: what floating point could leak is covered, because nothing off the grid is ever released.

The clipped sum is rounded to multiples of γ, and a Gaussian, rounded to multiples of γ, is added in whole numbers. Since
the sum lies on the grid, sum + round(N) = round(sum + N): the release is post-processing of a Gaussian release with real
arithmetic, so every accountant of Gaussian mechanisms stays valid. Rounding moves each coordinate by at most γ/2, so the
sensitivity of d coordinates grows by γ√d; the noise is scaled to that.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from mpmath import iv, mp
from numpy.typing import NDArray
from torch import Tensor

from apportion import _checks
from apportion.errors import RunError
from apportion.randomness import RandomStream
from apportion.training.clipping import ClippedSum

GRID_BITS = 24  # the grid has between 2^24 and 2^25 points to a standard deviation
_ROUNDING_UP = 1 + 1e-12
_PAIRS = 1 << 15
_SMALLEST = 2.0**-40


def noisy_sums_on_grid(clipped: ClippedSum, sigma: float, stream: RandomStream) -> Mapping[str, Tensor]:
    """The clipped sums, rounded to the grid, plus rounded Gaussians of standard deviation σ · (bound + γ√d).

    With per-layer clipping every layer has a scale s and a grid of its own; its standard deviation is σs(1 + κ√d), κ
    being the largest γ/s of all: with coordinates divided by s, rounding moves two neighbours apart by at most κ√d.

    Guarantees: one Gaussian release with noise multiplier σ, followed by rounding. The grid and the added sensitivity
    depend on public values only: σ, the stated bound and the number of parameters.
    """
    _checks.positive("sigma", sigma)
    alike: dict[float, dict[str, Tensor]] = {}  # scale → the sums that have it
    for name, total in clipped.sums.items():
        alike.setdefault(clipped.scale(name), {})[name] = total
    coordinates = sum(total.numel() for total in clipped.sums.values())
    apart = max((grid_of(sigma * scale) / scale for scale in alike), default=0.0) * math.sqrt(coordinates)
    noisy: dict[str, Tensor] = {}
    for scale, sums in alike.items():
        noisy |= _noisy(sums, sigma * scale * (1 + apart) * _ROUNDING_UP, grid_of(sigma * scale), stream)
    return noisy


def _noisy(
    sums: Mapping[str, Tensor], standard_deviation: float, step: float, stream: RandomStream
) -> dict[str, Tensor]:
    noise = rounded_normals(sum(total.numel() for total in sums.values()), standard_deviation / step, stream)
    noisy, start = {}, 0
    for name, total in sums.items():
        whole = torch.round(total.double().cpu() / step)  # exact division: the step is a power of two
        if total.numel() and not float(whole.abs().max()) < 2.0**51:
            raise RunError(f"the sum of {name} is too large for the noise grid; use noise='float' or more noise")
        piece = noise[start : start + total.numel()].view(total.shape)
        noisy[name] = ((whole.long() + piece).double() * step).to(total.device)
        start += total.numel()
    return noisy


def grid_of(standard_deviation: float) -> float:
    """The grid's step γ: a power of two, so that dividing by it is exact."""
    return math.ldexp(1.0, math.frexp(standard_deviation)[1] - 1 - GRID_BITS)


def rounded_normals(count: int, ratio: float, stream: RandomStream) -> Tensor:
    """`count` independent whole numbers, each distributed exactly as round(N(0, ratio²)).

    Guarantees: Box–Muller on uniforms of unlimited length, of which the first 64 bits are drawn at first. A result is
    taken from float64 only where every continuation of those bits, and every rounding error, leads to the same whole
    number; otherwise it is computed with intervals, drawing further bits until that is so.
    """
    _checks.positive("ratio", ratio)
    pieces = [_piece(min(2 * _PAIRS, count - start), ratio, stream) for start in range(0, count, 2 * _PAIRS)]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64)


def whole_normals(count: int, deviation: float, stream: RandomStream) -> NDArray[np.int64]:
    """`rounded_normals` for the components of a pipeline."""
    return np.asarray(rounded_normals(count, deviation, stream).numpy())


def _piece(count: int, ratio: float, stream: RandomStream) -> Tensor:
    pairs = (count + 1) // 2
    words = stream.words(2 * pairs).view(np.int64)
    result, unclear = transform(words[:pairs], words[pairs:], ratio)
    for pair in unclear:
        result[:, pair] = torch.tensor(exact_pair(int(words[pair]), int(words[pairs + pair]), ratio, stream))
    return result.flatten()[:count]


def transform(radii: np.ndarray, angles: np.ndarray, ratio: float) -> tuple[Tensor, list[int]]:
    """(2, pairs) rounded normals from signed 64-bit words, and the pairs for which float64 cannot tell.

    u = 1/2 + word/2^64 is off by at most 2^-53 (conversion, addition and the bits not drawn), θ by 2^-49; logarithm,
    root, sine and cosine by a few units in the last place. So r cos θ is off by less than r·2^-46 + 2^-52/(ur), into
    which a factor of at least 2 is built; this is true for u > 2^-40, and no other u is trusted.
    """
    u = 0.5 + torch.from_numpy(radii).double() * 2.0**-64
    r = torch.sqrt(-2 * torch.log(u))
    theta = torch.from_numpy(angles).double() * (2 * math.pi * 2.0**-64)
    exact = ratio * torch.stack([r * torch.cos(theta), r * torch.sin(theta)])
    error = ratio * (r * 2.0**-46 + 2.0**-52 / (u * r).abs())  # infinite where r is 0, or minus 0
    whole = torch.round(exact)
    clear = ((exact - whole).abs() < 0.5 - error).all(0) & (u > _SMALLEST)
    return torch.where(clear, whole, 0.0).long(), torch.nonzero(~clear).flatten().tolist()


def exact_pair(radius: int, angle: int, ratio: float, stream: RandomStream) -> tuple[int, int]:
    """Both numbers of a pair, by interval arithmetic on as many bits as it takes."""
    u, v, bits = radius + (1 << 63), angle, 64  # u/2^bits in [0, 1), v/2^bits in [-1/2, 1/2), each to be continued
    while True:
        if u:
            iv.prec = 2 * bits + 64
            r = ratio * iv.sqrt(-2 * iv.log(iv.mpf([u, u + 1]) / (1 << bits)))
            theta = 2 * iv.pi * iv.mpf([v, v + 1]) / (1 << bits)
            found = [_whole(r * wave) for wave in (iv.cos(theta), iv.sin(theta))]
            if found[0] is not None and found[1] is not None:
                return found[0], found[1]
        more = [int(word) for word in stream.words(2)]
        u, v, bits = (u << 64) + more[0], (v << 64) + more[1], bits + 64


def _whole(value: "iv.mpf") -> int | None:
    """The nearest whole number to everything in the interval, if it is one and the same."""
    shifted = value + 0.5
    with mp.workprec(iv.prec):
        low, high = (int(mp.floor(mp.mpf(end))) for end in (shifted.a, shifted.b))
    return low if low == high else None
