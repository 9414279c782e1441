"""The page: every number on it comes from a result file."""

from pathlib import Path

from apportion import durable
from experiments import catalogue, kept, words
from experiments.experiment import Experiment, Record

PAGE = Path(__file__).parent / "README.md"

INTRODUCTION = """# The paper, re-run

Tables and figures of Yu, Liu, Pu, Gursoy and Truex, *Differentially Private Model Publishing for Deep Learning* (IEEE S&P
2019, in its corrected version), computed again with Apportion: where we agree, where the paper under-counts, and where our
figures differ from the printed ones.

This page is made by `python -m experiments page` from the files in `results/`; every number of ours on it is in one of
them,
and `python -m experiments run NAME` re-creates them (`list` shows the names). Numbers "of the paper" are its printed
ones, from
`paper.py`. Training uses secure randomness, so no two runs agree to the last digit: such figures carry their spread.
The paper's figures are not available as numbers; where it prints none, ours stand alone. δ = 1e-5 unless said otherwise.
"""


def render(results: Path = kept.RESULTS) -> str:
    title, _, rest = INTRODUCTION.partition("\n\n")
    parts = [f"{title}\n\n{words.filled(rest)}\n"]
    for experiment in catalogue.EXPERIMENTS:
        parts.append(_section(experiment, results / experiment.name))
    return "\n".join(parts)


def _section(experiment: Experiment, directory: Path) -> str:
    report = kept.report_of(experiment, directory)
    heading = f"## {experiment.title}\n\n*{experiment.re_runs}* · `python -m experiments run {experiment.name}`\n"
    if report is None:
        return f"{heading}\nNot run yet.\n"
    records = kept.of_rows(kept.read(directory), experiment.rows(False))
    return f"{heading}\n{words.filled(report.text)}\n\n{_provenance(experiment, records)}\n"


def _provenance(experiment: Experiment, records: list[Record]) -> str:
    """Where and when, how long, and what is missing."""
    seconds = sum(record.seconds for record in records)
    time = f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
    machines = "; ".join(sorted({record.machine for record in records}))
    dates = sorted({record.finished[:10] for record in records})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    planned = sum(row.trials for row in experiment.rows(False))
    partial = "" if len(records) >= planned else f" **{len(records)} of {planned} planned trials are finished.**"
    count = "1 trial" if len(records) == 1 else f"{len(records)} trials"
    return f"<sub>`results/{experiment.name}/`: {count}, {time} in all, {when}, on {machines}.{partial}</sub>"


def write() -> None:
    for experiment in catalogue.EXPERIMENTS:
        directory = kept.RESULTS / experiment.name
        report = kept.report_of(experiment, directory)
        if report is not None:
            kept.write_report(directory, report)
    durable.replace_file(PAGE, render().encode())


def out_of_date() -> list[str]:
    """The files that are not what the kept trials make of them."""
    expected = {PAGE: render()}
    for experiment in catalogue.EXPERIMENTS:
        directory = kept.RESULTS / experiment.name
        report = kept.report_of(experiment, directory)
        if report is not None:
            expected |= {directory / name: content for name, content in kept.files(report).items()}
    return [str(path) for path, content in expected.items() if not path.is_file() or path.read_text() != content]
