"""`apportion report`: a run drawn on one page, for the people who trained it."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli import options as o
from apportion.cli import output
from apportion.errors import InvalidArgument
from apportion.report.write import write_comparison, write_report

_COMPARISON = Path("comparison.html")


def report(
    runs: Annotated[list[Path], typer.Argument(help="The run directory, or several with --compare.")],
    compare: Annotated[bool, typer.Option("--compare", help="Overlay several runs on one page.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write (default: report.html in the run; comparison.html).", show_default=False),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    as_json: o.JsonOption = False,
) -> None:
    """Draw a run: noise, budget, ε by accountant, accuracy, and what an attacker can reach. One HTML file, no network.

    The page shows private metrics: it is for the people who trained the model, not for publication.
    """
    if len(runs) > 1 and not compare:
        raise InvalidArgument("several runs are drawn on one page with --compare")
    written = write_comparison(runs, out or _COMPARISON) if compare else write_report(runs[0], out)
    if as_json:
        output.print_json({"report": str(written)})
    else:
        output.out.print(f"written: {written} (internal: do not publish)", soft_wrap=True)
    if open_it and not webbrowser.open(written.resolve().as_uri()):
        output.warn(f"no browser was found; open {written} yourself")
