"""What accuracy a budget buys, and what it depends on: the numbers of docs/accuracy.md.

    python benchmarks/accuracy.py [--data-dir DIR]     # measures what is missing, then rewrites the page's tables
    python benchmarks/accuracy.py --page               # only the tables

A case is a data set and a plan; each is trained several times with fresh noise. For MNIST every case tries the learning
rates of `RATES` once (lower ones without privacy, where nothing is clipped) and then repeats the better: choosing it by
test accuracy is what a publisher must not do with private data, and is done here so that no case suffers from a rate that
suits another. Results are kept case by case, so that an interrupted run goes on where it stopped. The test records are
public.
"""

import argparse
import json
import re
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import apportion as ap
from apportion import outlook
from apportion.data import Dataset, mnist, wisconsin
from apportion.plan import NonPrivatePlan
from apportion.training import fit
from apportion.training.finished import FinishedRun

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"
RATES = {"mnist": (2.0, 8.0), "wisconsin": (0.5,)}
RATES_WITHOUT_PRIVACY = {"mnist": (0.5, 2.0), "wisconsin": (0.5,)}
REPEATS = {"mnist": 2, "wisconsin": 10}
DELTA = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`epsilon` None is training without privacy."""

    dataset: str
    epsilon: float | None = 2.0
    batching: str = "partition"
    batches: int = 60
    epochs: int = 8
    clip: float = 1.0
    decay: float | None = None
    hidden: tuple[int, ...] = (100,)
    averaging: float | None = None

    @property
    def key(self) -> str:
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values, sort_keys=True)


MNIST = Case(dataset="mnist")
TABLE = Case(dataset="wisconsin", batches=4, epochs=30, hidden=(16,), epsilon=1.0)
# Table → what varies in it → its rows.
TABLES: Mapping[str, tuple[str, Mapping[str, Case]]] = {
    "mnist-budget": (
        "budget",
        {
            **{f"ε = {e:g}": replace(MNIST, epsilon=e) for e in (0.5, 2.0, 8.0)},
            "no privacy": replace(MNIST, epsilon=None),
        },
    ),
    "mnist-batch": (
        "batches per epoch",
        {str(k): replace(MNIST, batches=k) for k in (240, 60, 15)},
    ),
    "mnist-epochs": ("epochs", {str(e): replace(MNIST, epochs=e) for e in (2, 8, 16)}),
    "mnist-clip": ("clipping norm", {f"{c:g}": replace(MNIST, clip=c) for c in (0.1, 1.0, 10.0)}),
    "mnist-model": (
        "hidden units",
        {"none": replace(MNIST, hidden=()), "30": replace(MNIST, hidden=(30,)), "100": MNIST},
    ),
    "mnist-mechanism": (
        "mechanism",
        {
            "partition": MNIST,
            "reshuffling": replace(MNIST, batching="shuffle"),
            "partition, exponential decay 0.1": replace(MNIST, decay=0.1),
            "partition, averaged weights": replace(MNIST, averaging=0.98),
        },
    ),
    "table-budget": (
        "budget",
        {
            **{f"ε = {e:g}": replace(TABLE, epsilon=e) for e in (0.1, 0.3, 1.0)},
            "no privacy": replace(TABLE, epsilon=None),
        },
    ),
    "table-levers": (
        "at ε = 0.3",
        {
            "as above": replace(TABLE, epsilon=0.3),
            "16 batches instead of 4": replace(TABLE, epsilon=0.3, batches=16),
            "1 batch": replace(TABLE, epsilon=0.3, batches=1),
            "5 epochs instead of 30": replace(TABLE, epsilon=0.3, epochs=5),
            "no hidden layer": replace(TABLE, epsilon=0.3, hidden=()),
            "averaged weights": replace(TABLE, epsilon=0.3, averaging=0.9),
        },
    ),
}


def plan_of(case: Case, examples: int) -> ap.TrainingPlan | NonPrivatePlan:
    kind = ap.Partition if case.batching == "partition" else ap.Shuffle
    batching = kind(batches=case.batches)
    if case.epsilon is None:
        return NonPrivatePlan(examples=examples, batching=batching, epochs=case.epochs)
    return ap.solve(
        budget=ap.Budget(epsilon=case.epsilon, delta=DELTA),
        examples=examples,
        batching=batching,
        schedule=ap.Uniform() if case.decay is None else ap.ExponentialDecay(decay=case.decay),
        epochs=case.epochs,
        clip=case.clip,
    )


def network(case: Case, train: Dataset) -> torch.nn.Sequential:
    widths = (train.inputs.shape[1], *case.hidden, len(train.classes))
    layers = [layer for sizes in pairwise(widths) for layer in (torch.nn.Linear(*sizes), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers[:-1])


def accuracy(case: Case, plan: Any, rate: float, train: Dataset, test: Dataset) -> float:
    model = network(case, train)
    with tempfile.TemporaryDirectory() as directory:
        finished = fit(
            model,
            (train.inputs, train.targets),
            plan,
            loss=torch.nn.functional.cross_entropy,
            # A step's length goes with the clipping norm: the rate is that of clip = 1.
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate / case.clip),
            out=Path(directory) / "run",
            weights="last" if case.averaging is None else "averaged",
            averaging=case.averaging,
            progress=False,
        )
        assert isinstance(finished, FinishedRun)
    with torch.no_grad():
        outputs = model(torch.as_tensor(test.inputs, dtype=torch.float32))
    return float((outputs.argmax(1) == torch.as_tensor(test.targets)).double().mean())


def measure(case: Case, train: Dataset, test: Dataset) -> dict[str, Any]:
    plan = plan_of(case, len(train))
    parameters = sum(p.numel() for p in network(case, train).parameters())
    rates = RATES_WITHOUT_PRIVACY if case.epsilon is None else RATES
    tried = {rate: accuracy(case, plan, rate, train, test) for rate in rates[case.dataset]}
    best = max(tried, key=lambda rate: tried[rate])
    runs = [accuracy(case, plan, best, train, test) for _ in range(REPEATS[case.dataset])]
    found: dict[str, Any] = {"learning_rate": best, "accuracies": [round(run, 4) for run in runs]}
    if isinstance(plan, ap.TrainingPlan):
        signal = outlook.signal(plan, parameters)
        found |= {"sigma": signal.sigma_first, "noise_to_signal": signal.first, "overall": signal.overall}
    return found


def measure_missing(directory: Path | None) -> None:
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    loaded: dict[str, tuple[Dataset, Dataset]] = {}
    for case in (case for _, rows in reversed(TABLES.values()) for case in rows.values()):
        if case.key in kept["cases"]:
            continue
        if case.dataset not in loaded:
            loaded[case.dataset] = mnist(directory) if case.dataset == "mnist" else wisconsin()
        kept["cases"][case.key] = measure(case, *loaded[case.dataset])
        kept["software"] = f"apportion {ap.__version__}, torch {torch.__version__}"
        RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(case, kept["cases"][case.key], flush=True)


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Every table of the page, in Markdown; empty where something is not measured yet."""
    made = {}
    for name, (heading, rows) in TABLES.items():
        lines = [f"| {heading} | σ | noise/signal per step | overall | learning rate | test accuracy |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        for label, case in rows.items():
            found = results["cases"].get(case.key)
            if found is not None:
                lines.append(_row(label, found))
        made[name] = "\n".join(lines)
    return made


def _row(label: str, found: Mapping[str, Any]) -> str:
    noise = [f"{found[name]:.3g}" if name in found else "–" for name in ("sigma", "noise_to_signal", "overall")]
    runs = found["accuracies"]
    mean, spread = statistics.fmean(runs), statistics.stdev(runs)
    cells = [label, *noise, f"{found['learning_rate']:g}", f"{mean:.3f} ± {spread:.3f}"]
    return f"| {' | '.join(cells)} |"


def rewritten(page: str, results: Mapping[str, Any]) -> str:
    """The page with the tables between its markers replaced."""
    for name, table in tables(results).items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        page = pattern.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", page)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where the files of MNIST lie (else APPORTION_DATA)")
    parser.add_argument("--page", action="store_true", help="only rewrite the tables of docs/accuracy.md")
    arguments = parser.parse_args()
    if not arguments.page:
        measure_missing(arguments.data_dir)
    PAGE.write_text(rewritten(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
