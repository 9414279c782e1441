"""From pieces to the clipped sum: norms over all layers, one factor per example, one weighted sum per layer.

Guarantees (law 6). In exact arithmetic, factor × gradient has norm at most the clipping norm. What rounding adds:

- The norm and the sum read the same built numbers, or agree to a few units of rounding (see `pieces`). An example for
  which that is not so (squares that overflow or vanish, NaN) leaves the fast path: its gradient is built by itself in
  float64. Where terms of one example nearly cancel each other, over the positions of a sequence or between layers that
  share a weight, norm and sum are float64. One that is not finite adds nothing, and its rows are replaced by zeros before
  any product, so that it cannot spread.
- Sums over the batch are rounded to float32 only within blocks of at most 1024 terms (`blocks`), which are added in float64.
  The factor aims 6e-6 below the clipping norm (`HEADROOM`), and the stated bound is 1e-5 above it, which pays for the
  roundings of some sixteen examples. For larger batches the training step widens the bound by what the public, nominal size
  of a batch allows for: see `clipping.slack_of_a_batch`, which has the argument. It holds also where all gradients have one
  and the same entry, and nothing averages out. How a layer is summed depends on its shape alone: if it changed at some count
  of examples, one more would show all the roundings of the one way. (Of units the shape depends on the others' sizes, which
  is why `regrouping` has them in float64.)
- All this is about sums of given gradients. That an example's gradient is the same number at every place of a batch is
  made so for small chains (`narrow`) and assumed for the rest: forward and backward passes are batched, and PyTorch's
  products may differ there in the last bit. A ReLU that is at its edge for many examples at once makes more of that: see
  `docs/sharp-edges.md`.

Nothing above depends on realised, private quantities; the stated bound is a function of clip and dtype alone.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from apportion.training.clipping import ClippedSum, aimed_at, as_rows, clip_factors, flat_norms, scaling, stated_bound
from apportion.training.end_to_end import EndToEnd, are_few
from apportion.training.gradients.blocks import weighted_rows
from apportion.training.gradients.narrow import NarrowProducts, side_by_side
from apportion.training.gradients.outer import Products, joined
from apportion.training.gradients.pieces import CanWiden, Part, Piece, in_chunks, overall, zeroed

# Up to this, norms in the given precision come from squares that are ordinary numbers.
TRUSTED_UP_TO = {torch.float32: 1e15, torch.float64: 1e145}
# Below this clipping norm, squares of norms that matter would vanish.
SMALLEST_CLIP = {torch.float32: 1e-12, torch.float64: 1e-140}
ROWS_AT_ONCE = 2**24


def clip_and_sum_pieces(
    pieces: list[Piece],
    parameters: Mapping[str, Tensor],
    examples: int,
    clip: float,
    stability: float | None = None,
) -> ClippedSum:
    """`parameters` are the trainable ones by canonical name; those without a piece get a zero sum.

    With `stability`, gradients are normalised instead of cut: see `apportion.clipping.Automatic`. The list of pieces is
    emptied, so that what a layer has noted can be freed when its sum is there.
    """
    dtype = coarsest([p.dtype for p in parameters.values()] + [piece.dtype for piece in pieces])
    pieces[:] = _apart(pieces, parameters, examples)
    norms, floor = _norms(pieces, examples)
    dropped = _not_trusted(norms, floor, clip, dtype)
    if dropped is not None and floor is not None:
        for piece in pieces:
            if isinstance(piece, CanWiden):
                piece.widen(dropped)
        norms, floor = _norms(pieces, examples)
        dropped = _not_trusted(norms, floor, clip, dtype)
    aim = aimed_at(clip, dtype)
    factors = scaling(norms, aim, stability)  # whatever this is for those dropped
    if dropped is None:
        sums = _weighted(pieces, parameters, factors, None)
    else:
        sums = _weighted(list(pieces), parameters, factors, dropped)
        sums, careful = _with_care(pieces, parameters, dropped, aim, stability, sums)
        norms = norms.index_copy(0, dropped, careful)
        pieces.clear()
    return ClippedSum(sums=sums, norms=norms, bound=stated_bound(clip, dtype))


def _not_trusted(norms: Tensor, floor: Tensor | None, clip: float, dtype: torch.dtype) -> Tensor | None:
    """The examples that must go the careful way; None if there are none."""
    if clip < SMALLEST_CLIP[dtype]:
        return torch.arange(len(norms))
    # The largest of all is NaN if any is NaN, and then not below.
    if norms.shape[0] == 0 or (floor is None and norms.cpu().numpy().max() < TRUSTED_UP_TO[dtype]):
        return None
    trusted = norms < TRUSTED_UP_TO[dtype]
    if floor is not None:
        trusted &= norms >= floor
    return None if bool(trusted.all()) else (~trusted).nonzero().flatten()


def coarsest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    return torch.float64 if set(dtypes) <= {torch.float64} else torch.float32


def _apart(pieces: Sequence[Piece], parameters: Mapping[str, Tensor], examples: int) -> list[Piece]:
    """Pieces that own their parameters alone, so that squared norms add; those that share one (tied weights) become one."""
    if _all_distinct(pieces):
        return side_by_side(pieces)
    pieces = _joined_calls(pieces)
    alone: list[Piece] = []
    shared: list[Piece] = []
    for piece in pieces:
        others = [part for other in pieces if other is not piece for part in other.parts]
        overlapping = any(part.overlaps(other) for part in piece.parts for other in others)
        (shared if overlapping else alone).append(piece)
    names = {part.name for piece in shared for part in piece.parts}
    if not names:
        return alone
    # A parameter has all its blocks in one place, shared or not.
    shared += [piece for piece in alone if any(part.name in names for part in piece.parts)]
    kept = [piece for piece in alone if piece not in shared]
    return [*kept, Together(shared, parameters, examples)]


class Together:
    """Pieces that share parameters. Their gradients are built, and added up, in float64: what one piece adds may cancel what
    another does, and of large terms each by itself in float32 roundings would be left, of which the norm knows nothing."""

    def __init__(self, pieces: Sequence[Piece], parameters: Mapping[str, Tensor], examples: int) -> None:
        self._pieces, self._examples = pieces, examples
        names = dict.fromkeys(part.name for piece in pieces for part in piece.parts)
        self.parts = tuple([Part(name, parameters[name].shape) for name in names])

    @property
    def dtype(self) -> torch.dtype:
        return coarsest([piece.dtype for piece in self._pieces])

    def _chunks(self) -> list[Tensor]:
        return in_chunks(torch.arange(self._examples), rows_at_once(self._pieces))

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        return [torch.cat([flat_norms(instantiated(self._pieces, rows)) for rows in self._chunks()])], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        total: dict[Part, Tensor] = {}
        for rows in self._chunks():
            bad = None if dropped is None else torch.isin(rows.to(dropped.device), dropped).nonzero().flatten()
            for part, built in self.instantiate(rows).items():
                addition = weighted_rows(factors[rows], zeroed(built, bad))
                total[part] = total[part] + addition if part in total else addition
        return total

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        built = instantiated(self._pieces, rows)
        return {part: built[part.name] for part in self.parts}


def _all_distinct(pieces: Sequence[Piece]) -> bool:
    names = [part.name for piece in pieces for part in piece.parts]
    return len(set(names)) == len(names)


def _joined_calls(pieces: Sequence[Piece]) -> list[Piece]:
    """Calls of one matrix layer become one call on a longer sequence; everything else stays as it is."""
    by_layer: dict[object, list[Products]] = {}
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Products):
            by_layer.setdefault(piece.parts, []).append(piece)
        else:
            result.append(piece)
    for calls in by_layer.values():
        one = joined(calls) if len(calls) > 1 else calls[0]
        result += calls if one is None else [one]
    return result


def _norms(pieces: Sequence[Piece], examples: int) -> tuple[Tensor, Tensor | None]:
    norms: list[Tensor] = []
    floors: list[Tensor] = []
    for piece in pieces:
        own, floor = piece.norms()
        norms += own
        if floor is not None:
            floors.append(floor)
    if not norms:
        return torch.zeros(examples, dtype=torch.float64), None
    return overall(_alike(norms)), overall(_alike(floors)) if floors else None


def _alike(tensors: list[Tensor]) -> list[Tensor]:
    if len({tensor.dtype for tensor in tensors}) == 1:
        return tensors
    return [tensor.double() for tensor in tensors]


def rows_at_once(pieces: Sequence[Piece]) -> int:
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
    pieces: list[Piece], parameters: Mapping[str, Tensor], factors: Tensor, dropped: Tensor | None
) -> Mapping[str, Tensor]:
    """Empties `pieces`."""
    if dropped is not None:
        factors = factors.index_fill(0, dropped, 0)
    only = pieces[0] if len(pieces) == 1 else None
    if isinstance(only, NarrowProducts) and only.device.type == "cpu" and only.names == list(parameters):
        pieces.clear()
        return EndToEnd(only.end_to_end(factors, dropped), parameters)
    on_cpu = all(value.device.type == "cpu" for value in parameters.values())
    if on_cpu and are_few(parameters) and _all_distinct(pieces):
        return _end_to_end(pieces, parameters, factors, dropped)
    sums: dict[str, Tensor] = {}
    while pieces:
        for part, block in pieces.pop(0).weighted(factors, dropped).items():
            if part.length is None and part.name not in sums:
                sums[part.name] = block.contiguous()
                continue
            total = sums.get(part.name)
            # Not in place: the first block may be a view of something.
            sums[part.name] = block.new_zeros(part.shape) if total is None else total.clone()
            part.add_into(sums[part.name], block)
    return {name: sums[name] if name in sums else torch.zeros_like(value) for name, value in parameters.items()}


def _end_to_end(
    pieces: list[Piece], parameters: Mapping[str, Tensor], factors: Tensor, dropped: Tensor | None
) -> Mapping[str, Tensor]:
    """Into memory that is there before: sums that stay, between what comes and goes, would make holes in it."""
    sums = EndToEnd(torch.zeros(sum(value.numel() for value in parameters.values()), dtype=torch.float64), parameters)
    while pieces:
        for part, block in pieces.pop(0).weighted(factors, dropped).items():
            part.within(sums[part.name]).copy_(block)
    return sums


def _with_care(
    pieces: Sequence[Piece],
    parameters: Mapping[str, Tensor],
    rows: Tensor,
    clip: float,
    stability: float | None,
    given: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], Tensor]:
    """The given sums and the clipped gradients of these rows, whose norms are returned too."""
    sums, norms = dict(given), []
    for some in in_chunks(rows, rows_at_once(pieces)):
        # Rounded to the parameter's precision, so that what overflows there counts as infinite, as it would in training.
        built = {name: g.to(parameters[name].dtype).double() for name, g in instantiated(pieces, some).items()}
        norms.append(flat_norms(built))
        factors = clip_factors(norms[-1], clip, stability)
        good = factors > 0
        for name, gradients in built.items():
            addition = factors[good] @ as_rows(gradients[good])
            sums[name] = sums[name].double() + addition.reshape(sums[name].shape)
    return sums, torch.cat(norms)
