"""`python -m experiments`: list, run, page."""

import argparse
import sys
from pathlib import Path

from apportion.errors import ApportionError
from experiments import catalogue, kept, page, running
from experiments.experiment import Experiment

QUICK = Path(__file__).parent / "quick"


def main(arguments: list[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.verb(parsed))
    except (ApportionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; finished trials are kept, the same command goes on from there", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="The paper's tables and figures, re-run. Results are kept in experiments/results, one directory each; "
        "experiments/README.md is made from them.",
    )
    verbs = parser.add_subparsers(required=True, metavar="{list,run,page}")
    listing = verbs.add_parser("list", help="the experiments, what they re-run, and how many trials are finished")
    listing.set_defaults(verb=show_list)
    runs = verbs.add_parser(
        "run",
        help="run one experiment, or all",
        description="Computes what is not yet kept, so an interrupted run goes on where it stopped. To start afresh, "
        "remove the experiment's directory under experiments/results.",
    )
    runs.add_argument("name", help="a name from the list, or 'all'")
    runs.add_argument(
        "--trials", type=_count, help="how often to repeat what chance has a part in (default: as the paper)"
    )
    runs.add_argument("--quick", action="store_true", help="a few seconds, to see it work; kept in experiments/quick")
    runs.add_argument("--out", type=Path, help="keep results elsewhere")
    runs.set_defaults(verb=run)
    pages = verbs.add_parser("page", help="make experiments/README.md from the results")
    pages.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not up to date")
    pages.set_defaults(verb=make_page)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def show_list(parsed: argparse.Namespace) -> int:
    for experiment in catalogue.EXPERIMENTS:
        rows = experiment.rows(False)
        found = len(kept.of_rows(kept.read(kept.RESULTS / experiment.name), rows))
        print(f"{experiment.name:20} {found:4}/{sum(row.trials for row in rows):<4} {experiment.re_runs}")
    return 0


def run(parsed: argparse.Namespace) -> int:
    chosen = catalogue.EXPERIMENTS if parsed.name == "all" else (catalogue.find(parsed.name),)
    code = 0
    for experiment in chosen:
        reason = experiment.missing()
        if reason is not None:
            print(f"{experiment.name}: not run: {reason}", file=sys.stderr)
            code = 1
            continue
        _run_one(experiment, parsed)
    if parsed.out is None and not parsed.quick:
        page.write()
    return code


def _run_one(experiment: Experiment, parsed: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.progress import Progress

    directory = (parsed.out or (QUICK if parsed.quick else kept.RESULTS)) / experiment.name
    with Progress(console=Console(stderr=True)) as bar:
        line = bar.add_task(experiment.name, total=None)

        def tell(done: int, total: int, text: str) -> None:
            bar.update(line, completed=done, total=total)
            bar.console.print(
                f"{experiment.name} {done}/{total}: {text}", highlight=False, markup=False, soft_wrap=True
            )

        new = running.run(experiment, directory, trials=parsed.trials, quick=parsed.quick, tell=tell)
    print(f"{experiment.name}: {new} new trials, results in {directory}")


def make_page(parsed: argparse.Namespace) -> int:
    if not parsed.check:
        page.write()
        return 0
    stale = page.out_of_date()
    for name in stale:
        print(f"not up to date: {name}; run python -m experiments page", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
