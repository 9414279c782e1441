"""Decay rates for a number of epochs: the printed ones, and those that spend the budget exactly."""

from collections.abc import Sequence
from pathlib import Path

import apportion as ap
from apportion.schedules import Schedule
from experiments import paper, words
from experiments.accounting.schedules import SIGMA0
from experiments.experiment import Experiment, Record, Report, Result, Row, Settings, Table

NAME = "decay-rates"
GRID = 1e-4  # the paper's step when it searched
SCHEDULES: dict[str, Schedule] = {
    "time": ap.TimeDecay(sigma0=SIGMA0),
    "step": ap.StepDecay(sigma0=SIGMA0, period=10),
    "exponential": ap.ExponentialDecay(sigma0=SIGMA0),
    "polynomial": ap.PolynomialDecay(sigma0=SIGMA0, sigma_end=2.0, period=100),
}


def rows(quick: bool) -> Sequence[Row]:
    every = [
        Row(settings={"schedule": name, "epochs": epochs, "printed": printed, "rho": paper.RHO})
        for name, values in paper.DECAYS.items()
        for epochs, printed in zip(paper.EPOCHS_OF_DECAYS, values, strict=True)
    ]
    return every[::8] if quick else every


def compute(settings: Settings, scratch: Path) -> Result:
    common = {
        "budget": ap.Budget(rho=settings["rho"]),
        "examples": 60_000,
        "batching": ap.Shuffle(batches=paper.BATCHES),
        "clip": 4.0,
    }
    schedule = SCHEDULES[settings["schedule"]]
    printed = ap.solve(schedule=schedule.with_value("decay", settings["printed"]), **common)
    cheaper = ap.solve(schedule=schedule.with_value("decay", settings["printed"] - GRID), **common)
    exact = ap.solve(schedule=schedule, epochs=settings["epochs"], **common)
    return {
        "epochs_of_printed": printed.epochs,
        "rho_of_printed": printed.rho,
        "epochs_of_one_less": cheaper.epochs,
        "decay": exact.schedule.to_json()["decay"],
        "rho": exact.rho,
    }


def report(records: Sequence[Record]) -> Report:
    lines = []
    for name in SCHEDULES:
        of = [r for r in records if r.settings["schedule"] == name]
        lines.append([f"{name}, printed", *(f"{r.settings['printed']:g}" for r in of)])
        lines.append(["… reaches epochs", *(r.result["epochs_of_printed"] for r in of)])
        lines.append(["… spends ρ", *(f"{r.result['rho_of_printed']:.5f}" for r in of)])
        lines.append([f"**{name}, exact**", *(f"{r.result['decay']:.6f}" for r in of)])
    epochs = sorted({record.settings["epochs"] for record in records})
    off = [r for r in records if r.result["epochs_of_printed"] != r.settings["epochs"]]
    missed = ", ".join(
        f"{r.settings['schedule']} {r.settings['printed']:g} reaches {r.result['epochs_of_printed']}, "
        f"not {r.settings['epochs']}"
        for r in off
    )
    least = min(records, key=lambda r: r.result["rho_of_printed"])
    worst = f"{least.settings['schedule']} {least.settings['printed']:g}"
    same = len(records) - len(off)
    falling = [r for r in records if r.settings["schedule"] != "step"]  # a smaller step factor is a faster decay
    tight = [r for r in falling if r.result["epochs_of_one_less"] > r.settings["epochs"]]
    text = f"""
{words.table(["epochs", *map(str, epochs)], lines)}

{same} of the {len(records)} printed values reach their number of epochs, epochs counted from
0{f" (not: {missed}; why, we do not know)" if off else ""}. In {len(tight)} of the {len(falling)} columns for time,
exponential and
polynomial decay, {GRID:g} less would run longer: those are the *smallest* decays on the paper's grid, and leave budget
unspent,
most of all {worst} with ρ = {least.result["rho_of_printed"]:.5f} of {paper.RHO}. The exact rows spend all of it in the same
epochs (`apportion plan` solves for them): less noise at the end for the same budget.
"""
    columns = ("schedule", "epochs", "printed", "epochs_of_printed", "rho_of_printed", "exact", "rho_of_exact")
    tidy = [
        [
            r.settings["schedule"], r.settings["epochs"], r.settings["printed"], r.result["epochs_of_printed"],
            r.result["rho_of_printed"], r.result["decay"], r.result["rho"],
        ]
        for r in records
    ]  # fmt: skip
    return Report(text=text, tables={"decays": Table(columns=columns, lines=tidy)})


EXPERIMENT = Experiment(
    name=NAME,
    title="Decay rates for a number of epochs",
    re_runs='Table "decay rate values for different training times"',
    rows=rows,
    compute=compute,
    report=report,
)
