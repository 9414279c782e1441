"""`apportion verify`: does a bundle hold what it claims?"""

from pathlib import Path
from typing import Annotated

import typer

from apportion.bundle import limits, signing
from apportion.bundle import verify as bundles
from apportion.bundle.files import ONNX
from apportion.bundle.verify import Verification
from apportion.cli import options as o
from apportion.cli import output
from apportion.errors import BundleError, InvalidArgument
from apportion.plain_words import hyperparameters_in_words

_SECONDS = 120


def verify(
    bundle: Annotated[Path, typer.Argument(help="The bundle: a directory, or its .zip.", show_default=False)],
    strict: Annotated[bool, typer.Option("--strict", help="Fail what is marked unsafe.")] = False,
    trusted: Annotated[
        list[Path] | None,
        typer.Option(help="A public key that must have signed (repeat: any of them).", show_default=False),
    ] = None,
    seconds: Annotated[int, typer.Option(help="Give up after so long.")] = _SECONDS,
    as_json: o.JsonOption = False,
) -> None:
    """Recompute a bundle's guarantee from its ledger, without the data and without PyTorch.

    Exit code 0 if every byte, chain link, claim and plan holds; 1, with the reasons, if not.
    """
    if not bundle.exists():
        raise BundleError(f"{bundle} does not exist")
    if seconds < 1:
        raise InvalidArgument(f"--seconds must be at least 1, got {seconds}")
    keys = [signing.load_public(path) for path in trusted or ()]
    with limits.deadline(seconds):
        result = bundles.verify(bundle, strict=strict, trusted=keys)
    if as_json:
        output.print_json(result.to_json())
    else:
        _show(result)
    raise typer.Exit(0 if result.verified else 1)


def _show(result: Verification) -> None:
    for check in result.checks:
        output.out.print(f"[green]✓[/] {check.name}" if check.holds else f"[red]✗[/] {check.name}", end="")
        output.out.print("" if check.holds else f": {check.problem}", markup=False, soft_wrap=True)
    if not result.verified or result.certificate is None:
        output.out.print("NOT VERIFIED", style="bold red")
        return
    certificate = result.certificate
    output.out.print(
        f"VERIFIED: ({certificate['epsilon']:g}, {certificate['delta']:g})-differential privacy, "
        f"{certificate['adjacency']}, per {certificate['unit']} (recomputed ε = {result.recomputed_epsilon:.6g}).",
        soft_wrap=True,
    )
    _show_limits(result)


def _show_limits(result: Verification) -> None:
    """What a verified bundle still does not prove."""
    assert result.certificate is not None
    stated = result.certificate["publication"]
    if result.signed_by is None:
        output.note("Not signed: this proves consistency, not who made the bundle.")
    elif any(check.name == "trusted" for check in result.checks):
        output.note(f"Signed by the trusted key {result.signed_by}.")
    else:
        output.note(f"Signed by {result.signed_by}; whose key that is, --trusted KEY.pub tells.")
    output.note("No certificate can prove that the publisher ran the recorded code on the declared data.")
    output.note(f"Hyperparameters: {hyperparameters_in_words(result.certificate)}.")
    output.note(f"Earlier runs on the same data: {stated['earlier_runs']}. The guarantee covers this run only.")
    if result.has_onnx:
        output.note(f"{ONNX} is the publisher's conversion of the certified weights; only its bytes were checked.")
    for reason in result.certificate["unsafe"]:
        output.warn(f"UNSAFE: {reason}")
