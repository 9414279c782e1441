"""Tables in pieces: CSV and Parquet of any size, read by pyarrow a block at a time, and their columns as numbers."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.table import numbers_of, text_of
from apportion.errors import DataError

ROWS = 1 << 16  # of a Parquet file at a time
BLOCK = 1 << 23  # bytes of a CSV file at a time


def column_names(path: Path) -> list[str]:
    _require_file(path)
    if path.suffix.lower() == ".parquet":
        return list(_parquet(path).schema_arrow.names)
    return [name.strip() for name in _header(path)]


def blocks(path: Path, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """These columns, a block of rows at a time: column name → pyarrow array."""
    _require_file(path)
    yield from (_parquet_blocks if path.suffix.lower() == ".parquet" else _csv_blocks)(path, columns)


def numbers(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Each value as a number, NaN where it is none; and which are missing. As `numbers_of`, only quicker."""
    import pyarrow
    from pyarrow import compute, types

    try:
        if types.is_string(column.type) or types.is_large_string(column.type):
            trimmed = compute.utf8_trim_whitespace(column)
            empty = compute.equal(trimmed, "")
            column = compute.if_else(empty, pyarrow.scalar(None, trimmed.type), trimmed).cast(pyarrow.float64())
        elif types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type):
            column = column.cast(pyarrow.float64(), safe=False)
        else:
            return numbers_of(column.to_pylist())
    except pyarrow.ArrowException:  # text somewhere, or a way of writing numbers that only Python reads
        return numbers_of(column.to_pylist())
    values = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    return values, np.isnan(values)


def labels(column: Any, classes: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Each value's place among the classes, −1 where it has none; and which are missing."""
    index = {name: number for number, name in enumerate(classes)}
    encoded = column.dictionary_encode()
    texts = [*(text_of(value) for value in encoded.dictionary.to_pylist()), ""]  # the last for nulls
    places = encoded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
    found = np.array([index.get(text, -1) for text in texts], np.int64)
    missing = np.array([text == "" for text in texts], np.bool_)
    return found[places], missing[places]


def _require_file(path: Path) -> None:
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(f"{path}: what is streamed is a .csv or a .parquet file")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise DataError(f"{path}: streaming needs pyarrow: pip install 'apportion[parquet]'") from error


def _parquet(path: Path) -> Any:
    import pyarrow.parquet

    try:
        # Through a small buffer: a row group may be as large as the file.
        return pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def _parquet_blocks(path: Path, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    import pyarrow

    try:
        for block in _parquet(path).iter_batches(batch_size=ROWS, columns=list(columns), use_threads=False):
            yield {name: block.column(name) for name in columns}
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def _header(path: Path) -> list[str]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            names = next(csv.reader(file), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a UTF-8 CSV file: {error}") from error
    if not names or len({name.strip() for name in names}) != len(names):
        raise DataError(f"{path}: the first line must name the columns, each once")
    return names


def _csv_blocks(path: Path, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """All values as text: pyarrow's own guesses about types would depend on the block."""
    import pyarrow
    from pyarrow import csv as arrow_csv

    written = {name.strip(): name for name in _header(path)}
    wanted = [written[name] for name in columns]
    wrong: list[int] = []

    def misshapen(row: Any) -> str:
        wrong.append(row.number - 1)  # it counts the header
        return "error"

    try:
        reader = arrow_csv.open_csv(
            path,
            read_options=arrow_csv.ReadOptions(block_size=BLOCK, use_threads=False),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=misshapen),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=wanted, column_types=dict.fromkeys(wanted, pyarrow.string()), strings_can_be_null=False
            ),
        )
        for block in reader:
            yield {name: block.column(written[name]) for name in columns}
    except pyarrow.ArrowException:  # its message would quote the row
        if wrong:
            raise DataError(f"{path}: row {wrong[0]} does not have as many values as the header") from None
        raise DataError(f"{path}: not a UTF-8 CSV file with a value for every column in every row") from None
