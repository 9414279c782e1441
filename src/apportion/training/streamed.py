"""Records that are not in memory: mapped arrays, data sets that make a record at a time, and tables on disk."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from apportion import _checks
from apportion.data import StreamedTable
from apportion.data.rows import Rows, Sorted
from apportion.errors import DataError
from apportion.training.records import Gathered, Indices, Part, Place, Records, pieces, require_one_length

_ROWS = 1 << 16


class MappedArrays(Records):
    """Numpy arrays of which at least one is mapped from a file (`numpy.memmap`) and stays there."""

    keeps_order = True

    def __init__(self, inputs: NDArray[Any], targets: NDArray[Any], model: torch.nn.Module) -> None:
        self._arrays, self._place = (inputs, targets), Place(model)
        require_one_length(inputs.shape, targets.shape)

    def __len__(self) -> int:
        return len(self._arrays[0])

    @property
    def like(self) -> Part:
        return self._read(np.empty(0, np.int64))

    def labels(self) -> Tensor:
        return torch.from_numpy(np.array(self._arrays[1]))

    def _read(self, indices: Indices) -> Part:
        """Neighbours on disk are read together, and then put into the order that was asked for."""
        order = np.argsort(indices, kind="stable")
        back = np.argsort(order, kind="stable")
        inputs, targets = (torch.from_numpy(np.array(array[indices[order]])[back]) for array in self._arrays)
        return self._place.part((inputs, targets))

    def epoch(self, batches: Iterable[Indices], at_once: int | None) -> Iterator[Iterable[Part]]:
        for indices in batches:
            yield Gathered(self._read, indices, at_once)

    def in_order(self, at_once: int) -> Iterator[Part]:
        yield from (self._read(np.arange(len(self))[rows]) for rows in pieces(len(self), at_once))


class TableOnDisk(Records):
    """A table made by `stream_table`. Once per epoch its rows are sorted into the epoch's batches, on disk."""

    def __init__(self, table: StreamedTable, model: torch.nn.Module) -> None:
        self._rows, self._place = table.rows, Place(model)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def like(self) -> Part:
        return self._part(np.empty(0, self._rows.dtype))

    def labels(self) -> Tensor:
        targets = np.empty(len(self), self._rows.dtype["target"])
        for first, rows in self._rows.pieces(_ROWS):
            targets[first : first + len(rows)] = rows["target"]
        return torch.from_numpy(targets)

    def _part(self, rows: Rows) -> Part:
        inputs, targets = (torch.from_numpy(np.ascontiguousarray(rows[name])) for name in ("inputs", "target"))
        return self._place.part((inputs, targets))

    def epoch(self, batches: Iterable[Indices], at_once: int | None) -> Iterator[Iterable[Part]]:
        drawn = list(batches)
        ordered = Sorted(self._rows, drawn)
        count = len(drawn)
        del drawn, batches
        try:
            for number in range(count):
                yield self._parts(ordered, number, at_once)
        finally:
            ordered.close()

    def _parts(self, ordered: Sorted, batch: int, at_once: int | None) -> Iterator[Part]:
        for rows in pieces(ordered.size(batch), at_once):
            yield self._part(ordered.read(batch, rows.start, rows.stop))

    def in_order(self, at_once: int) -> Iterator[Part]:
        for rows in pieces(len(self), at_once):
            yield self._part(self._rows.read(rows.start, rows.stop))


class RecordByRecord(Records):
    """A map-style `torch.utils.data.Dataset` of pairs (input, target), read by `workers` processes ahead of training.

    Each record is asked for by itself and stacked by us: neither a batched `__getitems__` nor a collate function could be
    trusted to leave records unmixed.
    """

    keeps_order = True

    def __init__(self, dataset: Any, model: torch.nn.Module, workers: int) -> None:
        self._dataset, self._place = dataset, Place(model)
        self._workers = _checks.count("workers", workers, least=0)
        if not len(dataset):
            raise DataError("the data set holds no record, so that the shape of its records is not known")
        self._like = tuple(values[:0] for values in _stacked([_pair(dataset[0])]))

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def like(self) -> Part:
        inputs, targets = self._like
        return self._place.part((inputs, targets))

    def _read(self, indices: Indices) -> Part:
        return self._place.part(_Stack(self._like)([_pair(self._dataset[int(index)]) for index in indices]))

    def epoch(self, batches: Iterable[Indices], at_once: int | None) -> Iterator[Iterable[Part]]:
        if not self._workers:
            for indices in batches:
                yield Gathered(self._read, indices, at_once)
            return
        drawn = list(batches)
        parts = [indices[rows] for indices in drawn for rows in pieces(len(indices), at_once)]
        loaded = self._loaded(parts)
        for indices in drawn:
            batch = islice(loaded, sum(1 for _ in pieces(len(indices), at_once)))
            yield batch
            deque(batch, maxlen=0)  # what was left unread

    def in_order(self, at_once: int) -> Iterator[Part]:
        yield from self._loaded([np.arange(len(self))[rows] for rows in pieces(len(self), at_once)])

    def _loaded(self, parts: Sequence[Indices]) -> Iterator[Part]:
        loader: Any = DataLoader(
            _Pairs(self._dataset),
            batch_sampler=_Numbers(parts),
            num_workers=self._workers,
            collate_fn=_Stack(self._like),
        )
        yield from (self._place.part(part) for part in loader)


class _Pairs(torch.utils.data.Dataset[Part]):
    """A data set without its own way of getting several records at once."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, index: int) -> Part:
        return _pair(self._dataset[index])


class _Numbers:
    """The record numbers of each part, made into lists one part at a time."""

    def __init__(self, parts: Sequence[Indices]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[list[int]]:
        return (part.tolist() for part in self._parts)

    def __len__(self) -> int:
        return len(self._parts)


class _Stack:
    """Records → a part; no records → an empty part of the right shape."""

    def __init__(self, like: Any) -> None:
        self._like = like

    def __call__(self, records: Sequence[Part]) -> Part:
        inputs, targets = _stacked(records) if records else self._like
        if inputs.shape[1:] != self._like[0].shape[1:] or targets.shape[1:] != self._like[1].shape[1:]:
            raise DataError(_DIFFERENT)
        return inputs, targets


_DIFFERENT = "the records of the data set differ in shape: bring all to one shape by a public rule (crop, pad)"


def _stacked(records: Sequence[Part]) -> Part:
    inputs, targets = zip(*records, strict=True)
    try:
        return torch.stack(inputs), torch.stack(targets)
    except RuntimeError:
        raise DataError(_DIFFERENT) from None


def _pair(record: Any) -> Part:
    """A record as two tensors; its floating-point numbers keep their precision until they reach the model's place."""
    if not isinstance(record, tuple | list) or len(record) != 2:
        raise DataError(f"a record of the data set must be a pair (input, target), got {type(record).__name__}")
    try:
        return torch.as_tensor(record[0]), torch.as_tensor(record[1])
    except (TypeError, ValueError, RuntimeError):  # its message might tell the value
        kinds = ", ".join(type(value).__name__ for value in record)
        raise DataError(
            f"a record must be a pair of tensors, arrays or numbers, got {kinds}: convert them in the data set"
        ) from None
