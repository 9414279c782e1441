"""`apportion account`: what a setting costs, by every accountant."""

from typing import Annotated

import typer

from apportion import _checks, accounting
from apportion.cli import options as o
from apportion.cli import output
from apportion.errors import InvalidArgument
from apportion.events import Composed
from apportion.plan import rho_of


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
    chosen = o.batching_of(batching, batches, rate)
    _checks.count("--epochs", epochs)
    event = Composed(events=tuple(chosen.event(noise(index)) for index in range(epochs)))
    neighbours = adjacency or chosen.adjacency
    found = accounting.guarantees(event, _checks.probability("--delta", delta), neighbours)
    tightest = found[0]
    if as_json:
        output.print_json(
            {
                "batching": chosen.kind,
                "epochs": epochs,
                "delta": delta,
                "rho": rho_of(event, neighbours),
                "guarantees": [guarantee.to_json() for guarantee in found],
                "tightest": {"accountant": tightest.accountant, "epsilon": tightest.epsilon},
            }
        )
        return
    from rich.table import Table

    table = Table("accountant", "ε", "adjacency", "status", box=None)
    for guarantee in found:
        table.add_row(guarantee.accountant, f"{guarantee.epsilon:.5g}", guarantee.adjacency, guarantee.status)
    output.out.print(table)
