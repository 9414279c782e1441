"""The cancer table with the paper's schedules: full batch, three hidden layers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import apportion as ap
from apportion.adaptive import Plan
from apportion.data import Dataset, wisconsin
from apportion.drawing import Series, chart
from experiments import paper, words
from experiments.experiment import Experiment, Record, Report, Result, Row, Settings, Table
from experiments.pictures import ranges
from experiments.spread import curve, final, percent, share_of_gap, short
from experiments.trained import tensors, train, why_not

if TYPE_CHECKING:
    import torch

NAME = "cancer"
RHO = 500 / (2 * 25.0**2)  # what the paper's uniform schedule spends: σ = 25 for 500 epochs
SCHEDULES: dict[str, ap.Uniform | ap.ExponentialDecay | ap.ValidationDecay] = {
    "uniform": ap.Uniform(sigma0=25.0),
    "exponential": ap.ExponentialDecay(sigma0=30.0, decay=0.001),
    "validation": ap.ValidationDecay(sigma0=35.0, decay=0.99, period=50, window=1, threshold=0.01),
}
ONE_BATCH = ap.Partition(batches=1)
CLIP, LEARNING_RATE, TRIALS = 4.0, 0.05, 10


def rows(quick: bool) -> Sequence[Row]:
    part = 0.01 if quick else 1.0
    common = {"clip": CLIP, "learning_rate": LEARNING_RATE}
    private = [{"schedule": name, "rho": RHO * part, **common} for name in SCHEDULES]
    non_private = {"schedule": "non-private", "epochs": round(800 * part), "learning_rate": LEARNING_RATE}
    return [Row(settings=settings, trials=2 if quick else TRIALS) for settings in (*private, non_private)]


def model() -> "torch.nn.Module":
    from torch.nn import Linear, ReLU, Sequential

    return Sequential(Linear(9, 10), ReLU(), Linear(10, 20), ReLU(), Linear(20, 10), ReLU(), Linear(10, 2))


def plan_of(settings: Settings, examples: int) -> Plan:
    if settings["schedule"] == "non-private":
        return ap.NonPrivatePlan(examples=examples, batching=ONE_BATCH, epochs=settings["epochs"])
    schedule, budget = SCHEDULES[settings["schedule"]], ap.Budget(rho=settings["rho"])
    if isinstance(schedule, ap.ValidationDecay):
        return ap.AdaptivePlan(
            budget=budget, examples=examples, batching=ONE_BATCH, schedule=schedule, clip=settings["clip"]
        )
    return ap.solve(budget=budget, examples=examples, batching=ONE_BATCH, schedule=schedule, clip=settings["clip"])


def carved(data: Dataset) -> tuple[Dataset, Dataset]:
    """(kept, carved out): every tenth record, a rule that does not look at the records."""
    chosen = np.arange(len(data)) % 10 == 9
    return data.select(~chosen), data.select(chosen)


def compute(settings: Settings, scratch: Path) -> Result:
    private, test = wisconsin()
    public = None
    if settings["schedule"] == "validation":
        private, validation = carved(private)
        public = tensors(validation.inputs, validation.targets)
    data = tensors(private.inputs, private.targets)
    return train(
        model(),
        data,
        plan_of(settings, len(private)),
        learning_rate=settings["learning_rate"],
        out=scratch / "run",
        watched={"train": data, "test": tensors(test.inputs, test.targets)},
        public=public,
    ) | {"examples": len(private), "test_examples": len(test)}


def report(records: Sequence[Record]) -> Report:
    of = {name: [r for r in records if r.settings["schedule"] == name] for name in (*SCHEDULES, "non-private")}
    of = {name: found for name, found in of.items() if found}
    lines, tidy, shares = [], [], {}
    base, best = final(of["uniform"], "test").mean, final(of["non-private"], "test").mean
    for name, found in of.items():
        test, result = final(found, "test"), found[0].result
        epochs = sorted({r.result["epochs"] for r in found})
        shares[name] = share_of_gap(test.mean, base, best)
        printed = paper.CANCER.get(name, {})
        lines.append([
            name, f"{epochs[0]}–{epochs[-1]}" if len(epochs) > 1 else epochs[0],
            "∞" if name == "non-private" else f"{max(r.result['rho'] for r in found):.4f}",
            "∞" if name == "non-private" else words.number(result["epsilon"]), test.count, final(found, "train"), test,
            "–" if name == "uniform" else f"{100 * (test.mean - base):+.1f}",
            printed.get("points", "–"), percent(shares[name]) if name in ("exponential", "validation") else "–",
            printed.get("share", "–"),
        ])  # fmt: skip
        for r in found:
            tidy += [
                [name, r.trial + 1, epoch, train_accuracy, test_accuracy]
                for epoch, (train_accuracy, test_accuracy) in enumerate(
                    zip(r.result["train"], r.result["test"], strict=True), 1
                )
                if epoch % 10 == 0 or epoch == len(r.result["test"])
            ]
    curves = [Series(label=name, points=curve(found, "test")[::5]) for name, found in of.items()]
    examples, tests = of["uniform"][0].result["examples"], of["uniform"][0].result["test_examples"]
    kept_examples = of["validation"][0].result["examples"]
    widest = max(final(found, "test").high - final(found, "test").low for found in of.values())
    columns = [
        "schedule", "epochs", "ρ", "ε", "trials", "train", "test", "points over uniform", "the paper's",
        "share of the gap", "the paper's",
    ]  # fmt: skip
    text = f"""
{words.picture(NAME, "curves", "test accuracy by epoch")}
{words.picture(NAME, "final", "test accuracy at the end")}

{words.table(columns, lines)}

Accuracy is the mean over trials, with the smallest and the largest. The budget is that of the paper's uniform schedule, ρ =
{records[0].settings["rho"]:g}; the exponential schedule runs as long as it lasts. ε is exact, for adding or removing
one record.
The paper states neither clipping norm nor learning rate here; we take those of its MNIST experiment, clip
{CLIP:g} and {LEARNING_RATE:g}, and nothing was tuned on the test records (a few other values,
tried once on records carved out of the training part, decided nothing). Its {examples}/{tests} split leaves no
validation records: the
validation row trains on {kept_examples} and holds every tenth of the {examples} for validation, **declared public. In
truth those are
patients' records, too**, so its guarantee covers the {kept_examples} only. What is certified for it is the cap of ρ,
whatever was spent.

**We differ.** With these settings uniform noise already reaches {short(base)} where training without noise reaches
{short(best)}: there is a gap of {100 * (best - base):.1f} points to close, less than the {100 * widest:.1f} points
between two trials of one row, and one
test record is {100 / tests:.1f} points. So the paper's {paper.CANCER["exponential"]["points"]} points for the
exponential schedule cannot be
confirmed here, nor refuted. Its clipping norm, learning rate and scaling of the features are not printed; a choice
under which
uniform noise does worse would leave more of a gap. Which one it was, we do not know.
"""
    return Report(
        text=text,
        tables={"accuracy": Table(columns=("schedule", "trial", "epoch", "train", "test"), lines=tidy)},
        pictures={
            "curves": words.svg(
                chart(curves, title="Test accuracy, mean over trials", x="epoch", y="accuracy", from_zero=False)
            ),
            "final": ranges(
                {name: final(found, "test") for name, found in of.items()}, title="Test accuracy, mean and min–max"
            ),
        },
    )


EXPERIMENT = Experiment(
    name=NAME,
    title="Cancer",
    re_runs='Figure "Accuracy (Cancer)"',
    rows=rows,
    compute=compute,
    report=report,
    missing=why_not,
)
