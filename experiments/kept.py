"""Finished trials on disk: one line each, durable before the next begins, so that an interrupted run loses one trial."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from apportion import canonical, durable
from experiments.experiment import Experiment, Record, Report, Row, Table

RESULTS = Path(__file__).parent / "results"
TRIALS = "trials.jsonl"


def key(settings: object, trial: int) -> str:
    return canonical.dumps([settings, trial])


def read(directory: Path) -> list[Record]:
    """Every trial kept there."""
    return [Record(**line) for line in lines_of(directory / TRIALS)]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """What every line says; a last one cut short by a crash is left out."""
    if not path.is_file():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [canonical.loads(line) for line in whole.splitlines()]


def of_rows(records: Sequence[Record], rows: Sequence[Row]) -> list[Record]:
    """The records that answer to these rows, in the order of rows, then trials; those of other settings are left out."""
    place = {canonical.dumps(row.settings): index for index, row in enumerate(rows)}
    known = [record for record in records if canonical.dumps(record.settings) in place]
    return sorted(known, key=lambda record: (place[canonical.dumps(record.settings)], record.trial))


class Keeper:
    """Appends finished trials; holds the directory against a second process."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = durable.lock(directory / ".lock")
        path = directory / TRIALS
        if path.is_file():
            whole = path.read_bytes().rfind(b"\n") + 1
            if whole < path.stat().st_size:
                durable.shorten(path, whole)
        self._appender = durable.Appender(path)

    def add(self, record: Record) -> None:
        self._appender.append(canonical.dumps(asdict(record)).encode() + b"\n")

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, *error: object) -> None:
        self._appender.close()
        self._lock.close()


def csv_text(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.lines)
    return text.getvalue()


def files(report: Report) -> dict[str, str]:
    """What belongs beside the trials: file name → content."""
    tables = {f"{name}.csv": csv_text(table) for name, table in report.tables.items()}
    pictures = {f"{name}.svg": picture for name, picture in report.pictures.items()}
    return {**tables, **pictures}


def write_report(directory: Path, report: Report) -> None:
    for name, content in files(report).items():
        durable.replace_file(directory / name, content.encode())


def report_of(experiment: Experiment, directory: Path, quick: bool = False) -> Report | None:
    """The report of what is kept; None if nothing is."""
    records = of_rows(read(directory), experiment.rows(quick))
    return experiment.report(records) if records else None


def plain(settings: object) -> str:
    """Settings in one line, for people."""
    return json.dumps(settings, ensure_ascii=False).strip("{}").replace('"', "")
