"""From pieces to the clipped sum: norms over all layers, one factor per example, one weighted sum per layer.

Guarantees (law 6). In exact arithmetic, factor × gradient has norm at most the clipping norm. What rounding adds:

- The norm and the sum read the same built numbers, or agree to a few units of rounding (see `pieces`). An example for
  which that is not so (squares that overflow or vanish, Gram matrices that cancel, NaN) leaves the fast path: its
  gradient is built by itself in float64. One that is not finite adds nothing, and its rows are replaced by zeros before
  any product, so that it cannot spread.
- Sums over the batch are rounded to float32 only within blocks of at most 512 examples (32 or 64 where layers are
  small); blocks are added in float64. A block's sum is at most 512·C long, so storing it moves it by at most
  512·2⁻²⁵·C = 1.5e-5·C, once in each of two neighbouring batches: 3e-5·C, whatever the size of the batch. The factor
  aims `HEADROOM` = 3e-5 below the clipping norm and so pays for it. The roundings on the way to a block's sum have signs
  that have nothing to do with the example in question: they add to the length of a difference by their square and by
  their accidental component along the example only, some 1e-6·C, for which the stated bound has 1e-5·C.

Nothing above depends on realised, private quantities; the stated bound is a function of clip and dtype alone.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from apportion.training.clipping import ClippedSum, clip_factors, flat_norms, stated_bound
from apportion.training.gradients.outer import OuterProducts, joined
from apportion.training.gradients.pieces import Piece, in_chunks

# Between these, squares of norms in the given precision are ordinary numbers.
TRUSTED_UP_TO = {torch.float32: 1e30, torch.float64: 1e290}
# Below this clipping norm, squares of norms that matter would vanish.
SMALLEST_CLIP = {torch.float32: 1e-12, torch.float64: 1e-140}
HEADROOM = {torch.float32: 3e-5, torch.float64: 2e-14}
ROWS_AT_ONCE = 2**24


def clip_and_sum_pieces(
    pieces: Sequence[Piece], parameters: Mapping[str, Tensor], examples: int, clip: float
) -> ClippedSum:
    """`parameters` are the trainable ones by canonical name; those without a piece get a zero sum."""
    dtype = coarsest([*(p.dtype for p in parameters.values()), *(piece.dtype for piece in pieces)])
    alone, shared = _apart(_joined_calls(pieces))
    squares, floor = _squares(alone, shared, examples, dtype)
    norms = squares.double().sqrt()
    trusted = (squares < TRUSTED_UP_TO[dtype]) & (squares >= floor)
    dropped = None
    if clip < SMALLEST_CLIP[dtype] or not bool(trusted.all()):
        dropped = torch.arange(examples) if clip < SMALLEST_CLIP[dtype] else (~trusted).nonzero().flatten()
    aim = clip * (1 - HEADROOM[dtype])
    factors = clip_factors(norms, aim)
    sums = _weighted(alone + shared, parameters, factors, dropped)
    if dropped is not None:
        norms = norms.index_copy(0, dropped, _add_with_care(alone + shared, parameters, dropped, aim, sums))
    return ClippedSum(sums=sums, norms=norms, bound=stated_bound(clip, dtype))


def coarsest(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    return torch.float64 if all(dtype == torch.float64 for dtype in dtypes) else torch.float32


def _joined_calls(pieces: Sequence[Piece]) -> list[Piece]:
    """Calls of one matrix layer become one call on a longer sequence; everything else stays as it is."""
    by_layer: dict[object, list[OuterProducts]] = {}
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, OuterProducts):
            by_layer.setdefault((piece.parts, piece.inputs.shape[2], piece.gradient.shape[2]), []).append(piece)
        else:
            result.append(piece)
    return result + [calls[0] if len(calls) == 1 else joined(calls) for calls in by_layer.values()]


def _apart(pieces: Sequence[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Pieces that own their parameters alone, so that squared norms add; and those that share one (tied weights)."""
    names = [part.name for piece in pieces for part in piece.parts]
    if len(set(names)) == len(names):
        return list(pieces), []
    alone: list[Piece] = []
    shared: list[Piece] = []
    for piece in pieces:
        others = [part for other in pieces if other is not piece for part in other.parts]
        overlapping = any(part.overlaps(other) for part in piece.parts for other in others)
        (shared if overlapping else alone).append(piece)
    return alone, shared


def _squares(
    alone: Sequence[Piece], shared: Sequence[Piece], examples: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | float]:
    total: Tensor = torch.zeros(examples, dtype=dtype)
    floor: Tensor | float = 0.0
    for piece in alone:
        squares, least = piece.squares()
        total = total + squares
        floor = floor if least is None else floor + least
    for start in range(0, examples if shared else 0, step := _rows_at_once(shared)):
        rows = torch.arange(start, min(start + step, examples))
        total[rows] += flat_norms(instantiated(shared, rows)).square().to(total.dtype)
    return total, floor


def _rows_at_once(pieces: Sequence[Piece]) -> int:
    entries = sum(part.shape.numel() for piece in pieces for part in piece.parts)
    return max(1, ROWS_AT_ONCE // max(1, entries))


def instantiated(pieces: Sequence[Piece], rows: Tensor) -> dict[str, Tensor]:
    """Parameter name → (rows, *shape) in float64, over all calls."""
    total: dict[str, Tensor] = {}
    for piece in pieces:
        for part, gradients in piece.instantiate(rows).items():
            if part.name not in total:
                total[part.name] = gradients.new_zeros((len(rows), *part.shape))
            part.add_into(total[part.name], gradients, axis=1)
    return total


def _weighted(
    pieces: Sequence[Piece], parameters: Mapping[str, Tensor], factors: Tensor, dropped: Tensor | None
) -> dict[str, Tensor]:
    if dropped is not None:
        factors = factors.index_fill(0, dropped, 0)
    sums: dict[str, Tensor] = {}
    for piece in pieces:
        for part, block in piece.weighted(factors, dropped).items():
            if part.length is None and part.name not in sums:
                sums[part.name] = block
            else:
                total = sums.get(part.name)
                sums[part.name] = block.new_zeros(part.shape) if total is None else total.clone()
                part.add_into(sums[part.name], block)
    missing = {name: parameter.new_zeros(parameter.shape) for name, parameter in parameters.items() if name not in sums}
    return {name: (sums | missing)[name].detach() for name in parameters}


def _add_with_care(
    pieces: Sequence[Piece], parameters: Mapping[str, Tensor], rows: Tensor, clip: float, sums: dict[str, Tensor]
) -> Tensor:
    """Adds the clipped gradients of these rows to the sums, and returns their norms."""
    norms = []
    for some in in_chunks(rows, _rows_at_once(pieces)):
        # Rounded to the parameter's precision, so that what overflows there counts as infinite, as it would in training.
        built = {name: g.to(parameters[name].dtype).double() for name, g in instantiated(pieces, some).items()}
        norms.append(flat_norms(built))
        factors = clip_factors(norms[-1], clip)
        good = factors > 0
        for name, gradients in built.items():
            addition = (
                factors[good] @ gradients[good].flatten(1) if gradients.dim() > 1 else factors[good] @ gradients[good]
            )
            sums[name] = sums[name].double() + addition.reshape(sums[name].shape)
    return torch.cat(norms)
