"""Laws that every accountant must keep. A new accountant is one more line in `ACCOUNTANTS`."""

import contextlib
import importlib
import itertools
import math
from dataclasses import dataclass

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
    ADJACENCIES,
    Adjacency,
    Composed,
    DisjointParts,
    Event,
    GaussianRelease,
    NonPrivate,
    PartitionEpoch,
    PoissonEpoch,
    Repeated,
    ShuffleEpoch,
)

DELTAS = (1e-9, 1e-5, 1e-3)


def accountants() -> list[type[Accountant[object]]]:
    found = [
        Basic,
        Gaussian,
        Moments,
        PaperEstimate,
        Renyi,
        StrongComposition,
        StrongCompositionBestSplit,
        ZeroConcentrated,
    ]
    with contextlib.suppress(ImportError, AttributeError):  # the suite takes it in as soon as it is there
        found.append(importlib.import_module("apportion.accounting.loss_distribution").LossDistribution)
    return found


ACCOUNTANTS = accountants()
every_accountant = pytest.mark.parametrize("cls", ACCOUNTANTS, ids=lambda cls: cls.name)


@dataclass(frozen=True)
class Case:
    """A mechanism whose noise can be turned up; parameters lie within the ranges of the estimates too."""

    name: str

    def event(self, sigma: float) -> Event:
        match self.name:
            case "release":
                return GaussianRelease(sigma=sigma)
            case "partition":
                return PartitionEpoch(sigma=sigma, batches=50)
            case "shuffle":
                return ShuffleEpoch(sigma=sigma, batches=50)
            case _:
                return PoissonEpoch(sigma=sigma, rate=0.001, steps=50)


CASES = [Case(name) for name in ("release", "partition", "shuffle", "poisson")]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def epsilon(
    cls: type[Accountant[object]], event: Event, delta: float = 1e-5, adjacency: Adjacency = "zero-out"
) -> float:
    """ε, or a skipped test where this accountant does not price the event at all."""
    try:
        return cls(adjacency).guarantee(event, delta).epsilon
    except UnpricedEvent as refusal:
        pytest.skip(str(refusal))


def slack(cls: type[Accountant[object]], event: Event, delta: float = 1e-5) -> float:
    """How far two evaluations of an upper bound may differ: its own interval, where it reports one, or its grid of
    orders. Laws are about the true ε, which lies within."""
    guarantee = cls("zero-out").guarantee(event, delta)
    interval = 0.0 if guarantee.epsilon_lower is None else guarantee.epsilon - guarantee.epsilon_lower
    return interval + 1e-3 * guarantee.epsilon + 1e-12


@every_accountant
@every_case
def test_repeated_is_listed(cls: type[Accountant[object]], case: Case) -> None:
    event = case.event(30.0)
    expected = epsilon(cls, Composed(events=(event,) * 20))
    assert epsilon(cls, Repeated(event=event, count=20)) == expected
    nested = Repeated(event=Repeated(event=event, count=4), count=5)
    assert epsilon(cls, nested) == expected
    assert epsilon(cls, Composed(events=(Repeated(event=event, count=19), event))) == expected


@every_accountant
@every_case
def test_order_does_not_matter(cls: type[Accountant[object]], case: Case) -> None:
    events = tuple(case.event(sigma) for sigma in (30.0, 31.0, 40.0, 30.0))
    expected = epsilon(cls, Composed(events=events))
    assert epsilon(cls, Composed(events=events[::-1])) == expected
    assert epsilon(cls, Composed(events=(events[2], Composed(events=events[:2]), events[3]))) == expected


@every_accountant
@every_case
def test_more_noise_never_costs_more(cls: type[Accountant[object]], case: Case) -> None:
    costs = []
    for sigma in (20.0, 25.0, 40.0, 60.0):
        event = Repeated(event=case.event(sigma), count=10)
        costs.append((epsilon(cls, event), slack(cls, event)))
    for (noisy, tolerance), (noisier, _) in itertools.pairwise(costs):
        assert noisier <= noisy + tolerance


@every_accountant
@every_case
def test_more_events_never_cost_less(cls: type[Accountant[object]], case: Case) -> None:
    before: Event = Repeated(event=case.event(30.0), count=3)
    for extra in (case.event(30.0), case.event(45.0), GaussianRelease(sigma=100.0)):
        after = Composed(events=(before, extra))
        assert epsilon(cls, after) >= epsilon(cls, before) - slack(cls, before)
        before = after


@every_accountant
@every_case
def test_a_smaller_delta_never_gives_a_smaller_epsilon(cls: type[Accountant[object]], case: Case) -> None:
    event = Repeated(event=case.event(40.0), count=10)
    epsilons = [epsilon(cls, event, delta) for delta in DELTAS]
    for index, (tighter, looser) in enumerate(itertools.pairwise(epsilons)):
        assert tighter >= looser - slack(cls, event, DELTAS[index])


@every_accountant
@every_case
def test_disjoint_parts_cost_at_least_each_and_at_most_all(cls: type[Accountant[object]], case: Case) -> None:
    parts = (Repeated(event=case.event(30.0), count=6), case.event(25.0), case.event(60.0))
    together = epsilon(cls, DisjointParts(parts=parts))
    everything = Composed(events=parts)
    for part in parts:
        assert together >= epsilon(cls, part) - slack(cls, part)
    assert together <= epsilon(cls, everything) + slack(cls, everything)
    assert epsilon(cls, DisjointParts(parts=(parts[0],) * 7)) == epsilon(cls, parts[0])


@every_accountant
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_what_is_not_private_costs_infinity(cls: type[Accountant[object]], adjacency: Adjacency) -> None:
    release = GaussianRelease(sigma=30.0)
    for event in (
        NonPrivate(),
        Composed(events=(release, NonPrivate())),
        Repeated(event=NonPrivate(), count=3),
        DisjointParts(parts=(release, NonPrivate())),
    ):
        assert epsilon(cls, event, adjacency=adjacency) == math.inf


@every_accountant
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_nothing_costs_nothing(cls: type[Accountant[object]], adjacency: Adjacency) -> None:
    assert epsilon(cls, Composed(events=()), adjacency=adjacency) == 0.0


class Unheard:
    """Not in the grammar."""


@every_accountant
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_an_unknown_leaf_is_refused(cls: type[Accountant[object]], adjacency: Adjacency) -> None:
    with pytest.raises(UnpricedEvent, match="does not price Unheard"):
        cls(adjacency).price(Unheard())  # type: ignore[arg-type]  # that is the point


@every_accountant
def test_a_shuffled_epoch_is_refused_when_a_unit_is_added_or_removed(cls: type[Accountant[object]]) -> None:
    with pytest.raises(UnpricedEvent, match="ShuffleEpoch"):
        cls("add-remove").guarantee(ShuffleEpoch(sigma=30.0, batches=50), 1e-5)


@every_accountant
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_shuffled_epoch_never_gets_an_amplified_number(cls: type[Accountant[object]], adjacency: Adjacency) -> None:
    """However many batches there are, a pass costs what one plain release costs, and not less than its exact ε."""
    plain = epsilon(cls, GaussianRelease(sigma=10.0), adjacency=adjacency)
    exact = Gaussian(adjacency).guarantee(GaussianRelease(sigma=10.0), 1e-5).epsilon
    for batches in (1, 10, 10_000):
        found = epsilon(cls, ShuffleEpoch(sigma=10.0, batches=batches), adjacency=adjacency)
        assert found == pytest.approx(plain, rel=1e-9)
        assert found >= exact * (1 - 1e-9)


@every_accountant
def test_a_proven_plain_release_never_costs_less_than_its_exact_epsilon(cls: type[Accountant[object]]) -> None:
    for sigma in (0.5, 2.0, 30.0):
        for delta in DELTAS:
            exact = Gaussian("add-remove").guarantee(GaussianRelease(sigma=sigma), delta).epsilon
            try:
                found = cls("add-remove").guarantee(GaussianRelease(sigma=sigma), delta)
            except UnpricedEvent:
                continue
            assert found.epsilon >= exact * (1 - 1e-6)


@every_accountant
@every_case
def test_the_guarantee_says_what_it_is(cls: type[Accountant[object]], case: Case) -> None:
    epsilon(cls, case.event(30.0))
    found = cls("zero-out").guarantee(case.event(30.0), 1e-5)
    assert (found.accountant, found.delta, found.adjacency, found.status) == (cls.name, 1e-5, "zero-out", cls.status)
    assert found.epsilon_lower is None or found.epsilon_lower <= found.epsilon
    assert found.to_json()["epsilon"] == found.epsilon


@every_accountant
@pytest.mark.parametrize("sigma", [0.7, 2.0, 6.0])
@pytest.mark.parametrize("delta", [1e-7, 1e-3])
def test_nothing_proven_goes_below_the_lower_bound_of_the_dominating_pair(
    cls: type[Accountant[object]], sigma: float, delta: float
) -> None:
    exact = next((other for other in ACCOUNTANTS if other.name == "loss-distribution"), None)
    if exact is None or cls.status != "proven":
        pytest.skip("nothing to compare")
    for event in (
        PoissonEpoch(sigma=sigma, rate=0.02, steps=200),
        Repeated(event=PartitionEpoch(sigma=sigma, batches=30), count=5),
        Composed(events=(GaussianRelease(sigma=3.0), PoissonEpoch(sigma=sigma, rate=0.3, steps=4))),
    ):
        lower = exact("add-remove").guarantee(event, delta).epsilon_lower
        with contextlib.suppress(UnpricedEvent):
            assert lower is None or cls("add-remove").guarantee(event, delta).epsilon >= lower * (1 - 1e-9)


def test_names_are_those_of_the_contract_and_distinct() -> None:
    names = [cls.name for cls in ACCOUNTANTS]
    assert len(set(names)) == len(names)
    assert {"basic", "zcdp", "gaussian", "renyi", "moments", "strong-composition", "paper-estimate"} <= set(names)
    assert {cls.name for cls in ACCOUNTANTS if cls.status == "estimate"} == {"strong-composition", "paper-estimate"}
