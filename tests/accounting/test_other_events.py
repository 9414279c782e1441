"""Which accountant prices which event, as a table: a refusal is as much a promise as a price."""

import math

import pytest

from apportion.accounting.accountant import Accountant
from apportion.accounting.composition import Basic, StrongComposition, StrongCompositionBestSplit
from apportion.accounting.gaussian import Gaussian
from apportion.accounting.moments import Moments
from apportion.accounting.paper_estimate import PaperEstimate
from apportion.accounting.renyi import Renyi
from apportion.accounting.zcdp import ZeroConcentrated
from apportion.errors import UnpricedEvent
from apportion.events import (
    Adjacency,
    Composed,
    DisjointParts,
    Event,
    ExponentialMechanism,
    GaussianRelease,
    PartitionEpoch,
    PoissonEpoch,
    PoissonLaw,
    RepeatAndSelect,
    ShuffleEpoch,
    TruncatedNegativeBinomial,
)

RELEASE = GaussianRelease(sigma=20.0, purpose="pca")
EVENTS: dict[str, Event] = {
    "release": RELEASE,
    "shuffle": ShuffleEpoch(sigma=20.0, batches=10),
    "partition": PartitionEpoch(sigma=20.0, batches=10),
    "poisson": PoissonEpoch(sigma=6.0, rate=0.01, steps=10),
    "exponential": ExponentialMechanism(epsilon=0.2, counts=True),
    "selection": RepeatAndSelect(base=RELEASE, runs=TruncatedNegativeBinomial(eta=1.0, gamma=0.1)),
    "selection-poisson": RepeatAndSelect(base=RELEASE, runs=PoissonLaw(mean=10.0)),
}
GAUSSIAN_ONLY = {"release", "shuffle", "partition", "poisson"}
PRICED: dict[type[Accountant[object]], set[str]] = {
    Basic: set(EVENTS),
    Renyi: set(EVENTS),
    ZeroConcentrated: GAUSSIAN_ONLY | {"exponential"},
    Gaussian: GAUSSIAN_ONLY,
    StrongComposition: GAUSSIAN_ONLY | {"exponential"},
    StrongCompositionBestSplit: GAUSSIAN_ONLY | {"exponential"},
    Moments: {"release", "poisson"},
    PaperEstimate: {"release", "poisson"},
}


@pytest.mark.parametrize("kind", EVENTS)
@pytest.mark.parametrize("accountant", PRICED, ids=lambda cls: cls.name)
def test_each_event_is_priced_by_those_that_can(accountant: type[Accountant[object]], kind: str) -> None:
    event = EVENTS[kind]
    if kind in PRICED[accountant]:
        assert 0 < accountant("zero-out").guarantee(event, 1e-5).epsilon < math.inf
        return
    with pytest.raises(UnpricedEvent, match=f"{accountant.name} does not price {type(event).__name__}"):
        accountant("zero-out").guarantee(event, 1e-5)


def test_a_whole_pipeline_is_priced_by_renyi_and_basic() -> None:
    """Selection on disjoint parts, components, training and evaluation in one ledger."""
    pipeline = Composed(
        events=(
            RELEASE,
            DisjointParts(parts=(EVENTS["partition"], EVENTS["partition"], EVENTS["exponential"])),
            EVENTS["selection"],
            EVENTS["poisson"],
        )
    )
    renyi, basic = (cls("add-remove").guarantee(pipeline, 1e-5).epsilon for cls in (Renyi, Basic))
    assert 0 < renyi < basic < math.inf
    for cls in (Gaussian, ZeroConcentrated, Moments):
        with pytest.raises(UnpricedEvent):
            cls("add-remove").guarantee(pipeline, 1e-5)


@pytest.mark.parametrize(("adjacency", "expected"), [("add-remove", 0.5), ("zero-out", 0.5), ("replace-one", 1.0)])
def test_the_exponential_mechanism_on_counts_is_worth_half_unless_a_unit_is_replaced(
    adjacency: Adjacency, expected: float
) -> None:
    """As δ vanishes what remains is the pure ε: range ε/2 when all counts move the same way."""
    event = ExponentialMechanism(epsilon=1.0, counts=True)
    assert Basic(adjacency).guarantee(event, 1e-12).epsilon == expected
    assert Renyi(adjacency).guarantee(event, 1e-12).epsilon == pytest.approx(expected, rel=1e-3)


def test_disjoint_parts_cost_the_largest_divergence_at_each_order() -> None:
    """Two curves that cross: neither part alone is the worst at every order."""
    few, many = PoissonEpoch(sigma=1.0, rate=0.001, steps=1), PoissonEpoch(sigma=4.0, rate=0.01, steps=400)
    renyi = Renyi("add-remove")
    low, high = 2.0, 20.0
    assert renyi.divergence(few, low) < renyi.divergence(many, low)
    assert renyi.divergence(few, high) > renyi.divergence(many, high)
    both = DisjointParts(parts=(few, many))
    for order in (low, high):
        assert renyi.divergence(both, order) == max(renyi.divergence(few, order), renyi.divergence(many, order))
