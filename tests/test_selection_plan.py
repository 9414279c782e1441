"""The plan of a selection: what it costs, what it refuses, and what its ledger may hold."""

import math
from pathlib import Path
from typing import Any

import pytest

import apportion as ap
from apportion import canonical, ledger
from apportion.accounting import Renyi
from apportion.errors import BudgetExhausted, InvalidArgument, LedgerError
from apportion.events import (
    Composed,
    DisjointParts,
    ExponentialMechanism,
    GaussianRelease,
    OneOf,
    PoissonLaw,
    RepeatAndSelect,
    Repeated,
    TruncatedNegativeBinomial,
)
from apportion.ledger import Choice
from apportion.recording import LedgerWriter
from apportion.selection_plan import Candidate, RepeatRuns, SelectionPlan, SplitParts, from_json

LAW = TruncatedNegativeBinomial(eta=1.0, gamma=0.2)


def training(sigma: float = 9.0, **changes: Any) -> ap.TrainingPlan:
    values: dict[str, Any] = {
        "budget": ap.Budget(rho=5.0),
        "examples": 40,
        "batching": ap.Partition(batches=2),
        "schedule": ap.Uniform(sigma0=sigma),
        "epochs": 3,
        "clip": 1.0,
    }
    return ap.TrainingPlan(**(values | changes))


def repeat(**changes: Any) -> SelectionPlan:
    values: dict[str, Any] = {
        "budget": ap.Budget(epsilon=20.0, delta=1e-5),
        "examples": 50,
        "method": RepeatRuns(runs=LAW, sigma=6.0),
        "candidates": (Candidate(name="a", trial=training()), Candidate(name="b", trial=training(10.0))),
        "score_share": 0.2,
    }
    return SelectionPlan(**(values | changes))


def split(**changes: Any) -> SelectionPlan:
    candidates = tuple(
        Candidate(name=name, trial=training(sigma), retraining=training(sigma + 3, examples=50))
        for name, sigma in (("a", 9.0), ("b", 10.0))
    )
    values: dict[str, Any] = {"method": SplitParts(epsilon=0.8), "candidates": candidates, "score_share": 1 / 3}
    return repeat(**(values | changes))


def test_repeated_runs_are_one_event_with_training_and_score_inside() -> None:
    event = repeat().event
    trainings = OneOf(options=tuple(Repeated(event=training(s).slots[0].event, count=3) for s in (9.0, 10.0)))
    score = GaussianRelease(sigma=6.0, replace_one=math.sqrt(2), purpose="selection")
    assert event == Composed(
        events=(RepeatAndSelect(base=DisjointParts(parts=(trainings, score)), runs=LAW),),
    )


def test_disjoint_parts_cost_the_largest_of_training_and_choice_and_retraining_is_added() -> None:
    """By ρ: max(3/(2·81), .8²/32) + 3/(2·144), the dearest candidate each time."""
    found = split(budget=ap.Budget(rho=1.0))
    assert found.spent == pytest.approx(max(3 / 162, 0.64 / 32) + 3 / 288, rel=1e-12)
    without = [Candidate(name=c.name, trial=c.trial) for c in found.candidates]
    assert split(candidates=without, budget=ap.Budget(rho=1.0)).spent == pytest.approx(0.64 / 32, rel=1e-12)
    stage, again = (slot.event for slot in found.slots)
    assert isinstance(stage, DisjointParts)
    assert stage.parts[-1] == ExponentialMechanism(epsilon=0.8, counts=True)
    assert isinstance(again, OneOf)


def test_the_cost_does_not_depend_on_which_candidate_is_the_dearest() -> None:
    ordered = split()
    assert split(candidates=ordered.candidates[::-1]).spent == ordered.spent


def test_a_selection_over_its_budget_cannot_exist() -> None:
    cost = repeat().spent
    assert cost == Renyi("add-remove").guarantee(repeat().event, 1e-5).epsilon
    with pytest.raises(BudgetExhausted, match="costs epsilon"):
        repeat(budget=ap.Budget(epsilon=0.99 * cost, delta=1e-5))


@pytest.mark.parametrize("plan", [repeat(), split()], ids=["repeat", "split"])
def test_a_plan_round_trips(plan: SelectionPlan) -> None:
    data = canonical.loads(canonical.dumps(plan.to_json()).encode())
    assert from_json(data).to_json() == plan.to_json()
    assert from_json(data).event == plan.event


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"candidates": ()}, "1 to 500"),
        ({"candidates": (Candidate(name="a", trial=training()),) * 2}, "a name of its own"),
        ({"budget": ap.Budget(rho=1.0)}, "no rho"),
        ({"candidates": split().candidates}, "no retraining"),
        ({"score_share": 1.0}, "score_share"),
        ({"adjacency": "zero-out"}, "adjacency"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        repeat(**changes)


def test_shuffling_is_refused_because_the_size_of_a_part_is_not_public() -> None:
    with pytest.raises(InvalidArgument, match="drawn by coins"):
        Candidate(name="a", trial=training(batching=ap.Shuffle(batches=2)))


def written(path: Path, plan: SelectionPlan, *steps: Any) -> ledger.Ledger:
    with LedgerWriter.create(path, the_plan=plan, randomness="secure", declared={}) as writer:
        for step in steps:
            if step == "slot":
                writer.take_slot()
            elif step == "score":
                writer.append_score(0.5)
            elif step == "release":
                writer.append_release("0" * 64)
            else:
                writer.append_choice(step)
    return ledger.read(path)


CHOSEN, COUNTED = Choice(candidate=1, right=None, wrong=None), Choice(candidate=1, right=9, wrong=-1)


def test_a_finished_selection_says_what_was_chosen_and_certifies_everything(tmp_path: Path) -> None:
    recorded = written(tmp_path / "l", split(), "slot", CHOSEN, "slot", "release")
    assert recorded.training == split().candidates[1].retraining
    certificate = ap.certify(recorded).to_json()
    assert certificate["selection"]["chosen"] == 1
    assert certificate["selection"]["score"] is None
    assert [component["purpose"] for component in certificate["components"]] == ["selection", "training"]
    assert ap.certify(recorded).guarantee.epsilon == split().guarantee.epsilon


def test_stopping_before_the_retraining_does_not_lower_the_cost(tmp_path: Path) -> None:
    stopped = written(tmp_path / "l", split(), "slot", CHOSEN)
    assert ap.certify(stopped).guarantee.epsilon == split().guarantee.epsilon


@pytest.mark.parametrize(
    ("plan", "steps", "reason"),
    [
        (split(), [CHOSEN], "must follow the event"),
        (split(), ["slot", "slot"], "before one was chosen"),
        (split(), ["slot", CHOSEN, CHOSEN], "second choice"),
        (split(), ["slot", COUNTED], "two noisy counts"),
        (split(), ["slot", CHOSEN, "slot", "score"], "pays for its choice alone"),
        (repeat(), ["slot", "score", COUNTED], "pays for its choice alone"),
        (split(), ["slot", CHOSEN, "release"], "before the selection has ended"),
        (split(), ["slot", Choice(candidate=2, right=None, wrong=None)], "no candidate of the plan"),
        (repeat(), ["slot", CHOSEN], "two noisy counts"),
        (repeat(), ["slot", "release"], "before the selection has ended"),
        (repeat(), ["slot", Choice(candidate=None, right=None, wrong=None)], "only a Poisson number"),
    ],
)
def test_a_ledger_that_skips_a_step_or_tells_more_is_refused(
    tmp_path: Path, plan: SelectionPlan, steps: list[Any], reason: str
) -> None:
    with pytest.raises(LedgerError, match=reason):
        written(tmp_path / "l", plan, *steps)


def test_a_poisson_number_of_runs_may_end_without_a_model(tmp_path: Path) -> None:
    plan = repeat(method=RepeatRuns(runs=PoissonLaw(mean=3.0), sigma=6.0))
    nothing = Choice(candidate=None, right=None, wrong=None)
    assert written(tmp_path / "l", plan, "slot", nothing).choice == nothing
    with pytest.raises(LedgerError, match="before the selection has ended"):
        written(tmp_path / "m", plan, "slot", nothing, "release")


def test_an_ordinary_run_has_no_choice(tmp_path: Path) -> None:
    with LedgerWriter.create(tmp_path / "l", the_plan=training(), randomness="secure", declared={}) as writer:
        writer.append_choice(CHOSEN)
    with pytest.raises(LedgerError, match="must follow the event of a selection"):
        ledger.read(tmp_path / "l")
