"""Gradients of tables: each example touches a few rows."""

from itertools import pairwise

import torch
from torch import Tensor

from apportion.training.gradients.blocks import TERMS
from apportion.training.gradients.pieces import Part, row_squares, zeroed

# Smaller tables are summed in float64.
SMALL_TABLE = 2**18


class RowLookup:
    """Example i used the table's rows `ids[i]` (examples, T) and got `gradient[i]` (examples, T, width) there.

    Rows that one example used more than once are added up first, sparsely: never one-hot, never examples × table.
    """

    def __init__(self, table: Part, ids: Tensor, gradient: Tensor) -> None:
        self.table, self.ids, self.gradient = table, ids, gradient
        self.entries: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.table,)

    @property
    def dtype(self) -> torch.dtype:
        return self.gradient.dtype

    def _built(self) -> tuple[Tensor, Tensor, Tensor]:
        """Example (n,), table row (n,), gradient (n, width): each pair (example, row) once."""
        if self.entries is None:
            examples, T = self.ids.shape
            size = self.table.shape[0]
            owner = torch.arange(examples, device=self.ids.device).repeat_interleave(T)
            rows = self.gradient.reshape(examples * T, self.gradient.shape[-1])
            row = self.ids.flatten()
            if T > 1:
                keys, slot = torch.unique(owner * size + row, return_inverse=True)
                rows = rows.new_zeros((len(keys), rows.shape[1])).index_add_(0, slot, rows)
                owner, row = keys.div(size, rounding_mode="floor"), keys.remainder(size)
            self.entries = owner, row, rows
        return self.entries

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        owner, _, rows = self._built()
        squares = row_squares(rows)
        if self.ids.shape[1] == 1:
            return [squares.sqrt_()], None
        total = squares.new_zeros(len(self.ids), dtype=torch.float64)  # of many squares, one after the other
        return [total.index_add_(0, owner, squares.double()).sqrt_()], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        owner, row, rows = self._built()
        if dropped is not None:
            rows = zeroed(rows, torch.isin(owner, dropped).nonzero().flatten())
        scaled = rows * factors.to(rows.dtype)[owner, None]
        small = self.table.shape.numel() <= SMALL_TABLE
        if small or len(self.ids) <= TERMS:
            scaled = scaled.double() if small else scaled
            return {self.table: scaled.new_zeros(self.table.shape).index_add_(0, row, scaled)}
        # All examples may have used one row: blocks of them are added in float64, but only the rows that were used.
        used, slot = torch.unique(row, return_inverse=True)
        total = scaled.new_zeros(len(used), rows.shape[1], dtype=torch.float64)
        starts = torch.arange(0, len(self.ids), TERMS, device=owner.device)
        cuts = [*torch.searchsorted(owner, starts).tolist(), len(owner)]
        for start, end in pairwise(cuts):
            total += scaled.new_zeros(total.shape).index_add_(0, slot[start:end], scaled[start:end])
        return {self.table: total.new_zeros(self.table.shape).index_copy_(0, used, total)}

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        ids, gradient = self.ids[rows], self.gradient[rows].double()
        owner = torch.arange(len(rows), device=ids.device).repeat_interleave(ids.shape[1])
        dense = gradient.new_zeros((len(rows), *self.table.shape))
        dense.index_put_((owner, ids.flatten()), gradient.flatten(0, 1), accumulate=True)
        return {self.table: dense}
