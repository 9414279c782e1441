"""Schedules at their best: all spend the same budget, and what is said of them follows from the trials."""

import math

import numpy as np
import pytest

from experiments import best_schedules, kept
from experiments.best_schedules import BATCHINGS, CHOSEN, EPSILON, difference, plan_of, rows, settings_of
from experiments.experiment import Record

KINDS = ("uniform", "time", "exponential", "step", "polynomial")


def committed() -> list[Record]:
    return kept.of_rows(kept.read(kept.RESULTS / best_schedules.NAME), rows(False))


@pytest.mark.parametrize("batching", BATCHINGS)
def test_every_schedule_spends_the_same_budget_over_the_same_epochs_and_all_but_one_let_noise_fall(
    batching: str,
) -> None:
    assert tuple(CHOSEN[batching]) == KINDS
    for kind, chosen in CHOSEN[batching].items():
        if kind in ("uniform", "exponential"):  # the others take seconds each: committed trials below stand for them
            plan = plan_of(settings_of(batching, *chosen), 60_000)
            sigmas = [slot.sigma for slot in plan.slots]
            assert len(sigmas) == best_schedules.EPOCHS
            assert (sigmas[-1] < sigmas[0]) == (kind != "uniform")
            assert plan.batching.kind == batching


def test_committed_trials_are_certified_for_the_same_epsilon() -> None:
    for record in committed():
        assert 0.998 * EPSILON <= record.result["epsilon"] <= EPSILON * 1.0001
        assert record.result["adjacency"] == "add-remove"


def test_what_was_chosen_was_tried_on_training_records_alone() -> None:
    tried = kept.lines_of(best_schedules.TUNING)
    assert {one["part"] for one in tried} == {"validation"}
    for batching in BATCHINGS:
        for chosen in CHOSEN[batching].values():
            settings = settings_of(batching, *chosen)
            assert any(settings.items() <= one.items() for one in tried), f"{settings} was not tried"


def test_a_difference_comes_with_twice_its_standard_error() -> None:
    stream = np.random.default_rng(1)
    own, uniform = stream.normal(0.99, 0.001, 4000), stream.normal(0.98, 0.002, 1000)
    found = difference(list(own), list(uniform))
    assert found is not None
    assert found[0] == pytest.approx(1.0, abs=0.03)
    assert found[1] == pytest.approx(200 * math.sqrt(0.001**2 / 4000 + 0.002**2 / 1000), rel=0.1)
    assert difference([0.9], [0.8, 0.9]) is None


def test_words_about_what_was_found_follow_from_the_numbers() -> None:
    scores = {
        ("partition", "uniform"): [0.980, 0.981, 0.982],
        ("partition", "time"): [0.990, 0.991, 0.992],
        ("partition", "step"): [0.970, 0.971, 0.972],
        ("partition", "exponential"): [0.980, 0.981, 0.983],
    }
    said = best_schedules._found(scores)
    assert "beyond chance: time; worse: step; the rest" in said
    same = {key: values for key, values in scores.items() if key[1] in ("uniform", "exponential")}
    assert best_schedules._found(same) == "Under partition, no schedule can be told from uniform noise."
