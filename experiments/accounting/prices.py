"""ε of the same noise by every accountant: those of the paper's figures, and what can be proved today."""

from collections.abc import Sequence
from typing import Any

from apportion.accounting import (
    Accountant,
    Gaussian,
    LossDistribution,
    Moments,
    PaperEstimate,
    Renyi,
    StrongComposition,
    ZeroConcentrated,
)
from apportion.accounting.paper_estimate import why_out_of_range
from apportion.batching import Batching, Partition, Poisson, Shuffle
from apportion.errors import UnpricedEvent
from apportion.events import Composed

PAPERS = ("zCDP(RF)", "strong composition", "zCDP(RS)", "moments")
PROVEN = ("shuffle, exact", "partition", "Poisson", "Poisson, Rényi")


def prices(sigmas: Sequence[float], batches: int, delta: float) -> dict[str, float | None]:
    """None where an accountant refuses. zCDP(RS) is computed outside its range, too, as the paper's figures do."""
    shuffle, partition, poisson = Shuffle(batches=batches), Partition(batches=batches), Poisson(rate=1 / batches)
    asked: dict[str, tuple[Accountant[Any], Batching]] = {
        "zCDP(RF)": (ZeroConcentrated("zero-out"), shuffle),
        "strong composition": (StrongComposition("add-remove"), poisson),
        "zCDP(RS)": (PaperEstimate("add-remove", outside_its_range=True), poisson),
        "moments": (Moments("add-remove"), poisson),
        "shuffle, exact": (Gaussian("zero-out"), shuffle),
        "partition": (LossDistribution("add-remove", lower_bound=False), partition),
        "Poisson": (LossDistribution("add-remove", lower_bound=False), poisson),
        "Poisson, Rényi": (Renyi("add-remove"), poisson),
    }
    return {name: _price(accountant, batching, sigmas, delta) for name, (accountant, batching) in asked.items()} | {
        "zCDP(RS) in its range": None if why_out_of_range(min(sigmas), 1 / batches) else 1.0
    }


def _price(accountant: Accountant[Any], batching: Batching, sigmas: Sequence[float], delta: float) -> float | None:
    try:
        return accountant.guarantee(Composed(events=tuple(map(batching.event, sigmas))), delta).epsilon
    except UnpricedEvent:
        return None
