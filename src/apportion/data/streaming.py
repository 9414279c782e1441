"""A table larger than memory: checked and scaled once, in blocks, into a scratch file from which batches are read."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from apportion.data import arrow
from apportion.data.problems import Problems
from apportion.data.rows import RowFile, Rows
from apportion.data.table import Declared, refuse_undeclared, scaled
from apportion.errors import DataError

Divide = Callable[[int], NDArray[np.bool_]]


class StreamedTable:
    """Records on disk, made by `stream_table`; close it (or leave its `with` block) to free them.

    `clipped` is the number of values that lay outside their declared range.
    """

    def __init__(self, declared: Declared, scratch: Path | None = None) -> None:
        target = np.int64 if declared.target_range is None else np.float32
        row = np.dtype([("inputs", np.float32, (len(declared.ranges),)), ("target", target)])
        self.rows = RowFile(row, scratch)
        self.features, self.classes = tuple(declared.ranges), declared.classes
        self.clipped = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def units(self) -> int:
        return len(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.rows.close()


def stream_table(path: str | Path, declared: Declared, *, scratch: str | Path | None = None) -> StreamedTable:
    """A .csv or .parquet file of any size, ready to train on. Every value is checked now, before anything is spent.

    `scratch` is a directory with room for the numbers of the table twice over (4 bytes per feature and record); by default
    the system's directory for temporary files. What lies there is as private as the table, and vanishes when it is closed.
    """
    table, nothing = stream_divided(path, declared, lambda records: np.zeros(records, np.bool_), scratch=scratch)
    nothing.close()
    return table


def stream_divided(
    path: str | Path, declared: Declared, divide: Divide, *, scratch: str | Path | None = None
) -> tuple[StreamedTable, StreamedTable]:
    """Two tables: the records for which `divide` says no, and those for which it says yes.

    `divide` is told how many records come next, in the order of the file.
    """
    file = Path(path)
    refuse_undeclared(arrow.column_names(file), declared)
    directory = None if scratch is None else Path(scratch)
    tables = StreamedTable(declared, directory), StreamedTable(declared, directory)
    try:
        _fill(tables, file, declared, divide)
        tables[0].rows.require_room()
    except BaseException:
        for table in tables:
            table.close()
        raise
    return tables


def _fill(tables: tuple[StreamedTable, StreamedTable], path: Path, declared: Declared, divide: Divide) -> None:
    problems, before = Problems(), 0
    for block in arrow.blocks(path, [declared.target, *declared.ranges]):
        rows, clipped = _rows_of(block, declared, tables[0].rows.dtype, problems, before)
        before += len(rows)
        tables[0].clipped += clipped
        if not problems:
            chosen = divide(len(rows))
            for table, mask in zip(tables, (~chosen, chosen), strict=True):
                table.rows.append(rows[mask])
    if problems:
        raise DataError(str(problems))
    if not before:
        raise DataError(f"{path}: holds no rows")


def _rows_of(block: Any, declared: Declared, dtype: np.dtype[Any], problems: Problems, before: int) -> tuple[Rows, int]:
    """The block's records, and how many of their values were clipped."""
    rows, clipped = np.empty(len(block[declared.target]), dtype), 0
    if declared.target_range is None:
        rows["target"], missing = arrow.labels(block[declared.target], declared.classes)
        problems.missing_label(declared.target, missing, before)
        problems.unknown_label(declared.target, declared.classes, (rows["target"] < 0) & ~missing, before)
    else:
        rows["target"], clipped = _scaled(block, declared.target, declared.target_range, problems, before)
    for place, (name, bounds) in enumerate(declared.ranges.items()):
        rows["inputs"][:, place], outside = _scaled(block, name, bounds, problems, before)
        clipped += outside
    return rows, clipped


def _scaled(
    block: Any, name: str, bounds: tuple[float, float], problems: Problems, before: int
) -> tuple[NDArray[np.float64], int]:
    values, missing = arrow.numbers(block[name])
    problems.text(name, np.isnan(values) & ~missing, before)
    problems.missing_value(name, missing, before)
    return scaled(values, *bounds)
