"""The user's own table: read from CSV, Parquet or npz, checked against what was declared, never scaled by itself.

Scaling by the data's own minimum and maximum, or reading the classes off the data, would release them without noise; so
ranges and classes are declared. Messages name columns and row numbers, never values.
"""

import csv
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.dataset import Dataset
from apportion.data.problems import Problems
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
    """What is public about a table: its target column, each feature's range, columns left out.

    The target is one of `classes` or, for regression, a number in `target_range`, scaled to [−1, 1] as the features are.
    """

    target: str
    ranges: Mapping[str, tuple[float, float]]
    classes: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None
    ignore: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.target_range is None:
            if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
                raise InvalidArgument(f"classes must name at least two different classes, got {list(self.classes)}")
        elif self.classes:
            raise InvalidArgument("a target has classes or a target_range, not both")
        given = {} if self.target_range is None else {self.target: self.target_range}
        for name, (low, high) in {**self.ranges, **given}.items():
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
    refuse_undeclared(table.columns, declared)
    problems = Problems()
    targets, outside = _targets(table.columns[declared.target], declared, problems)
    inputs, clipped = _scaled(table, declared.ranges, problems)
    clipped += outside
    if problems:
        raise DataError(str(problems))
    return Dataset(inputs=inputs, targets=targets, features=tuple(declared.ranges), classes=declared.classes), clipped


def persons_of(table: Table, column: str) -> NDArray[np.str_]:
    """Whose each record is, by the texts in a column; none may be missing."""
    if column not in table.columns:
        raise DataError(f"unit: there is no column {column!r}")
    persons = [text_of(value) for value in table.columns[column]]
    problems = Problems()
    problems.missing_person(column, np.array([person in ("", "nan") for person in persons], np.bool_))
    if problems:
        raise DataError(str(problems))
    return np.array(persons, dtype=np.str_)


def prepare_features(table: Table, ranges: Mapping[str, tuple[float, float]]) -> tuple[NDArray[np.float64], int]:
    """Inputs alone, scaled as in training, for a table that may hold other columns besides; and how many were clipped."""
    lacking = [f"there is no column {name!r}; the model needs it" for name in ranges if name not in table.columns]
    if lacking:
        raise DataError("\n".join(lacking))
    problems = Problems()
    inputs, clipped = _scaled(table, ranges, problems)
    if problems:
        raise DataError(str(problems))
    return inputs, clipped


def _scaled(
    table: Table, ranges: Mapping[str, tuple[float, float]], problems: Problems
) -> tuple[NDArray[np.float64], int]:
    columns, clipped = [], 0
    for name, (low, high) in ranges.items():
        values, outside = scaled(_numbers(name, table.columns[name], problems), low, high)
        clipped += outside
        columns.append(values)
    return np.stack(columns, axis=1), clipped


def scaled(values: NDArray[np.float64], low: float, high: float) -> tuple[NDArray[np.float64], int]:
    """From [low, high] to [−1, 1], and how many values had to be clipped to that range."""
    outside = int(np.count_nonzero((values < low) | (values > high)))
    return 2 * (np.clip(values, low, high) - low) / (high - low) - 1, outside


def refuse_undeclared(columns: Iterable[str], declared: Declared) -> None:
    """A table must have exactly the columns that were declared."""
    names = list(columns)
    if declared.target not in names:  # without a header, column names are somebody's record: print none
        raise ConfigError([f"target: there is no column {declared.target!r}; does the first line name the columns?"])
    problems = [f"range of {name}: there is no such column" for name in declared.ranges if name not in names]
    expected = {declared.target, *declared.ignore, *declared.ranges}
    problems += [
        f"column {name} has no declared range: give --range {name}=LOW:HIGH (or [features] in the config), or leave it "
        f"out with --ignore {name}"
        for name in names
        if name not in expected
    ]
    if not declared.ranges and not problems:
        problems.append("no feature is declared: give --range name=LOW:HIGH for each feature")
    if problems:
        raise ConfigError(problems)


def _targets(values: Sequence[Any], declared: Declared, problems: Problems) -> tuple[NDArray[Any], int]:
    if declared.target_range is None:
        return _labels(values, declared, problems), 0
    return scaled(_numbers(declared.target, values, problems), *declared.target_range)


def _labels(values: Sequence[Any], declared: Declared, problems: Problems) -> NDArray[np.int64]:
    index = {name: number for number, name in enumerate(declared.classes)}
    labels = np.array([index.get(text_of(value), -1) for value in values], np.int64)
    missing = np.array([text_of(value) == "" for value in values], np.bool_)
    problems.missing_label(declared.target, missing)
    problems.unknown_label(declared.target, declared.classes, (labels < 0) & ~missing)
    return labels


def _numbers(name: str, values: Sequence[Any], problems: Problems) -> NDArray[np.float64]:
    numbers, missing = numbers_of(values)
    problems.text(name, np.isnan(numbers) & ~missing)
    problems.missing_value(name, missing)
    return numbers


def numbers_of(values: Sequence[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Each value as a number, NaN where it is none; and which are missing rather than something else."""
    numbers = np.array([_number(value) for value in values], np.float64)
    return numbers, np.array([text_of(value) in ("", "nan") for value in values], np.bool_)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def text_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


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
