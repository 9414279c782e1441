import math

import pytest

import apportion as ap
from apportion import accounting, plan
from apportion.errors import BudgetExhausted, InvalidArgument, Unsolvable

SHUFFLE = ap.Shuffle(batches=10)
EPSILON = ap.Budget(epsilon=2.0, delta=1e-5)


def solved(**changes: object) -> ap.TrainingPlan:
    values = {
        "budget": EPSILON,
        "examples": 1000,
        "batching": SHUFFLE,
        "schedule": ap.ExponentialDecay(decay=0.05),
        "epochs": 10,
        "clip": 1.0,
    }
    return ap.solve(**(values | changes))


BATCHINGS = [ap.Shuffle(batches=10), ap.Partition(batches=10), ap.Poisson(rate=0.1)]


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda b: b.kind)
@pytest.mark.parametrize(
    "schedule",
    [
        ap.Uniform(),
        ap.TimeDecay(decay=0.1),
        ap.ExponentialDecay(decay=0.05, period=2),
        ap.StepDecay(decay=0.8, period=3),
        ap.PolynomialDecay(decay=2.0, period=12, sigma_end=0.7),
        ap.Hold(schedule=ap.ExponentialDecay(decay=0.1), start=3, end=6),
    ],
    ids=lambda s: s.kind,
)
def test_solved_sigma0_spends_the_epsilon_budget_and_no_more(batching: object, schedule: object) -> None:
    found = solved(batching=batching, schedule=schedule)
    assert 0.999 * 2 <= found.guarantee.epsilon <= 2
    assert found.epochs == 10


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda b: b.kind)
def test_solved_decay_spends_the_epsilon_budget_and_no_more(batching: object) -> None:
    start = 1.1 * solved(batching=batching, schedule=ap.Uniform()).sigmas[0]
    found = solved(batching=batching, schedule=ap.ExponentialDecay(sigma0=start))
    assert 0.999 * 2 <= found.guarantee.epsilon <= 2


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda b: b.kind)
def test_solved_epochs_are_the_most_that_fit(batching: object) -> None:
    found = solved(batching=batching, schedule=ap.ExponentialDecay(sigma0=6.0, decay=0.03), epochs=None)
    assert found.guarantee.epsilon <= 2
    with pytest.raises(BudgetExhausted):
        ap.TrainingPlan(
            budget=EPSILON, examples=1000, batching=batching, schedule=found.schedule, epochs=found.epochs + 1, clip=1.0
        )


def test_spare_epochs_are_paid_for() -> None:
    without, spare = solved(), solved(spare_epochs=5)
    assert len(spare.slots) == 15
    assert spare.epochs == 10
    assert spare.sigmas[0] > without.sigmas[0]


@pytest.mark.parametrize("unknowns", [{"schedule": ap.ExponentialDecay(sigma0=5.0, decay=0.1)}, {"epochs": None}])
def test_exactly_one_unknown_is_solved_for(unknowns: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="exactly one of sigma0, decay and epochs"):
        solved(**unknowns)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"epochs": -1}, "epochs"),
        ({"epochs": 2.5}, "epochs"),
        ({"examples": 0}, "examples"),
        ({"clip": -1.0}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"spare_epochs": -1}, "spare_epochs"),
        ({"adjacency": "add-remove"}, "add-remove"),
        ({"adjacency": "neighbours"}, "adjacency"),
    ],
)
def test_bad_values_are_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        solved(**change)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"epsilon": 1.0}, "delta"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta"),
        ({"epsilon": -1.0, "delta": 1e-5}, "epsilon"),
        ({"rho": -1.0}, "rho"),
        ({"rho": 1.0, "epsilon": 1.0, "delta": 1e-5}, "exactly one"),
        ({}, "exactly one"),
    ],
)
def test_bad_budgets_are_refused_by_name(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        ap.Budget(**arguments)


def test_a_rho_budget_with_poisson_is_refused_naming_epsilon() -> None:
    with pytest.raises(InvalidArgument, match="--epsilon"):
        solved(budget=ap.Budget(rho=1.0), batching=ap.Poisson(rate=0.1))


def test_an_unreachable_budget_gives_the_attainable_range() -> None:
    with pytest.raises(Unsolvable, match=r"attainable are epsilon from .* to"):
        solved(schedule=ap.PolynomialDecay(sigma0=1000.0, sigma_end=999.0, period=5))


def test_a_budget_too_small_for_one_epoch_is_exhausted() -> None:
    with pytest.raises(BudgetExhausted, match="not even one epoch"):
        solved(schedule=ap.Uniform(sigma0=0.5), epochs=None)


def test_a_budget_for_too_many_epochs_is_refused() -> None:
    with pytest.raises(Unsolvable, match="1,000,000"):
        solved(budget=ap.Budget(rho=1.0), schedule=ap.Uniform(sigma0=1e6), epochs=None)


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda b: b.kind)
def test_json_round_trip(batching: object) -> None:
    found = solved(batching=batching)
    again = plan.from_json(found.to_json())
    assert again == found
    assert again.slots == found.slots


@pytest.mark.parametrize("damage", [{"unit": "person"}, {"extra": 1}, {"budget": {}}, {"budget": 3}, {"epochs": "ten"}])
def test_a_damaged_plan_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        plan.from_json(solved().to_json() | damage)


def test_swapping_the_batching_changes_epsilon() -> None:
    epsilons = {
        batching.kind: accounting.tightest(
            plan.Composed(events=(batching.event(2.0),) * 5), 1e-5, batching.adjacency
        ).epsilon
        for batching in BATCHINGS
    }
    assert len(set(epsilons.values())) == 3
    assert epsilons["shuffle"] == max(epsilons.values())
