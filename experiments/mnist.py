"""MNIST through the whole system: private PCA, one hidden layer, the paper's schedules at one budget."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import apportion as ap
from apportion.adaptive import Plan
from apportion.batching import Batching
from apportion.clipping import PerLayer
from apportion.data import Dataset, mnist
from apportion.data.mnist import FOLDERS
from apportion.data.public_files import data_directory, find
from apportion.stages import PrincipalComponents
from experiments import paper
from experiments.accounting.schedules import SCHEDULES, VALIDATION
from experiments.experiment import Result, Row, Settings
from experiments.trained import accuracy, tensors, train

if TYPE_CHECKING:
    import torch

Noise = Literal["each", "scaled"]

PCA_SIGMA, DIMENSIONS, HIDDEN, LAYERS = 16.0, 60, 1000, 2
PCA_RHO = 1 / (2 * PCA_SIGMA**2)
CLIP, LEARNING_RATE, BATCH, VALIDATION_RECORDS = 4.0, 0.05, 600, 5000
WATCHED = 10_000  # training records on which accuracy is followed from epoch to epoch


def data_absent() -> str | None:
    """Why the data would have to be downloaded first."""
    root = data_directory(None)
    here = find(["train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"], FOLDERS, root)
    return None if here else f"MNIST is not in {root} (APPORTION_DATA names a directory that has it)"


def rows(noise: Noise, trials: int, quick: bool) -> Sequence[Row]:
    """Every schedule, uniform noise for as many epochs, and no noise for as many as the longest."""
    common: dict[str, Any] = {"noise": noise, "batching": "shuffle", "records": 2400 if quick else 60_000}
    rho = paper.RHO * (0.02 if quick else 1.0)
    named = [{"kind": "private", "schedule": name, "rho": rho, **common} for name in (*SCHEDULES, "validation")]
    same = [
        {"kind": "uniform", "schedule": name, "epochs": 2 if quick else found["epochs"], "rho": rho, **common}
        for name, found in paper.SCHEDULES.items()
        if name != "uniform"
    ]
    if quick:
        named, same = [named[0], named[-1]], same[-1:]
    epochs = 2 if quick else 100
    non_private = {"kind": "non-private", "epochs": epochs, "batching": "shuffle", "records": common["records"]}
    first, last = ([Row(settings=settings, trials=trials) for settings in group] for group in (named, same))
    return [*first, Row(settings=non_private), *last]


def model(hidden: int = HIDDEN, layers: int = 1) -> "torch.nn.Module":
    from torch.nn import Linear, Module, ReLU, Sequential

    from apportion.training import Projection

    widths = [DIMENSIONS, *[hidden] * layers]
    inner: list[Module] = []
    for inwards, outwards in pairwise(widths):
        inner += [Linear(inwards, outwards), ReLU()]
    return Sequential(Projection(784, DIMENSIONS), *inner, Linear(hidden, 10))


def plan_of(settings: Settings, examples: int) -> Plan:
    """`rho` is what the paper charges for training; the budget is what that costs in truth, and the projection."""
    count = max(1, round(examples / BATCH))
    batching: Batching = (
        ap.Partition(batches=count) if settings["batching"] == "partition" else ap.Shuffle(batches=count)
    )
    if settings["kind"] == "non-private":
        plain = PrincipalComponents(dimensions=DIMENSIONS, sigma=0.0)
        return ap.NonPrivatePlan(examples=examples, batching=batching, epochs=settings["epochs"], components=(plain,))
    clipping = PerLayer(layers=LAYERS, noise=settings["noise"])
    rho = settings["rho"] * (LAYERS if settings["noise"] == "each" else 1) + PCA_RHO
    common: dict[str, Any] = {
        "budget": ap.Budget(rho=rho),
        "examples": examples,
        "batching": batching,
        "clip": CLIP,
        "clipping": clipping,
        "components": (PrincipalComponents(dimensions=DIMENSIONS, sigma=PCA_SIGMA),),
    }
    if settings["kind"] == "uniform":
        sigma = math.sqrt(settings["epochs"] / (2 * settings["rho"]))
        return ap.TrainingPlan(schedule=ap.Uniform(sigma0=sigma), epochs=settings["epochs"], **common)
    if settings["schedule"] == "validation":
        return ap.AdaptivePlan(schedule=VALIDATION, **common)
    return ap.solve(schedule=SCHEDULES[settings["schedule"]], **common)


@cache
def data() -> tuple[Dataset, Dataset]:
    return mnist()


def compute(settings: Settings, scratch: Path) -> Result:
    steered = settings.get("schedule") == "validation" and settings["kind"] == "private"
    held = settings["records"] // 12 if steered else 0
    return fit(settings, scratch, plan_of=plan_of, network=model(), held=held, learning_rate=LEARNING_RATE)


def fit(
    settings: Settings,
    scratch: Path,
    *,
    plan_of: Callable[[Settings, int], Plan],
    network: "torch.nn.Module",
    held: int,
    **training: Any,
) -> Result:
    """Train on all records but the last `held`, which are declared public, and watch from outside."""
    own, testing = data()
    everything = tensors(own.inputs[: settings["records"]], own.targets[: settings["records"]])
    split = settings["records"] - held
    private = (everything[0][:split], everything[1][:split])
    public = (everything[0][split:], everything[1][split:]) if held else None
    test = tensors(testing.inputs, testing.targets)
    result = train(
        network,
        private,
        plan_of(settings, split),
        out=scratch / "run",
        watched={"train": (private[0][:WATCHED], private[1][:WATCHED]), "test": test},
        public=public,
        frozen=1,
        **training,
    )
    return {**result, "train_all": accuracy(network, private), "examples": split}
