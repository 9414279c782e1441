"""What an experiment is: rows of settings, a computation for one row, and a report that is a function of what was kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Settings = Mapping[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting, computed `trials` times: more than once where chance plays a part."""

    settings: Settings
    trials: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One finished trial as it is kept: what was asked, what came out, where and how long it took."""

    settings: Settings
    trial: int
    result: Result
    seconds: float
    finished: str
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Tidy: one observation per line."""

    columns: tuple[str, ...]
    lines: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A pure function of the records: Markdown for the page, tables for CSV files, pictures as SVG."""

    text: str
    tables: Mapping[str, Table] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)


def always_possible() -> None:
    """Nothing is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """`rows(quick)` in the order of their importance: all get their first trial before any gets its second.

    `compute` gets one row's settings and a scratch directory of its own. `missing` says what this machine lacks, if
    anything, and `absent` which data is not there yet and would be downloaded. Quick rows show that the experiment works;
    a row that both lists share must give the same numbers.
    """

    name: str
    title: str
    re_runs: str
    rows: Callable[[bool], Sequence[Row]]
    compute: Callable[[Settings, Path], Result]
    report: Callable[[Sequence[Record]], Report]
    missing: Callable[[], str | None] = always_possible
    absent: Callable[[], str | None] = always_possible
