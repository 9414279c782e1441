"""Running an experiment: what is missing is computed, what is there is kept."""

import datetime
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from apportion import canonical
from experiments import kept
from experiments.experiment import Experiment, Record, Row, Settings


def machine() -> str:
    """What ran it, without naming it: processor, cores, threads in use, Python and torch if it is there."""
    processor = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        processor = names[0] if names else processor
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    try:
        from importlib.metadata import version

        torch = f", torch {version('torch')}"
    except ImportError:
        torch = ""
    return f"{processor}, {os.cpu_count()} cores, threads: {threads}, Python {platform.python_version()}{torch}"


def with_trials(rows: Sequence[Row], trials: int | None) -> list[Row]:
    """`--trials` counts for rows that chance has a part in; the others are computed once."""
    return [row if trials is None or row.trials == 1 else replace(row, trials=trials) for row in rows]


def tasks(rows: Sequence[Row]) -> Iterator[tuple[Settings, int]]:
    """All first trials, then all second ones, and so on: whenever this stops, no row is far ahead."""
    for trial in range(max(row.trials for row in rows)):
        for row in rows:
            if trial < row.trials:
                yield row.settings, trial


def run(
    experiment: Experiment,
    directory: Path,
    *,
    trials: int | None = None,
    quick: bool = False,
    tell: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> int:
    """Compute what is not yet kept in `directory`, then write tables and pictures; the number of new trials."""
    todo = list(tasks(with_trials(experiment.rows(quick), trials)))
    with kept.Keeper(directory) as keeper:
        done = {kept.key(record.settings, record.trial) for record in kept.read(directory)}
        left = [(settings, trial) for settings, trial in todo if kept.key(settings, trial) not in done]
        for count, (settings, trial) in enumerate(left):
            tell(len(todo) - len(left) + count, len(todo), f"{kept.plain(settings)}; trial {trial + 1}")
            keeper.add(_finished(experiment, settings, trial))
        report = kept.report_of(experiment, directory, quick)
        if report is not None:
            kept.write_report(directory, report)
    tell(len(todo), len(todo), "done")
    return len(left)


def _finished(experiment: Experiment, settings: Settings, trial: int) -> Record:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="apportion-experiment-") as scratch:
        result = experiment.compute(settings, Path(scratch))
    canonical.dumps(result)  # refuses NaN and infinities before they are kept
    return Record(
        settings=settings,
        trial=trial,
        result=result,
        seconds=round(time.monotonic() - started, 3),
        finished=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ"),
        machine=machine(),
    )
