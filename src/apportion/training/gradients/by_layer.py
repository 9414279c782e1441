"""Clipping of pieces in every mode. Per layer, each layer is clipped by itself, as if it were the whole model."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from apportion.clipping import Clipping, PerLayer
from apportion.training.clipping import ClippedSum, flat_norms, stability_of, together
from apportion.training.gradients.narrow import one_by_one
from apportion.training.gradients.pieces import CanWiden, Part, Piece, in_chunks
from apportion.training.gradients.summation import clip_and_sum_pieces, rows_at_once
from apportion.training.layers import Layer, layers_of


def clip_pieces(
    pieces: list[Piece], parameters: Mapping[str, Tensor], examples: int, clip: float, clipping: Clipping
) -> ClippedSum:
    """In the way of `clipping`. The list of pieces may be emptied."""
    if isinstance(clipping, PerLayer):
        return clip_and_sum_by_layer(pieces, parameters, examples, layers_of(parameters, clipping, clip))
    return clip_and_sum_pieces(pieces, parameters, examples, clip, stability_of(clipping))


def clip_and_sum_by_layer(
    pieces: Sequence[Piece], parameters: Mapping[str, Tensor], examples: int, layers: Sequence[Layer]
) -> ClippedSum:
    """Guarantees: those of `clip_and_sum_pieces` for every layer; see `together` for all of them."""
    by_layer = {}
    pieces = one_by_one(pieces)
    for layer in layers:
        own = {name: parameters[name] for name in layer.parameters}
        by_layer[layer.label] = clip_and_sum_pieces(_within(pieces, own, examples), own, examples, layer.clip)
    return together(by_layer)


def _within(pieces: Sequence[Piece], own: Mapping[str, Tensor], examples: int) -> list[Piece]:
    found: list[Piece] = []
    for piece in pieces:
        inside = [part.name in own for part in piece.parts]
        if any(inside):
            found.append(piece if all(inside) else PartOfPiece(piece, own, examples))
    return found


class PartOfPiece:
    """Of a piece that reaches over several layers (tied weights, layers without a rule), the parts in one of them.

    Gradients are built for the norms; sums are the piece's own.
    """

    def __init__(self, piece: Piece, own: Mapping[str, Tensor], examples: int) -> None:
        self.piece, self.own, self.examples = piece, own, examples

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for part in self.piece.parts if part.name in self.own)

    @property
    def dtype(self) -> torch.dtype:
        return self.piece.dtype

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        chunks = in_chunks(torch.arange(self.examples), rows_at_once([self.piece]))
        built = [{str(i): rows for i, rows in enumerate(self.instantiate(some).values())} for some in chunks]
        return [torch.cat([flat_norms(some) for some in built])], self.piece.norms()[1]

    def widen(self, rows: Tensor) -> None:
        if isinstance(self.piece, CanWiden):
            self.piece.widen(rows)

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        return self._own(self.piece.weighted(factors, dropped))

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return self._own(self.piece.instantiate(rows))

    def _own(self, tensors: Mapping[Part, Tensor]) -> dict[Part, Tensor]:
        return {part: tensor for part, tensor in tensors.items() if part.name in self.own}
