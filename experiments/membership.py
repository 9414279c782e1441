"""What the guarantee buys: membership inference against the same model, trained with and without privacy."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import apportion as ap
from apportion.accounting import interpretation
from apportion.adaptive import Plan
from apportion.data import mnist
from apportion.drawing import Series, chart
from apportion.randomness import RandomStream
from experiments import words
from experiments.attack import area, likelihood_ratios, scaled_confidence, true_positive_rates
from experiments.experiment import Experiment, Record, Report, Result, Row, Settings, Table
from experiments.mnist import data_absent
from experiments.spread import short
from experiments.trained import tensors, train, why_not

if TYPE_CHECKING:
    import torch

NAME = "membership"
DELTA, CLIP, HIDDEN = 1e-5, 1.0, 64
RATES = [float(f"{rate:.4g}") for rate in np.geomspace(1e-3, 1, 31)]
SHOWN = (0.001, 0.01, 0.1)
_PRIVATE = {"epochs": 60, "batches": 1, "learning_rate": 1.0}
_NON_PRIVATE = {"epochs": 60, "batches": 10, "learning_rate": 0.3}


def rows(quick: bool) -> Sequence[Row]:
    common = {"records": 80 if quick else 1000, "models": 6 if quick else 64, "hidden": HIDDEN}
    short_of = {"epochs": 3} if quick else {}
    without = {"epsilon": None, **common, **_NON_PRIVATE, **short_of}
    return [
        Row(settings=settings)
        for settings in (without, *({"epsilon": e, **common, **_PRIVATE, **short_of} for e in (1.0, 8.0)))
    ]


def model(hidden: int) -> "torch.nn.Module":
    from torch.nn import Linear, Sequential, Tanh

    return Sequential(Linear(784, hidden), Tanh(), Linear(hidden, 10))


def plan_of(settings: Settings) -> Plan:
    """Half the records are expected in a training set; how many there are is private, which Partition allows."""
    common: dict[str, Any] = {
        "examples": settings["records"] // 2,
        "batching": ap.Partition(batches=settings["batches"]),
        "epochs": settings["epochs"],
    }
    if settings["epsilon"] is None:
        return ap.NonPrivatePlan(**common)
    budget = ap.Budget(epsilon=settings["epsilon"], delta=DELTA)
    return ap.solve(budget=budget, schedule=ap.Uniform(), clip=CLIP, **common)


@cache
def _records(count: int) -> tuple[np.ndarray, np.ndarray]:
    training, _ = mnist()
    return training.inputs[:count], training.targets[:count]


def compute(settings: Settings, scratch: Path) -> Result:
    import torch

    inputs, targets = tensors(*_records(settings["records"]))
    plan = plan_of(settings)
    member = RandomStream().coins(0.5, settings["models"] * settings["records"]).reshape(settings["models"], -1)
    probabilities = np.empty(member.shape)
    right = np.empty(member.shape, bool)
    for index, chosen in enumerate(member):
        network = model(settings["hidden"])
        own = torch.from_numpy(chosen)
        train(
            network, (inputs[own], targets[own]), plan,
            learning_rate=settings["learning_rate"], out=scratch / str(index), watched={},
        )  # fmt: skip
        with torch.no_grad():
            outputs = torch.softmax(network(inputs).double(), 1)
        probabilities[index] = outputs.gather(1, targets[:, None])[:, 0].numpy()
        right[index] = (outputs.argmax(1) == targets).numpy()
    confidence = scaled_confidence(probabilities)
    attacks = {"loss": confidence, "likelihood ratio": likelihood_ratios(confidence, member)}
    return {
        "members": float(right[member].mean()),
        "others": float(right[~member].mean()),
        "attacks": {
            name: {"area": area(scores, member), "rates": true_positive_rates(scores, member, np.array(RATES)).tolist()}
            for name, scores in attacks.items()
        },
        "bound": None if settings["epsilon"] is None else bound_of(plan).tradeoff(RATES),
        "epsilon": None if settings["epsilon"] is None else plan.guarantee.epsilon,
        "sigma": None if settings["epsilon"] is None else plan.sigmas[0],
        "attacked": [int(member.sum()), int((~member).sum())],
    }


def bound_of(plan: ap.TrainingPlan) -> interpretation.Profile:
    """What no attack can exceed, from the loss distribution of the whole plan."""
    return interpretation.profile_of_event(plan.event, plan.neighbours, plan.guarantee.epsilon, plan.delta)


def name_of(record: Record) -> str:
    return "no privacy" if record.settings["epsilon"] is None else f"ε = {record.settings['epsilon']:g}"


def report(records: Sequence[Record]) -> Report:
    lines: list[list[Any]] = []
    tidy: list[list[Any]] = []
    curves: list[Series] = []
    for record in records:
        result, name = record.result, name_of(record)
        for attack, found in result["attacks"].items():
            at = dict(zip(RATES, found["rates"], strict=True))
            lines.append(
                [name, short(result["members"]), short(result["others"]), attack, short(found["area"])]
                + [short(at[rate]) for rate in SHOWN]
            )
            tidy += [[name, attack, rate, value] for rate, value in at.items()]
        best = result["attacks"]["likelihood ratio"]["rates"]
        curves.append(Series(label=f"{name}: attack", points=list(zip(RATES, best, strict=True))))
        if result["bound"] is not None:
            curves.append(Series(label=f"{name}: certified", points=list(zip(RATES, result["bound"], strict=True))))
            at = dict(zip(RATES, result["bound"], strict=True))
            lines.append([name, "", "", "**any attack: certified**", "", *(short(at[rate]) for rate in SHOWN)])
            tidy += [[name, "certified bound", rate, value] for rate, value in at.items()]
    first = records[0]
    ratios = first.result["attacks"]["likelihood ratio"]["rates"]
    held = all(
        value <= limit + 3 * np.sqrt(max(limit * (1 - limit), 1e-4) / first.settings["records"])
        for record in records
        if record.result["bound"] is not None
        for found in record.result["attacks"].values()
        for value, limit in zip(found["rates"], record.result["bound"], strict=True)
    )
    columns = [
        "training",
        "right on members",
        "right on others",
        "attack",
        "area",
        *(f"at {100 * r:g} %" for r in SHOWN),
    ]
    text = f"""
{words.picture(NAME, "roc", "the likelihood ratio against what is certified: true-positive by false-positive rate")}

{words.table(columns, lines)}

{first.settings["models"]} models of one hidden layer of {HIDDEN}, each trained on about half of {first.settings["records"]}
images of MNIST, drawn by fair coins; each is attacked with all the others as its shadows. The columns on the right are the
shares of members that an attack finds when it may wrongly accuse so many of the others. The attack by loss takes a small
loss for a sign of membership; the one by likelihood ratio compares, for every record, the models that had it with those
that had not. "Certified" is the most
that any attack can reach, even one that knows all other records and sees every noisy gradient, from the loss
distribution of the plan at δ = {DELTA:g}.

{"**No attack exceeds what is certified**" if held else "**An attack exceeds what is certified, which must not be**"}, and
what is left to it is what these attacks do not use: they see the finished model only. Without privacy nothing is
certified, and the likelihood ratio finds
{100 * dict(zip(RATES, ratios, strict=True))[0.01]:.1f} % of the members at one false accusation in a hundred.
With so few records privacy costs accuracy: that is the price of hiding one person among {first.settings["records"] // 2}.
"""
    return Report(
        text=text,
        tables={"roc": Table(columns=("training", "attack", "false_positive_rate", "true_positive_rate"), lines=tidy)},
        pictures={
            "roc": words.svg(
                chart(
                    curves, title="Who was in the training set?", x="false-positive rate", y="true-positive rate",
                    logarithmic=True,
                )
            )
        },
    )  # fmt: skip


EXPERIMENT = Experiment(
    name=NAME,
    title="What the guarantee buys: membership inference",
    re_runs="Beyond the paper",
    rows=rows,
    compute=compute,
    report=report,
    missing=why_not,
    absent=data_absent,
)
