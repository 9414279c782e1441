"""Gradients of units that consist of several records: added up, or averaged, and clipped as one.

Units whose records have all come at once are clipped like examples, from regrouped pieces. For a unit that a split of the
batch cuts in two, and for layers without a rule, per-record gradients are built a few at a time and added up in float64;
such a unit is clipped when its last record has come. So is, one by one, a unit whose gradient is so large that numbers of
the model's own precision may overflow: whether it counts as infinite must not depend on where a batch is split, which is
a matter of how many others there are.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.clipping import Clipping
from apportion.errors import RunError
from apportion.training.clipping import ClippedSum, PerExampleGradients, clip_and_sum
from apportion.training.gradients.by_layer import clip_pieces
from apportion.training.gradients.narrow import one_by_one
from apportion.training.gradients.pieces import Piece, in_chunks
from apportion.training.gradients.regrouping import Group, can_regroup, groups_of, regrouped
from apportion.training.gradients.summation import ROWS_AT_ONCE, TRUSTED_UP_TO, coarsest, instantiated


class UnitSums:
    """Takes the gradients of a batch's records in order; `sizes` says how many consecutive ones are each unit's.

    Guarantees: those of `ClippedSum`, for units. Records of one unit touch that unit's sum only, so that NaN does not
    spread. The stated bound is the one of the model's own precision, as for examples.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        sizes: Sequence[int] | NDArray[np.int64],
        *,
        clip: float,
        clipping: Clipping,
        averaged: bool,
    ) -> None:
        self._parameters, self._clip, self._clipping, self._averaged = parameters, clip, clipping, averaged
        self._dtype = coarsest([parameter.dtype for parameter in parameters.values()])
        self._sizes = torch.as_tensor(np.asarray(sizes, dtype=np.int64))
        self._owners = torch.repeat_interleave(torch.arange(len(self._sizes)), self._sizes)
        self._ends = torch.cumsum(self._sizes, 0)
        self._seen = 0
        self._unfinished: dict[str, Tensor] | None = None  # (1, *shape): the unit whose records have not all come
        self._total: ClippedSum | None = None

    @property
    def at_once(self) -> int:
        """How many records' gradients to build at a time."""
        return max(1, ROWS_AT_ONCE // max(1, sum(parameter.numel() for parameter in self._parameters.values())))

    def add_pieces(self, pieces: Sequence[Piece], records: int) -> None:
        pieces = one_by_one(pieces)
        first, stop = self._whole_units(records) if can_regroup(pieces) else (0, 0)
        if first == stop:
            self._add_built(pieces, torch.arange(records))
            return
        start = self._seen
        begin = int(self._ends[first] - self._sizes[first]) - start
        end = int(self._ends[stop - 1]) - start
        self._add_built(pieces, torch.arange(begin))
        self._add_whole(pieces, first, stop, start)
        self._add_built(pieces, torch.arange(end, records))

    def _whole_units(self, records: int) -> tuple[int, int]:
        """The range of units all of whose records are among the next ones."""
        starts = self._ends - self._sizes
        first = int(torch.searchsorted(starts, self._seen))
        stop = int(torch.searchsorted(self._ends, self._seen + records, right=True))
        return first, max(first, stop)

    def _add_built(self, pieces: Sequence[Piece], rows: Tensor) -> None:
        for some in in_chunks(rows, self.at_once):
            self.add(instantiated(pieces, some), len(some))

    def _add_whole(self, pieces: Sequence[Piece], first: int, stop: int, start: int) -> None:
        sizes = self._sizes[first:stop]
        starts = self._ends[first:stop] - sizes - start
        device = next(iter(self._parameters.values())).device
        some = sizes > 0
        for group in groups_of(starts[some].to(device), sizes[some].to(device), self._averaged):
            clipped = self._clipped_group(pieces, group)
            trusted = clipped.norms < TRUSTED_UP_TO[self._dtype]  # NaN is not
            if bool(trusted.all()):
                self._include(clipped)
                continue
            if bool(trusted.any()):
                self._include(self._clipped_group(pieces, group.only(trusted)))
            for places, present in zip(*(own[~trusted] for own in (group.places, group.present)), strict=True):
                self._add_alone(pieces, places[present].cpu(), int(self._owners[start + int(places[0])]))
        self._seen = int(self._ends[stop - 1])

    def _clipped_group(self, pieces: Sequence[Piece], group: Group) -> ClippedSum:
        own = [regrouped(piece, group) for piece in pieces]
        return clip_pieces(own, self._parameters, len(group), self._clip, self._clipping)

    def _add_alone(self, pieces: Sequence[Piece], rows: Tensor, unit: int) -> None:
        """One unit, whose records are in these rows, as if it had been cut."""
        sums = {name: p.new_zeros((1, *p.shape), dtype=torch.float64) for name, p in self._parameters.items()}
        for some in in_chunks(rows, self.at_once):
            for name, gradients in instantiated(pieces, some).items():
                sums[name] += gradients.sum(0)
        self._clip_units(sums, unit, 1)

    def add(self, gradients: Mapping[str, Tensor], records: int) -> None:
        """The next records, (records, *shape) for every parameter that they touch."""
        owners = self._owners[self._seen : self._seen + records]
        if len(owners) < records:
            raise RunError(f"a batch holds more records than the {len(self._owners)} that its units have")
        if not records:
            return
        first, last = int(owners[0]), int(owners[-1])
        sums = {}
        for name, parameter in self._parameters.items():
            total = parameter.new_zeros((last - first + 1, *parameter.shape), dtype=torch.float64)
            if name in gradients:
                total.index_add_(0, (owners - first).to(total.device), gradients[name].double())
            if self._unfinished is not None:
                total[:1] += self._unfinished[name]
            sums[name] = total
        self._seen += records
        complete = last - first + int(self._seen == int(self._ends[last]))
        self._unfinished = None
        if complete <= last - first:
            self._unfinished = {name: total[-1:].clone() for name, total in sums.items()}
        self._clip_units({name: total[:complete] for name, total in sums.items()}, first, complete)

    def _clip_units(self, sums: Mapping[str, Tensor], first: int, units: int) -> None:
        if not units:
            return
        if self._averaged:
            sizes = self._sizes[first : first + units].clamp(min=1)
            sums = {name: total / _column(sizes, total) for name, total in sums.items()}
        self._include(self._clipped(sums))

    def _include(self, some: ClippedSum) -> None:
        self._total = some if self._total is None else self._total.plus(some)

    def _clipped(self, sums: Mapping[str, Tensor]) -> ClippedSum:
        return clip_and_sum(PerExampleGradients(gradients=sums), self._clip, self._clipping, self._dtype)

    def result(self) -> ClippedSum:
        if self._seen != len(self._owners):
            raise RunError(f"a batch's units have {len(self._owners)} records, but only {self._seen} came")
        if self._total is None:
            return self._clipped({name: p.new_zeros((0, *p.shape)) for name, p in self._parameters.items()})
        return self._total


def _column(sizes: Tensor, total: Tensor) -> Tensor:
    return sizes.to(total).reshape(-1, *(1 for _ in total.shape[1:]))
