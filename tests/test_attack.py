"""The attacks do what they say: they find nothing where there is nothing, and what theory says where there is something."""

import math

import numpy as np
import pytest
from scipy import special

from experiments.attack import area, likelihood_ratios, scaled_confidence, true_positive_rates

RATES = np.array([0.001, 0.01, 0.1, 0.5, 1.0])


def coins(shape: tuple[int, int], seed: int) -> tuple[np.random.Generator, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator, generator.random(shape) < 0.5


def test_scores_that_know_nothing_find_members_as_often_as_others() -> None:
    generator, member = coins((64, 2000), 1)
    scores = generator.normal(size=member.shape)
    np.testing.assert_allclose(true_positive_rates(scores, member, RATES), RATES, atol=0.01)
    assert area(scores, member) == pytest.approx(0.5, abs=0.01)


def test_scores_that_know_everything_find_all() -> None:
    _, member = coins((4, 100), 2)
    assert np.all(true_positive_rates(member.astype(float), member, RATES) == 1)
    assert area(member.astype(float), member) == 1


def test_equal_scores_accuse_nobody_rather_than_too_many() -> None:
    _, member = coins((4, 100), 3)
    scores = np.zeros(member.shape)
    assert np.all(true_positive_rates(scores, member, np.array([0.01, 0.5])) == 0)
    assert true_positive_rates(scores, member, np.array([1.0])) == 1
    assert area(scores, member) == 0.5


def test_a_shift_of_normal_scores_is_found_as_the_normal_trade_off_says() -> None:
    generator, member = coins((64, 4000), 4)
    scores = generator.normal(size=member.shape) + 1.5 * member
    expected = special.ndtr(1.5 + special.ndtri(RATES))
    np.testing.assert_allclose(true_positive_rates(scores, member, RATES), expected, atol=0.01)
    assert area(scores, member) == pytest.approx(special.ndtr(1.5 / math.sqrt(2)), abs=0.005)


def test_the_likelihood_ratio_sees_through_records_that_differ_in_difficulty() -> None:
    """The difficulty hides membership from a common threshold, and not from a comparison record by record."""
    generator, member = coins((64, 1000), 5)
    difficulty = 10 * generator.normal(size=(1, 1000))
    confidence = generator.normal(size=member.shape) + 1.5 * member + difficulty
    assert area(confidence, member) < 0.56
    ratios = likelihood_ratios(confidence, member)
    assert area(ratios, member) == pytest.approx(special.ndtr(1.5 / math.sqrt(2)), abs=0.02)


def test_a_model_is_not_judged_by_its_own_outcome() -> None:
    """With nothing to find, using the attacked model among its shadows would find something."""
    generator, member = coins((8, 4000), 6)
    assert area(likelihood_ratios(generator.normal(size=member.shape), member), member) == pytest.approx(0.5, abs=0.02)


def test_confidence_grows_with_the_probability_and_is_always_finite() -> None:
    values = scaled_confidence(np.array([0.0, 0.2, 0.5, 0.8, 1.0]))
    assert np.all(np.diff(values) > 0)
    assert np.all(np.isfinite(values))
    assert values[2] == 0
