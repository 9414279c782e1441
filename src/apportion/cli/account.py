"""`apportion account`: what a setting costs, by every accountant."""

from collections.abc import Sequence
from typing import Annotated

import typer

from apportion import _checks
from apportion.accounting.comparison import Entry, compare
from apportion.accounting.groups import group_guarantee
from apportion.cli import options as o
from apportion.cli import output
from apportion.errors import InvalidArgument, UnpricedEvent
from apportion.events import Composed
from apportion.plan import MOST_EPOCHS, rho_of


def account(
    delta: Annotated[float, typer.Option(help="δ at which ε is stated.")],
    epochs: Annotated[int, typer.Option(help="Number of epochs.")],
    batching: o.BatchingOption = "partition",
    batches: o.BatchesOption = None,
    rate: o.RateOption = None,
    sigma: Annotated[
        float | None, typer.Option(help="One noise multiplier for all epochs.", show_default=False)
    ] = None,
    schedule: o.ScheduleOption = "uniform",
    sigma0: o.Sigma0Option = None,
    decay: o.DecayOption = None,
    period: o.PeriodOption = None,
    sigma_end: o.SigmaEndOption = None,
    adjacency: o.AdjacencyOption = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also show what is not valid here, with the reason, for comparison as in the paper's figures."
        ),
    ] = False,
    group: Annotated[
        int | None,
        typer.Option(help="Also state ε for groups of this many records (one person's, say).", show_default=False),
    ] = None,
    plot: o.PlotOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Price a training run that used this noise, by every accountant that is valid for its batching.

    apportion account --batching partition --batches 100 --sigma 6 --epochs 400 --delta 1e-5
    """
    if sigma is not None:
        if sigma0 is not None or schedule != "uniform":
            raise InvalidArgument("give either --sigma, or --schedule with --sigma0, not both")
        sigma0 = sigma
    noise = o.schedule_of(schedule, sigma0, decay, period, sigma_end)
    if noise.unknowns():
        raise InvalidArgument(f"--{noise.unknowns()[0]} is missing (or --sigma for uniform noise)")
    chosen = o.batching_of(batching, o.batches_of(batches), o.rate_of(rate))
    _checks.probability("--delta", delta)
    if _checks.count("--epochs", epochs) > MOST_EPOCHS:
        raise InvalidArgument(f"--epochs must be at most {MOST_EPOCHS:,}, got {epochs:,}")
    sigmas = [noise(index) for index in range(epochs)]
    neighbours = adjacency or chosen.adjacency
    if plot is not None:
        from apportion.report.figures import plot_accountants

        plot_accountants(chosen, sigmas, delta, neighbours, plot)
    entries = compare(chosen, sigmas, delta, neighbours, everything=everything)
    proven = [entry for entry in entries if entry.valid and entry.status == "proven"]
    if not proven:
        refusals = compare(chosen, sigmas, delta, neighbours, everything=True)
        raise UnpricedEvent(f"no accountant is valid for {chosen.kind} under {neighbours}: {refusals[-1].reason}")
    event = Composed(events=tuple(chosen.at(epoch).event(sigma) for epoch, sigma in enumerate(sigmas)))
    groups = None if group is None else group_guarantee(event, delta, neighbours, group)
    if as_json:
        output.print_json(
            {
                "batching": chosen.kind,
                "epochs": epochs,
                "delta": delta,
                "rho": rho_of(event, neighbours),
                **({} if groups is None else {"group": groups.to_json()}),
                "guarantees": [entry.to_json() for entry in entries],
                "tightest": {"accountant": proven[0].accountant, "epsilon": proven[0].epsilon},
            }
        )
        return
    _show(entries)
    if groups is not None:
        output.out.print(f"groups of {group}: ε = {groups.epsilon:.5g} ({groups.accountant})")


def _show(entries: Sequence[Entry]) -> None:
    from rich.table import Column, Table

    table = Table(Column("accountant", no_wrap=True), "ε", "at least", "adjacency", "status", box=None)
    for entry in entries:
        epsilon = "–" if entry.epsilon is None else f"{entry.epsilon:.5g}"
        lower = "" if entry.epsilon_lower is None else f"{entry.epsilon_lower:.5g}"
        status = entry.status if entry.valid else f"NOT VALID: {entry.reason.removeprefix('not valid: ')}"
        table.add_row(entry.accountant, epsilon, lower, entry.adjacency, status, style=None if entry.valid else "dim")
    output.out.print(table)
