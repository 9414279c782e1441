"""`apportion predict`: use a published table model, without PyTorch."""

import csv
import sys
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli import options as o
from apportion.cli import output
from apportion.data.predict import Predictions, predict_table
from apportion.errors import RunError


def predict(
    bundle: Annotated[Path, typer.Argument(help="The bundle: a directory, or its .zip.", show_default=False)],
    data: Annotated[Path, typer.Argument(help="A table: .csv, .parquet or .npz.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Write a .csv here instead of printing it.", show_default=False)
    ] = None,
    as_json: o.JsonOption = False,
) -> None:
    """Predict with a published table model: one line per record, its class and the probability of each class.

    The bundle's files are checked against its manifest first; its claims are not: that is `apportion verify`.
    """
    if out is not None and out.exists():
        raise RunError(f"{out} exists already; nothing is ever overwritten")
    found = predict_table(bundle, data)
    for warning in found.warnings:
        output.warn(warning)
    if as_json:
        output.print_json(found.to_json())
    elif out is None:
        _write(found, sys.stdout)
    else:
        with open(out, "x", newline="") as file:
            _write(found, file)


def _write(found: Predictions, file: object) -> None:
    writer = csv.writer(file)  # type: ignore[arg-type]  # anything with write
    writer.writerow(["predicted", *(f"p({name})" for name in found.classes)])
    for label, row in zip(found.labels, found.probabilities, strict=True):
        writer.writerow([label, *(f"{value:.6f}" for value in row)])
