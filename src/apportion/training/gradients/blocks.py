"""Sums over examples, in blocks: how much is rounded off must not grow with the batch."""

import torch
from torch import Tensor

from apportion.training.clipping import LONGEST_BLOCK

# So many terms are added up one after the other, in the layer's precision; the sums of such blocks are added in float64.
TERMS = LONGEST_BLOCK
# So many entries of a block's sum are widened to float64 at once.
ENTRIES_AT_ONCE = 2**16


def summed_products(left: Tensor, right: Tensor) -> Tensor:
    """Σ over examples (and positions) of left ⊗ right: (examples, …, n), (examples, …, m) → (n, m).

    Rounded to the tensors' precision only within blocks of `TERMS`, and where two blocks are added, which rounds once like
    storing them; more are added in float64. What is done depends on shapes alone.
    """
    dtype = torch.promote_types(left.dtype, right.dtype)
    left, right = (side.to(dtype).flatten(0, -2) for side in (left, right))
    first, *others = (slice(start, start + TERMS) for start in range(0, max(1, len(left)), TERMS))
    total = _product(left[first], right[first])
    if len(others) > 1:
        total = total.double()
    for rows in others:
        _add_into(total, _product(left[rows], right[rows]))
    return total


def weighted_rows(factors: Tensor, rows: Tensor) -> Tensor:
    """Σ over examples of factor × row: (examples,), (examples, *shape) → (*shape), rounded as by `summed_products`."""
    weights = factors[:, None].to(rows.dtype)  # otherwise the products, and with them the rows, are float64
    return summed_products(weights, rows.reshape(len(rows), rows.shape[1:].numel())).view(rows.shape[1:])


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Long rows in the result are quicker, so the side with fewer columns goes first."""
    return left.T @ right if left.shape[1] <= right.shape[1] else (right.T @ left).T


def _add_into(total: Tensor, product: Tensor) -> None:
    """A few rows at a time: what is added is copied to the total's precision first, whole it would be as large."""
    rows = max(1, ENTRIES_AT_ONCE // max(1, product.shape[1]))
    for some, addition in zip(torch.split(total, rows), torch.split(product, rows), strict=True):
        some += addition
