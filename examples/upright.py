"""Slanted handwriting set upright: every image by itself, so that it costs no privacy.

The ink's centre moves to the middle, and rows are pushed sideways until height and sideways place of the ink are no longer
correlated. That moments of the ink tell its slant is old knowledge among readers of handwriting (Y. LeCun, L. Bottou,
Y. Bengio and P. Haffner, *Gradient-Based Learning Applied to Document Recognition*, 1998, compare models with such images).
"""

import torch
from torch import Tensor

_LEAST = 1e-6  # of ink and of height: an empty image stays as it is


def upright(images: Tensor, side: int = 28) -> Tensor:
    """(records, side · side) or (records, side, side) pixels ≥ 0 → (records, side, side), black where nothing was."""
    pixels = images.reshape(-1, side, side).float()
    places = torch.arange(side, dtype=torch.float32) - (side - 1) / 2
    ink = pixels.sum((1, 2)).clamp(min=_LEAST)
    down, right = ((pixels.sum(axis) * places).sum(1) / ink for axis in (2, 1))
    below, beside = (places - centre[:, None] for centre in (down, right))
    height = (pixels.sum(2) * below**2).sum(1) / ink
    slant = torch.einsum("nij,ni,nj->n", pixels, below, beside) / ink / height.clamp(min=_LEAST)
    rows, columns = torch.meshgrid(places, places, indexing="ij")
    down, right, slant = (numbers[:, None, None] for numbers in (down, right, slant))
    source = torch.stack([columns + right + slant * rows, rows + down], -1) * (2 / side)
    return torch.nn.functional.grid_sample(pixels[:, None], source, align_corners=False)[:, 0]
