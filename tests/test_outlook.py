"""What is said about a run before it begins agrees with what the plan then does."""

import math

import pytest

import apportion as ap
from apportion import adaptive, outlook
from apportion.accounting.filters import GaussianFilter, RenyiFilter

PAPER = {"sigma0": 10.0, "decay": 0.7, "period": 10, "window": 5, "threshold": 0.01}


def plan(**changes: object) -> ap.AdaptivePlan:
    values = {
        "budget": ap.Budget(rho=0.78125),
        "batching": ap.Shuffle(batches=100),
        "schedule": ap.ValidationDecay(**PAPER),  # type: ignore[arg-type]
        "examples": 60_000,
        "clip": 1.0,
    }
    return ap.AdaptivePlan(**(values | changes))  # type: ignore[arg-type]


def test_the_two_courses_are_those_of_the_schedule_under_the_cap() -> None:
    """By hand: 156 epochs at σ = 10 fit ρ = .78125; falling at checks before epochs 10, 20, 30 leaves 39."""
    assert outlook.noise_kept(plan()).sigmas == (10.0,) * 156
    fast = outlook.noise_lowered(plan()).sigmas
    by_hand = [10.0] * 9 + [7.0] * 10 + [4.9] * 10 + [3.43] * 10 + [2.401] * 10
    rho, epochs = 0.0, 0
    while rho + 1 / (2 * by_hand[epochs] ** 2) <= 0.78125:
        rho += 1 / (2 * by_hand[epochs] ** 2)
        epochs += 1
    assert fast == pytest.approx(by_hand[:epochs])


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("threshold", [0.01, 0.0, -0.2, 5.0])
def test_no_scores_give_more_or_less_noise_than_the_two_courses(every: int, threshold: float) -> None:
    changed = plan(schedule=ap.ValidationDecay(**(PAPER | {"every": every, "threshold": threshold})), epochs=60)  # type: ignore[arg-type]
    kept, lowered = outlook.noise_kept(changed).sigmas, outlook.noise_lowered(changed).sigmas
    assert set(kept) == {10.0}
    checks = [sum(1 for c in range(10, e // every + 2, 10)) for e in range(len(lowered))]
    assert lowered == pytest.approx([10 * 0.7**count for count in checks])


def test_a_course_beyond_what_is_followed_says_so() -> None:
    endless = plan(schedule=ap.ValidationDecay(**(PAPER | {"sigma0": 1000.0})))  # type: ignore[arg-type]
    assert not outlook.noise_kept(endless).ends
    assert outlook.noise_lowered(endless).ends


def test_the_order_chosen_is_the_one_that_buys_most_epochs() -> None:
    schedule = ap.ValidationDecay(sigma0=4.0, decay=0.7, period=10)
    budget = ap.Budget(epsilon=3.0, delta=1e-5)
    many = adaptive.best_order(budget, ap.Partition(batches=100), schedule, "add-remove")
    assert many is not None
    assert adaptive.best_order(budget, ap.Shuffle(batches=100), schedule, "zero-out") is None, "nothing is amplified"
    assert adaptive.best_order(ap.Budget(rho=1.0), ap.Partition(batches=100), schedule, "add-remove") is None
    # By the caps themselves: epochs at the noise after its first fall.
    event = ap.Partition(batches=100).event(2.8)
    amplified = ap.AdaptivePlan(
        budget=budget, examples=1, batching=ap.Partition(batches=100), schedule=schedule, clip=1.0, order=many
    )
    (cap,) = amplified.caps
    assert isinstance(cap, RenyiFilter)
    plain = GaussianFilter.of_budget(epsilon=3.0, delta=1e-5, adjacency="add-remove")
    assert math.floor(cap.cap / cap.cost((event,))) > math.floor(plain.cap / plain.cost((event,)))
