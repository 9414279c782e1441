"""The `apportion` command. Exit codes: 0 success, 1 the answer is no, 2 the question was wrong."""

import sys
from typing import Annotated

import typer

import apportion
from apportion.cli import account, explain, keygen, plan, predict, publish, report, select, status, train, verify
from apportion.cli.output import complain
from apportion.errors import ApportionError, BudgetExhausted

app = typer.Typer(
    name="apportion",
    help="Train PyTorch models under a privacy budget and publish them with a guarantee that a stranger can check.\n\n"
    "The usual way: `plan` what a budget buys, `train` within it (or `select` one of several configurations), `publish` "
    "the result; whoever receives it runs `verify` and `predict`. `account` prices any setting, "
    "`explain` says what a guarantee means, `status` and `report` look into a run, `keygen` makes a key to sign with.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for verb in (
    plan.plan,
    account.account,
    train.train,
    select.select,
    status.status,
    report.report,
    publish.publish,
    verify.verify,
    predict.predict,
    explain.explain,
    keygen.keygen,
):
    app.command()(verb)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"apportion {apportion.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Apportion."""


def main() -> None:
    try:
        app()
    except BudgetExhausted as error:
        complain(str(error))
        sys.exit(1)
    except (ApportionError, OSError) as error:
        complain(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        complain("interrupted; a run that had begun can be continued with: apportion train --resume DIR")
        sys.exit(130)
