"""`apportion verify`: does a bundle hold what it claims?"""

from pathlib import Path
from typing import Annotated

import typer

from apportion.bundle import verify as bundles
from apportion.cli import options as o
from apportion.cli import output
from apportion.errors import BundleError


def verify(
    bundle: Annotated[Path, typer.Argument(help="The bundle directory.", show_default=False)],
    as_json: o.JsonOption = False,
) -> None:
    """Recompute a bundle's guarantee from its ledger, without the data and without PyTorch.

    Exit code 0 if every byte, chain link, claim and plan holds; 1, with the reasons, if not.
    """
    if not bundle.is_dir():
        raise BundleError(f"{bundle} is not a directory")
    result = bundles.verify(bundle)
    if as_json:
        output.print_json(result.to_json())
    else:
        for check in result.checks:
            output.out.print(f"[green]✓[/] {check.name}" if check.holds else f"[red]✗[/] {check.name}", end="")
            output.out.print("" if check.holds else f": {check.problem}", markup=False, soft_wrap=True)
        if result.verified and result.certificate is not None:
            certificate = result.certificate
            output.out.print(
                f"VERIFIED: ({certificate['epsilon']:g}, {certificate['delta']:g})-differential privacy, "
                f"{certificate['adjacency']}, per {certificate['unit']} (recomputed ε = {result.recomputed_epsilon:.6g}). "
                "This proves consistency, not who made the bundle.",
                soft_wrap=True,
            )
            for reason in certificate["unsafe"]:
                output.warn(f"UNSAFE: {reason}")
        else:
            output.out.print("NOT VERIFIED", style="bold red")
    raise typer.Exit(0 if result.verified else 1)
