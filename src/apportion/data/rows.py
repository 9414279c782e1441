"""Records too many for memory, on disk: rows of one size in a nameless scratch file, and an epoch's batches cut from them.

A batch's records are spread over the whole data. Fetching each by itself would read most of the file for every batch;
instead, one pass over the file per epoch sorts all rows into their batches, each a stretch of a second scratch file.
Memory holds a buffer, and the numbers of the records in each batch: about eight bytes per record.

A scratch file has no name in any directory, so it is gone when it is closed, also after a crash. While it lives it is as
private as the data.
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.errors import DataError

Rows = NDArray[Any]  # of a structured type, one entry per record
BUFFER = 1 << 25  # bytes


class RowFile:
    """Rows of type `dtype`; appended, then read from anywhere."""

    def __init__(self, dtype: np.dtype[Any], scratch: Path | None = None) -> None:
        self.dtype, self.scratch = dtype, Path(tempfile.gettempdir()) if scratch is None else scratch
        if not self.scratch.is_dir():
            raise DataError(f"scratch must be a directory with room for the data, and {self.scratch} is none")
        # Unbuffered: what Python would keep in between is another copy.
        self._file = tempfile.TemporaryFile(dir=self.scratch, buffering=0)  # noqa: SIM115
        self._closing = weakref.finalize(self, self._file.close)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def bytes(self) -> int:
        return self._length * self.dtype.itemsize

    def append(self, rows: Rows) -> None:
        self.write(self._length, rows)

    def write(self, start: int, rows: Rows) -> None:
        self._file.seek(start * self.dtype.itemsize)
        left = np.ascontiguousarray(rows, self.dtype).view(np.uint8).data
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise DataError(f"the scratch directory {self.scratch} takes no more: {error.strerror}") from error
        self._length = max(self._length, start + len(rows))

    def read(self, start: int, stop: int) -> Rows:
        rows = np.empty(max(0, min(stop, self._length) - start), self.dtype)
        self._file.seek(start * self.dtype.itemsize)
        left = rows.view(np.uint8).data
        while left:
            count = self._file.readinto(left)
            if not count:
                raise DataError(f"the scratch file in {self.scratch} was cut short")
            left = left[count:]
        return rows

    def pieces(self, size: int) -> Iterator[tuple[int, Rows]]:
        """(number of the first row, rows), `size` rows at a time."""
        for start in range(0, self._length, size):
            yield start, self.read(start, start + size)

    def require_room(self) -> None:
        """For a second file of this size, which an epoch needs."""
        free = shutil.disk_usage(self.scratch).free
        if free < 1.1 * self.bytes:
            raise DataError(
                f"an epoch sorts the records on disk and needs {self.bytes:,} bytes in {self.scratch}, where {free:,} are "
                "free; give another scratch directory"
            )

    def close(self) -> None:
        self._closing()


class Sorted:
    """The rows of an epoch, sorted into its batches; a row may be in several or in none."""

    def __init__(self, rows: RowFile, batches: Sequence[NDArray[np.int64]]) -> None:
        self._starts = np.concatenate([[0], np.cumsum([len(indices) for indices in batches])]).astype(np.int64)
        self._file = RowFile(rows.dtype, rows.scratch)
        try:
            self._sort(rows, [_ascending(indices) for indices in batches])
        except BaseException:
            self.close()
            raise

    def _sort(self, rows: RowFile, batches: Sequence[NDArray[np.int64]]) -> None:
        placed = np.zeros(len(batches), np.int64)
        for first, some in rows.pieces(max(1, BUFFER // rows.dtype.itemsize)):
            for number, indices in enumerate(batches):
                begin = int(placed[number])
                end = begin + int(np.searchsorted(indices[begin:], first + len(some)))
                if end > begin:
                    self._file.write(int(self._starts[number]) + begin, some[indices[begin:end] - first])
                    placed[number] = end

    def read(self, batch: int, start: int, stop: int) -> Rows:
        """Rows `start` … `stop` − 1 of that batch."""
        first, last = int(self._starts[batch]), int(self._starts[batch + 1])
        return self._file.read(first + start, min(first + stop, last))

    def size(self, batch: int) -> int:
        return int(self._starts[batch + 1] - self._starts[batch])

    def close(self) -> None:
        self._file.close()


def _ascending(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return indices if bool(np.all(indices[1:] >= indices[:-1])) else np.sort(indices)
