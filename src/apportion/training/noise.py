"""Gaussian noise on a clipped sum: the step from private to public."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from apportion import _checks
from apportion.plan import Noise
from apportion.randomness import RandomStream
from apportion.training.clipping import ClippedSum
from apportion.training.end_to_end import EndToEnd, are_few
from apportion.training.grid import noisy_sums_on_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateGradient:
    """Public: noisy sums, or means, parameter name → tensor. The optimizer takes nothing else."""

    sums: Mapping[str, Tensor]
    sigma: float


def add_noise(
    clipped: ClippedSum,
    sigma: float,
    stream: RandomStream,
    kind: Noise = "float",
    *,
    divisor: float = 1.0,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> PrivateGradient:
    """Independent N(0, (σ · scale)²) on every coordinate, `scale` being the bound or, per layer, the parameter's own.

    With `kind` "grid", see `grid`. The noisy sums are divided by `divisor`, a public number, and rounded to `dtype`, if
    they are to have one. With `overwrite`, large sums become noisy where they are, if they can, which saves a copy as large
    as the model; the clipped sum is then used up.

    Guarantees: one Gaussian release with noise multiplier σ, because the sum's L2 sensitivity is at most 1, rounding
    included, once every parameter is divided by its scale. The sum and the noise are added in float64; division and later
    rounding are post-processing.
    """
    if kind == "grid":
        exact = noisy_sums_on_grid(clipped, sigma, stream)
        rounded = {name: (total / divisor).to(dtype or total.dtype) for name, total in exact.items()}
        return PrivateGradient(sums=rounded, sigma=sigma)
    _checks.positive("sigma", sigma)
    if overwrite and isinstance(clipped.sums, EndToEnd) and clipped.scales is None:
        return PrivateGradient(
            sums=_all_noisy(clipped.sums, sigma * clipped.bound, stream, divisor, dtype), sigma=sigma
        )
    noisy = dict(clipped.sums)
    # The order in which noise is drawn depends on names and sizes alone: a seed gives the same however it was summed.
    few, by_scale = are_few(clipped.sums), dict[float, list[str]]()
    for name, total in clipped.sums.items():
        if few or total.numel() < _LARGE:
            by_scale.setdefault(sigma * clipped.scale(name), []).append(name)
    together = {scale: names for scale, names in by_scale.items() if few or len(names) > _SOME}
    joined = {name for names in together.values() for name in names}
    for name, total in clipped.sums.items():
        if name not in joined:
            scale, in_place = sigma * clipped.scale(name), overwrite and total.numel() >= _LARGE
            noisy[name] = _noisy(total, scale, stream, divisor, dtype or total.dtype, in_place)
    for scale, names in together.items():  # in one go: a nearly empty piece of noise takes as many calls as a full one
        totals = {name: noisy[name] for name in names}
        flat = np.concatenate([total.cpu().numpy().reshape(-1) for total in totals.values()], dtype=np.float64)
        means = _all_noisy(EndToEnd(torch.from_numpy(flat), totals), scale, stream, divisor, dtype).views
        noisy |= {name: mean.to(totals[name].device) for name, mean in means.items()}
    return PrivateGradient(sums=noisy, sigma=sigma)


def _all_noisy(
    sums: EndToEnd, scale: float, stream: RandomStream, divisor: float, dtype: torch.dtype | None
) -> EndToEnd:
    whole = sums.whole.double().numpy()
    stream.add_normals(whole, scale, 1 / divisor)
    return EndToEnd(torch.from_numpy(whole).to(dtype or torch.float64), sums.like)


def _noisy(
    total: Tensor, scale: float, stream: RandomStream, divisor: float, dtype: torch.dtype, overwrite: bool
) -> Tensor:
    """The total with noise. Before that it is not rounded: it keeps its type, or gets a wider one."""
    flat = total.reshape(-1).cpu()
    wider = torch.promote_types(torch.promote_types(flat.dtype, dtype), torch.float32)
    sums = flat.to(wider, copy=not overwrite)
    stream.add_normals(sums.numpy(), scale, 1 / divisor)
    return sums.to(dtype).view(total.shape).to(total.device)


# In large models: values from which on a tensor gets its noise by itself, and how many smaller ones are not worth joining.
_LARGE, _SOME = 1 << 15, 6
