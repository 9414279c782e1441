"""The paper's schedules at one budget: their noise, what is spent epoch by epoch, and ε under three accountings."""

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import apportion as ap
from apportion.accounting import LossDistribution
from apportion.accounting.conversions import epsilon_of_mu, epsilon_of_rho_classic
from apportion.batching import Partition
from apportion.drawing import Series, chart
from apportion.events import Composed
from apportion.schedules import Schedule
from experiments import paper, words
from experiments.experiment import Experiment, Record, Report, Result, Row, Settings, Table

NAME = "schedules"
SIGMA0 = 10.0
SCHEDULES: dict[str, Schedule] = {
    "uniform": ap.Uniform(sigma0=8.0),
    "time": ap.TimeDecay(sigma0=SIGMA0, decay=0.05),
    "step": ap.StepDecay(sigma0=SIGMA0, decay=0.6, period=10),
    "exponential": ap.ExponentialDecay(sigma0=SIGMA0, decay=0.01),
    "polynomial": ap.PolynomialDecay(sigma0=SIGMA0, decay=3.0, sigma_end=2.0, period=100),
}
VALIDATION = ap.ValidationDecay(sigma0=SIGMA0, decay=0.7, period=10, window=5, threshold=0.01)


def sigmas_of(name: str) -> tuple[float, ...]:
    """As many epochs as fit the budget; of the validation-based schedule the epochs that the paper reports."""
    if name == "validation":
        return tuple(sigma for sigma, count in paper.VALIDATION_SIGMAS for _ in range(count))
    return ap.solve(
        budget=ap.Budget(rho=paper.RHO),
        examples=60_000,
        batching=ap.Shuffle(batches=paper.BATCHES),
        schedule=SCHEDULES[name],
        clip=4.0,
    ).sigmas


def rows(quick: bool) -> Sequence[Row]:
    names = ("uniform", "step") if quick else (*SCHEDULES, "validation")
    return [Row(settings={"schedule": name, "rho": paper.RHO, "batches": paper.BATCHES}) for name in names]


def compute(settings: Settings, scratch: Path) -> Result:
    sigmas = sigmas_of(settings["schedule"])
    rho = math.fsum(1 / (2 * sigma**2) for sigma in sigmas)
    epochs = Composed(events=tuple(Partition(batches=settings["batches"]).event(sigma) for sigma in sigmas))
    partition = LossDistribution("add-remove").guarantee(epochs, paper.DELTA)
    return {
        "sigmas": list(sigmas),
        "rho": rho,
        "epsilon_paper": epsilon_of_rho_classic(rho, paper.DELTA),
        "epsilon_exact": epsilon_of_mu(math.sqrt(2 * rho), paper.DELTA),
        "epsilon_partition": partition.epsilon,
        "epsilon_partition_at_least": partition.epsilon_lower,
    }


def report(records: Sequence[Record]) -> Report:
    noise, spent, lines, tidy = [], [], [], []
    for record in records:
        name, found = record.settings["schedule"], record.result
        total = list(accumulate(1 / (2 * sigma**2) for sigma in found["sigmas"]))
        noise.append(Series(label=name, points=list(enumerate(found["sigmas"], 1)), steps=True))
        spent.append(Series(label=name, points=list(enumerate(total, 1))))
        three = [words.number(found[f"epsilon_{by}"]) for by in ("paper", "exact", "partition")]
        lines.append([name, len(found["sigmas"]), paper.SCHEDULES[name]["epochs"], f"{found['rho']:.6f}", *three])
        tidy += [[name, epoch, s, rho] for epoch, (s, rho) in enumerate(zip(found["sigmas"], total, strict=True), 1)]
    columns = ["schedule", "epochs", "the paper's", "ρ spent", "ε, paper's", "ε, exact", "ε, partition"]
    same = sum(line[1] == line[2] for line in lines)
    agreement = words.agreement(same, len(lines), "numbers of epochs")
    text = f"""
{words.picture(NAME, "noise", "σ by epoch")}
{words.picture(NAME, "spent", "ρ by epoch")}

{words.table(columns, lines)}

{agreement} The paper stops before the epoch that would exceed ρ = {paper.RHO}, so the schedules do not spend the same:
the ρ
column. The validation-based line takes its σ from the paper's text, whose last step is not printed but follows. The last
three columns are three accountings of the *same* noise: the paper's conversion; the exact one, for reshuffled batches when
one record is zeroed; and the proven cost if the batches are a random partition instead of a reshuffle, when one record is
added or removed. For the validation-based line the last one is for comparison only: noise chosen while training may not be
priced along its path (its cap may).
"""
    return Report(
        text=text,
        tables={
            "epochs": Table(columns=("schedule", "epoch", "sigma", "rho_spent"), lines=tidy),
            "epsilon": Table(
                columns=("schedule", "epochs", "rho", "epsilon_paper", "epsilon_exact", "epsilon_partition"),
                lines=[
                    [
                        r.settings["schedule"], len(r.result["sigmas"]), r.result["rho"], r.result["epsilon_paper"],
                        r.result["epsilon_exact"], r.result["epsilon_partition"],
                    ]
                    for r in records
                ],
            ),
        },
        pictures={
            "noise": words.svg(chart(noise, title="Noise multiplier", x="epoch", y="σ")),
            "spent": words.svg(chart(spent, title="Budget spent", x="epoch", y="ρ")),
        },
    )  # fmt: skip


EXPERIMENT = Experiment(
    name=NAME,
    title="The schedules: noise and budget over epochs",
    re_runs='Figures "The change of noise scale" and "Privacy in training", and the epochs of the schedules\' table',
    rows=rows,
    compute=compute,
    report=report,
)
