"""What is said about a run before it begins agrees with what the plan then does."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
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


FIXED = {
    "partition": ap.Partition(batches=8),
    "poisson": ap.Poisson(rate=0.02),
    "shuffle": ap.Shuffle(batches=8),
}


@cache
def fixed(name: str, epochs: int = 10, decay: float | None = None) -> ap.TrainingPlan:
    return ap.solve(
        budget=ap.Budget(epsilon=3.0, delta=1e-5),
        examples=1000,
        batching=FIXED[name],
        schedule=ap.Uniform() if decay is None else ap.ExponentialDecay(decay=decay),
        epochs=epochs,
        clip=1.0,
    )


def test_the_ratio_is_that_of_lengths_of_noise_and_of_the_longest_mean_gradient() -> None:
    """Drawn: noise of σ·clip per coordinate on a sum, divided by the batch, against a mean gradient of length clip."""
    planned = replace(fixed("shuffle", decay=0.05), clip=0.3)
    found = outlook.signal(planned, 2000)
    generator = np.random.default_rng(1)
    drawn = np.linalg.norm(generator.normal(0, planned.sigmas[0] * 0.3, (400, 2000)), axis=1).mean() / 125 / 0.3
    assert found.first == pytest.approx(drawn, rel=0.01)
    assert found.last == pytest.approx(drawn * planned.sigmas[-1] / planned.sigmas[0], rel=0.01)
    walks = np.sqrt(sum(8 * (sigma * 0.3) ** 2 for sigma in planned.sigmas)) * math.sqrt(2000) / 125
    assert found.overall == pytest.approx(walks / (80 * 0.3))


def test_the_clipping_norm_cancels_out() -> None:
    planned = fixed("shuffle")
    assert outlook.signal(planned, 50) == outlook.signal(replace(planned, clip=7.0), 50)


@pytest.mark.parametrize("name", FIXED)
def test_the_estimated_noise_of_an_alternative_is_near_what_the_solver_finds(name: str) -> None:
    found = dict(outlook.alternatives(fixed(name), 100))
    assert list(found) == ["batch × 2", "batch × 4", "epochs ÷ 2", "epochs × 2"]
    exact = {"epochs ÷ 2": fixed(name, epochs=5), "epochs × 2": fixed(name, epochs=20)}
    for change, solved in exact.items():
        assert found[change].sigma_first == pytest.approx(solved.sigmas[0], rel=0.1)
        assert found[change].epochs == solved.epochs
    assert found["batch × 2"].batch == pytest.approx(2 * fixed(name).nominal_batch_size)
    if name == "shuffle":
        assert found["batch × 2"].sigma_first == pytest.approx(fixed(name).sigmas[0]), "nothing is amplified"
    else:
        assert found["batch × 2"].sigma_first > fixed(name).sigmas[0]


def test_an_alternative_of_an_adaptive_plan_keeps_its_noise_and_reaches_elsewhere() -> None:
    found = dict(outlook.alternatives(plan(), 100))
    assert found["batch × 2"].first == pytest.approx(outlook.signal(plan(), 100).first / 2)
    assert set(found) == {"batch × 2", "batch × 4"}


def test_what_the_batching_does_not_allow_is_left_out() -> None:
    single = replace(fixed("shuffle", epochs=2), batching=ap.Shuffle(batches=1))
    assert [change for change, _ in outlook.alternatives(single, 100)] == ["epochs ÷ 2", "epochs × 2"]
    whole = ap.solve(
        budget=ap.Budget(epsilon=3.0, delta=1e-5), examples=10, batching=ap.Poisson(rate=0.6),
        schedule=ap.Uniform(), epochs=1, clip=1.0,
    )  # fmt: skip
    assert [change for change, _ in outlook.alternatives(whole, 100)] == ["epochs × 2"]


def test_batches_by_epoch_count_epoch_by_epoch() -> None:
    changing = replace(fixed("shuffle", epochs=2), batching=ap.Shuffle(batches=ap.ByEpoch({0: 8, 1: 2})))
    found, sigma = outlook.signal(changing, 100), changing.sigmas[0]
    assert (found.steps, found.batch) == (10, 125)
    assert (found.first, found.last) == (pytest.approx(sigma * 10 / 125), pytest.approx(sigma * 10 / 500))
    assert found.overall == pytest.approx(math.sqrt(8 * found.first**2 + 2 * found.last**2) / 10)
    larger = dict(outlook.alternatives(changing, 100))["batch × 2"]
    assert (larger.steps, larger.batch) == (5, 250)
    assert "batch × 4" not in dict(outlook.alternatives(changing, 100))
