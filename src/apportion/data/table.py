"""The user's own table: read from CSV, Parquet or npz, checked against what was declared, never scaled by itself.

Scaling by the data's own minimum and maximum, or reading the classes off the data, would release them without noise; so
ranges and classes are declared. Messages name columns and row numbers, never values.
"""

import csv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.dataset import Dataset
from apportion.errors import ConfigError, DataError, InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Column name → values (texts or numbers), all of one length."""

    columns: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def select(self, chosen: NDArray[np.bool_]) -> "Table":
        rows = np.flatnonzero(chosen).tolist()
        return Table(columns={name: [values[row] for row in rows] for name, values in self.columns.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What is public about a table: its target column, the classes in it, each feature's range, columns left out."""

    target: str
    classes: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]
    ignore: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise InvalidArgument(f"classes must name at least two different classes, got {list(self.classes)}")
        for name, (low, high) in self.ranges.items():
            if not low < high:
                raise InvalidArgument(f"the range of {name} must have low < high, got {low:g}:{high:g}")


def read_table(path: Path) -> Table:
    """A table by the file's ending: .csv, .parquet or .npz."""
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: expected a file ending in {', '.join(readers)}")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    table = reader(path)
    if not table.columns or not len(table):
        raise DataError(f"{path}: holds no rows")
    return table


def prepare(table: Table, declared: Declared) -> tuple[Dataset, int]:
    """The data set, and how many values were clipped to their declared range. All problems are reported together."""
    problems = _undeclared(table, declared)
    if problems:
        raise ConfigError(problems)
    targets = _labels(table.columns[declared.target], declared, problems)
    inputs, clipped = _scaled(table, declared.ranges, problems)
    if problems:
        raise DataError("\n".join(problems))
    return Dataset(inputs=inputs, targets=targets, features=tuple(declared.ranges), classes=declared.classes), clipped


def persons_of(table: Table, column: str) -> NDArray[np.str_]:
    """Whose each record is, by the texts in a column; none may be missing."""
    if column not in table.columns:
        raise DataError(f"unit: there is no column {column!r}")
    persons = [_text(value) for value in table.columns[column]]
    missing = [row for row, person in enumerate(persons, start=1) if person in ("", "nan")]
    if missing:
        raise DataError(
            f"unit {column}: no person is named in {_rows(missing)}; drop those records, or give each an id"
        )
    return np.array(persons, dtype=np.str_)


def prepare_features(table: Table, ranges: Mapping[str, tuple[float, float]]) -> tuple[NDArray[np.float64], int]:
    """Inputs alone, scaled as in training, for a table that may hold other columns besides; and how many were clipped."""
    problems = [f"there is no column {name!r}; the model needs it" for name in ranges if name not in table.columns]
    if problems:
        raise DataError("\n".join(problems))
    inputs, clipped = _scaled(table, ranges, problems)
    if problems:
        raise DataError("\n".join(problems))
    return inputs, clipped


def _scaled(
    table: Table, ranges: Mapping[str, tuple[float, float]], problems: list[str]
) -> tuple[NDArray[np.float64], int]:
    columns, clipped = [], 0
    for name, (low, high) in ranges.items():
        values = _numbers(name, table.columns[name], problems)
        clipped += int(np.count_nonzero((values < low) | (values > high)))
        columns.append(2 * (np.clip(values, low, high) - low) / (high - low) - 1)
    return np.stack(columns, axis=1), clipped


def _undeclared(table: Table, declared: Declared) -> list[str]:
    if declared.target not in table.columns:  # without a header, column names are somebody's record: print none
        return [f"target: there is no column {declared.target!r}; does the first line name the columns?"]
    problems = [f"range of {name}: there is no such column" for name in declared.ranges if name not in table.columns]
    expected = {declared.target, *declared.ignore, *declared.ranges}
    problems += [
        f"column {name} has no declared range: give --range {name}=LOW:HIGH (or [features] in the config), or leave it "
        f"out with --ignore {name}"
        for name in table.columns
        if name not in expected
    ]
    if not declared.ranges and not problems:
        problems.append("no feature is declared: give --range name=LOW:HIGH for each feature")
    return problems


def _labels(values: Sequence[Any], declared: Declared, problems: list[str]) -> NDArray[np.int64]:
    index = {name: number for number, name in enumerate(declared.classes)}
    labels = np.array([index.get(_text(value), -1) for value in values], np.int64)
    missing = [row for row, value in enumerate(values, start=1) if _text(value) == ""]
    unknown = sorted({row for row, label in enumerate(labels, start=1) if label < 0} - set(missing))
    if missing:
        problems.append(f"target {declared.target}: label missing in {_rows(missing)}; drop those records")
    if unknown:
        problems.append(
            f"target {declared.target}: {_rows(unknown)} hold a label that is none of the declared classes "
            f"({', '.join(declared.classes)})"
        )
    return labels


def _numbers(name: str, values: Sequence[Any], problems: list[str]) -> NDArray[np.float64]:
    numbers = np.array([_number(value) for value in values], np.float64)
    missing = [row for row, value in enumerate(values, start=1) if _text(value) in ("", "nan")]
    text = sorted({row for row, number in enumerate(numbers, start=1) if np.isnan(number)} - set(missing))
    if text:
        problems.append(
            f"column {name} is text in {_rows(text)}: encode it as numbers by a public rule, or --ignore it"
        )
    if missing:
        problems.append(
            f"column {name} lacks a value in {_rows(missing)}: fill it by a public rule, or drop the records"
        )
    return numbers


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _rows(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:3]))
    return f"row {shown}" if len(rows) == 1 else f"{len(rows)} rows (first: {shown})"


def _read_csv(path: Path) -> Table:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a UTF-8 CSV file: {error}") from error
    if not rows or len(set(rows[0])) != len(rows[0]):
        raise DataError(f"{path}: the first line must name the columns, each once")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(rows[0]):
            raise DataError(f"{path}: row {number} has {len(row)} values, the header has {len(rows[0])}")
    return Table(columns={name.strip(): [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])})


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install 'apportion[parquet]'") from error
    try:
        return Table(columns=pyarrow.parquet.read_table(path).to_pydict())
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def _read_npz(path: Path) -> Table:
    """One column per one-dimensional array, and name_0, name_1, … for a two-dimensional one."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            loaded = {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a readable npz file: {error}") from error
    columns: dict[str, Sequence[Any]] = {}
    for name, array in loaded.items():
        if array.ndim == 1:
            columns[name] = array.tolist()
        elif array.ndim == 2:
            columns |= {f"{name}_{i}": array[:, i].tolist() for i in range(array.shape[1])}
        else:
            raise DataError(f"{path}: array {name} has {array.ndim} dimensions; columns have one, matrices two")
    if len({len(values) for values in columns.values()}) > 1:
        raise DataError(f"{path}: arrays differ in length: { ({name: len(v) for name, v in columns.items()}) }")
    return Table(columns=columns)
