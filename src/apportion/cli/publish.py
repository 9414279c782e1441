"""`apportion publish`: from a finished run to a bundle."""

from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.bundle import write
from apportion.cli import options as o
from apportion.cli import output
from apportion.described import table_of_run
from apportion.errors import InvalidArgument, RunError
from apportion.plain_words import words
from apportion.publication import Hyperparameters, Publication, name_for
from apportion.stages import PrivateEvaluation

_STATED, _EXTRA = "Statements on the certificate", "Also"


def publish(
    run: Annotated[Path, typer.Argument(help="The run directory.", show_default=False)],
    to: Annotated[Path, typer.Option(help="The bundle directory to write; it must not exist.", show_default=False)],
    hyperparameters: Annotated[
        Hyperparameters | None,
        typer.Option(help="How the hyperparameters were chosen.", rich_help_panel=_STATED, show_default=False),
    ] = None,
    earlier_runs: Annotated[
        int | None,
        typer.Option(help="How many runs on this data came before.", rich_help_panel=_STATED, show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The model's name (default: that of the directory).", rich_help_panel=_STATED)
    ] = None,
    intended_use: Annotated[
        str | None, typer.Option(help="One sentence for the model card.", rich_help_panel=_STATED, show_default=False)
    ] = None,
    license: Annotated[
        str | None, typer.Option(help="For the model card, as apache-2.0.", rich_help_panel=_STATED, show_default=False)
    ] = None,
    evaluate_privately: Annotated[
        float | None,
        typer.Option(
            help="Add a test score on the held-out records, with this noise multiplier; it is paid for on top of the plan.",
            rich_help_panel=_EXTRA,
            show_default=False,
        ),
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also export the model to ONNX, compared first.", rich_help_panel=_EXTRA)
    ] = False,
    as_zip: Annotated[
        bool, typer.Option("--zip", help="Also write the bundle as one file, DIR.zip.", rich_help_panel=_EXTRA)
    ] = False,
    sign: Annotated[
        Path | None,
        typer.Option(help="Sign with this private key (see keygen).", rich_help_panel=_EXTRA, show_default=False),
    ] = None,
    allow_unsafe: Annotated[
        bool,
        typer.Option("--allow-unsafe", help="Publish a seeded run all the same, marked UNSAFE on its certificate."),
    ] = False,
    as_json: o.JsonOption = False,
) -> None:
    """Write the bundle of a finished run: weights, ledger, plan, certificate and model card.

    Only these leave the run directory; metrics and checkpoints, which are computed from private data, stay.
    """
    publication = Publication(
        name=name or name_for(to.name),
        hyperparameters=hyperparameters,
        earlier_runs=earlier_runs,
        intended_use=intended_use,
        license=license,
    )
    write.refuse_early(run, to, sign=sign, as_zip=as_zip, allow_unsafe=allow_unsafe)
    exported = _with_the_model(run, onnx, evaluate_privately) if onnx or evaluate_privately is not None else None
    certificate = write.publish(
        run,
        to,
        publication=publication,
        table=table_of_run(run),
        onnx=exported,
        sign=sign,
        as_zip=as_zip,
        allow_unsafe=allow_unsafe,
    )
    published = certificate.to_json()
    if as_json:
        names = sorted(path.name for path in to.iterdir())
        output.print_json({"bundle": str(to), "archive": _archive(to, as_zip), "files": names, **published})
        return
    from rich.markdown import Markdown

    output.out.print(Markdown(words(published)))
    output.out.print(f"published to {to}; anyone can check it with: apportion verify {to}", soft_wrap=True)


def _archive(to: Path, as_zip: bool) -> str | None:
    return str(write.archive_of(to)) if as_zip else None


def _with_the_model(run: Path, onnx: bool, sigma: float | None) -> Any:
    """What needs PyTorch and the network itself, which is rebuilt from the settings of the run."""
    try:
        from apportion.training import publishing, tabular
    except ImportError as error:
        raise RunError(f"this needs PyTorch: pip install 'apportion[train]' ({error})") from error
    table = table_of_run(run)
    if table is None:
        raise InvalidArgument(
            f"{run} was trained by your own code: publish it there, run.publish(…, model=…, onnx=…, evaluate_privately=…)"
        )
    network, held_out = tabular.rebuilt(run)
    exported = publishing.export_released(run, network, (len(table.ranges),)) if onnx else None
    if sigma is not None:
        publishing.evaluate(run, PrivateEvaluation(sigma=sigma), network, held_out(), on_top_of_the_plan=True)
    return exported
