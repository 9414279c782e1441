"""Pieces of records made into pieces of units: a unit with several records is an example that used its layers several times.

Units of about equal size go together, padded with zeros to the largest of them: a linear layer on vectors becomes one on
sequences, and nothing has to be built that need not be built for examples either.

All in float64. Records of a unit may cancel each other, and in float32 what is left would depend on how they are added up,
which depends on who else is there: on the largest unit of a group, and on where a batch is split.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from apportion.training.gradients.lookup import RowLookup
from apportion.training.gradients.outer import BuiltProducts, GramProducts, VectorProducts, outer_products
from apportion.training.gradients.pieces import Instantiated, Piece

Regroupable = VectorProducts | BuiltProducts | GramProducts | Instantiated | RowLookup


@dataclass(frozen=True, slots=True)
class Group:
    """Units of about equal size: `places` (units, most records) are row numbers, valid where `present`.

    Gradients are multiplied by `weights` (units,).
    """

    places: Tensor
    present: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.places)

    def only(self, chosen: Tensor) -> "Group":
        """Those units for which `chosen` (units,) is true."""
        return Group(self.places[chosen], self.present[chosen], self.weights[chosen])

    def padded(self, rows: Tensor) -> Tensor:
        """(records, …) → (units, most records, …). By replacement, because 0 × NaN is NaN."""
        absent = ~self.present
        return rows[self.places].masked_fill_(absent.view(*absent.shape, *(1 for _ in rows.shape[1:])), 0)

    def padded_gradient(self, rows: Tensor) -> Tensor:
        return self.padded(rows).double().mul_(_column(self.weights, rows.dim() + 1))

    def added(self, rows: Tensor) -> Tensor:
        """(records, …) → (units, …): the weighted sum of each unit's rows."""
        owner = torch.arange(len(self), device=rows.device).repeat_interleave(self.present.sum(1))
        present = rows[self.places[self.present]].double()
        total = present.new_zeros((len(self), *rows.shape[1:])).index_add_(0, owner, present)
        return total.mul_(_column(self.weights, rows.dim()))


def groups_of(starts: Tensor, sizes: Tensor, averaged: bool) -> Iterator[Group]:
    """Units with records at `starts` … `starts` + `sizes`, none of them empty, by powers of two of their sizes."""
    classes = torch.ceil(torch.log2(sizes.double()))
    for one in set(classes.tolist()):
        members = classes == one
        own_starts, own_sizes = starts[members], sizes[members]
        steps = torch.arange(int(own_sizes.max()), device=sizes.device)
        present = steps < own_sizes[:, None]
        places = torch.where(present, own_starts[:, None] + steps, torch.zeros_like(present, dtype=torch.int64))
        weights = 1 / own_sizes.double() if averaged else torch.ones_like(own_sizes, dtype=torch.float64)
        yield Group(places, present, weights)


def can_regroup(pieces: Sequence[Piece]) -> bool:
    return all(isinstance(piece, Regroupable) and piece.parts for piece in pieces)


def regrouped(piece: Piece, group: Group) -> Piece:
    match piece:
        case VectorProducts() if group.places.shape[1] == 1:
            inputs, gradient = group.padded(piece.inputs).double()[:, 0], group.padded_gradient(piece.gradient)[:, 0]
            return VectorProducts(piece.weight, piece.bias, inputs, gradient)
        case VectorProducts():
            inputs, gradient = group.padded(piece.inputs).double(), group.padded_gradient(piece.gradient)
            return outer_products(piece.weight, piece.bias, inputs, gradient)
        case GramProducts():
            inputs, gradient = group.padded(piece.inputs).double(), group.padded_gradient(piece.gradient)
            made = outer_products(piece.weight, piece.bias, inputs.flatten(1, 2), gradient.flatten(1, 2), piece.unpack)
            made.bias_rows = None if piece.bias_rows is None else group.added(piece.bias_rows)  # as when a unit is cut
            return made
        case BuiltProducts():
            built, bias = (None if rows is None else group.added(rows) for rows in (piece.built, piece.bias_rows))
            return BuiltProducts(piece.weight, piece.bias, built, bias, piece.unpack)
        case Instantiated():
            return Instantiated({part: group.added(rows) for part, rows in piece.gradients.items()})
        case RowLookup():
            ids, gradient = group.padded(piece.ids), group.padded_gradient(piece.gradient)
            return RowLookup(piece.table, ids.flatten(1, 2), gradient.flatten(1, 2))
        case _:
            raise AssertionError(f"{type(piece).__name__} cannot be regrouped")


def _column(values: Tensor, dimensions: int) -> Tensor:
    return values.view(-1, *(1 for _ in range(dimensions - 1)))
