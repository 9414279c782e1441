"""From a budget to a selection that spends it, and no more."""

import math
from functools import partial
from typing import Any

import pytest

import apportion as ap
from apportion.components.selection import law_of_mean
from apportion.components.selection_solver import Draft, Wish, solve_selection
from apportion.errors import BudgetExhausted, InvalidArgument, Unsolvable
from apportion.selection_plan import RepeatRuns, SplitParts


def planned(schedule: Any, batching: Any, budget: ap.Budget, examples: int) -> ap.TrainingPlan:
    known: dict[str, Any] = {"budget": budget, "examples": examples, "batching": batching, "epochs": 4, "clip": 1.0}
    return (ap.solve if schedule.unknowns() else ap.TrainingPlan)(schedule=schedule, **known)


def draft(schedule: Any, name: str = "a", batching: Any = None) -> Draft:
    batches = batching or ap.Partition(batches=3)
    return Draft(
        name=name,
        description=name,
        open=bool(schedule.unknowns()),
        sampled=isinstance(batches, ap.Poisson),
        plan=partial(planned, schedule, batches),
    )


OPEN = (draft(ap.Uniform()), draft(ap.ExponentialDecay(decay=0.1), "b"))


def wish(**changes: Any) -> Wish:
    values: dict[str, Any] = {
        "budget": ap.Budget(epsilon=3.0, delta=1e-5),
        "examples": 300,
        "adjacency": "add-remove",
        "drafts": OPEN,
    }
    return Wish(**(values | changes))


@pytest.mark.parametrize(
    "asked",
    [
        wish(runs=law_of_mean(5.0, 0.0), sigma=6.0),
        wish(runs=law_of_mean(5.0, 1.0)),
        wish(retrain_share=0.6),
        wish(),
        wish(budget=ap.Budget(rho=0.3), retrain_share=0.5),
    ],
    ids=["repeat", "repeat, score left open", "split, retrained", "split", "split by rho"],
)
def test_what_is_left_open_spends_the_budget_and_no_more(asked: Wish) -> None:
    plan = solve_selection(asked)
    assert 0.99 * asked.budget.limit <= plan.spent <= asked.budget.limit
    rhos = {round(candidate.trial.rho, 9) for candidate in plan.candidates}
    assert len(rhos) == 1  # all candidates may spend the same


def test_a_choice_that_is_left_open_costs_what_a_training_costs() -> None:
    """ε²/32 on counts (add-remove), and 1/(2σ²) for a score, each the unamplified ρ of one training."""
    split = solve_selection(wish())
    assert isinstance(split.method, SplitParts)
    assert split.method.epsilon**2 / 32 == pytest.approx(split.candidates[0].trial.rho, rel=1e-9)
    repeat = solve_selection(wish(runs=law_of_mean(3.0, 0.0)))
    assert isinstance(repeat.method, RepeatRuns)
    assert 1 / (2 * repeat.method.sigma**2) == pytest.approx(repeat.candidates[0].trial.rho, rel=1e-9)


def test_parts_share_the_records_and_retraining_has_them_all() -> None:
    plan = solve_selection(wish(retrain_share=0.5))
    assert plan.score_share == pytest.approx(1 / 3)
    assert [candidate.trial.examples for candidate in plan.candidates] == [100, 100]
    assert all(c.retraining is not None and c.retraining.examples == 300 for c in plan.candidates)
    assert solve_selection(wish(runs=law_of_mean(2.0, 1.0), sigma=9.0)).candidates[0].trial.examples == 240


def test_the_shares_of_rho_are_those_asked_for() -> None:
    plan = solve_selection(wish(budget=ap.Budget(rho=0.4), retrain_share=0.75))
    candidate = plan.candidates[0]
    assert candidate.retraining is not None
    assert candidate.retraining.rho == pytest.approx(0.3, rel=5e-3)
    assert candidate.trial.rho == pytest.approx(0.1, rel=5e-3)


def test_fixed_noise_is_priced_as_it_is_and_refused_over_budget() -> None:
    fixed = (draft(ap.Uniform(sigma0=20.0)), draft(ap.Uniform(sigma0=2.0), "b", ap.Poisson(rate=0.01)))
    plan = solve_selection(wish(drafts=fixed, epsilon=0.4, budget=ap.Budget(epsilon=9.0, delta=1e-5)))
    assert [candidate.trial.sigmas[0] for candidate in plan.candidates] == [20.0, 2.0]
    with pytest.raises(BudgetExhausted, match="more than the budget"):
        solve_selection(wish(drafts=fixed, epsilon=0.4, budget=ap.Budget(epsilon=0.5 * plan.spent, delta=1e-5)))
    with pytest.raises(InvalidArgument, match="give epsilon"):
        solve_selection(wish(drafts=fixed))


def test_a_score_that_alone_exceeds_the_budget_is_refused() -> None:
    with pytest.raises(Unsolvable, match=r"alone costs .* more than the budget"):
        solve_selection(wish(runs=law_of_mean(5.0, 0.0), sigma=0.5))


def test_open_noise_with_poisson_batching_asks_for_sigma0() -> None:
    with pytest.raises(InvalidArgument, match="give sigma0"):
        solve_selection(wish(drafts=(draft(ap.Uniform(), batching=ap.Poisson(rate=0.1)),)))


def test_what_belongs_to_the_other_kind_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="belong to kind = 'split'"):
        wish(runs=law_of_mean(5.0, 0.0), retrain_share=0.5)
    with pytest.raises(InvalidArgument, match="belongs to kind = 'repeat'"):
        wish(sigma=4.0)
    assert math.isclose(wish(runs=law_of_mean(5.0, 0.0)).score_share or 0, 0.2)
