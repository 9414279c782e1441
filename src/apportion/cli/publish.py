"""`apportion publish`: from a finished run to a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from apportion.bundle import write
from apportion.bundle.files import LISTED, MANIFEST
from apportion.cli import options as o
from apportion.cli import output


def publish(
    run: Annotated[Path, typer.Argument(help="The run directory.", show_default=False)],
    to: Annotated[Path, typer.Option(help="The bundle directory to write; it must not exist.", show_default=False)],
    allow_unsafe: Annotated[
        bool,
        typer.Option("--allow-unsafe", help="Publish a seeded run all the same, marked UNSAFE on its certificate."),
    ] = False,
    as_json: o.JsonOption = False,
) -> None:
    """Write the bundle of a finished run: weights, ledger, plan, certificate and model card.

    Only these leave the run directory; metrics and checkpoints, which are computed from private data, stay.
    """
    certificate = write.publish(run, to, allow_unsafe=allow_unsafe)
    if as_json:
        output.print_json({"bundle": str(to), "files": sorted([*LISTED, MANIFEST]), **certificate.to_json()})
        return
    from rich.markdown import Markdown

    output.out.print(Markdown(certificate.in_words()))
    output.out.print(f"published to {to}; anyone can check it with: apportion verify {to}", soft_wrap=True)
