"""Choosing privately: exact probabilities, independent parts, laws of runs, and what one record can change."""

import math
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from apportion.accounting import Renyi
from apportion.accounting.renyi.selection import log_expected_runs
from apportion.components.selection import (
    SCORED,
    Law,
    best,
    draw_parts,
    draw_runs,
    expected_runs,
    exponential_mechanism,
    law_of_mean,
    noisy_counts,
    probabilities,
    quantile,
)
from apportion.errors import InvalidArgument
from apportion.events import GaussianRelease, PoissonLaw, RepeatAndSelect, TruncatedNegativeBinomial
from apportion.randomness import RandomStream

FALSE_ALARM = 1e-9


def fits(counts: Counter[int], expected: dict[int, float], draws: int) -> bool:
    """Exact two-sided binomial tests of every cell and of what lies in none, shared out so that all together raise a
    false alarm at most once in 10⁹."""
    cells = [(counts[value], probability) for value, probability in expected.items() if probability > 1e-15]
    rest = max(0.0, 1 - math.fsum(probability for _, probability in cells))
    cells.append((draws - sum(seen for seen, _ in cells), rest + 1e-12))
    tails = [2 * min(stats.binom.cdf(n, draws, p), stats.binom.sf(n - 1, draws, p)) for n, p in cells]
    return bool(min(tails) * len(tails) > FALSE_ALARM)


@pytest.mark.parametrize("epsilon", [0.1, 0.7, 1.5])
def test_the_exponential_mechanism_chooses_as_the_formula_says(epsilon: float) -> None:
    errors = [17, 14, 20, 14, 19]
    weights = np.exp(-epsilon * np.array(errors) / 2)
    expected = dict(enumerate((weights / weights.sum()).tolist()))
    stream, draws = RandomStream(), 3_000
    counts = Counter(exponential_mechanism(errors, epsilon, stream) for _ in range(draws))
    assert fits(counts, expected, draws)
    wrong = np.exp(-epsilon * np.array(errors))  # without the half: the test would see it
    assert epsilon < 0.5 or not fits(counts, dict(enumerate((wrong / wrong.sum()).tolist())), draws)


def test_only_differences_of_errors_matter_however_large_they_are() -> None:
    stream = RandomStream()
    assert exponential_mechanism([10**6, 10**6 + 5000, 10**6 + 9000], 1.0, stream) == 0
    counts = Counter(exponential_mechanism([10**9, 10**9], 1.0, stream) for _ in range(1000))
    assert fits(counts, {0: 0.5, 1: 0.5}, 1000)


def test_one_record_changes_the_exponential_mechanism_by_at_most_half_epsilon_on_counts() -> None:
    """From the formula: counts that a record moves the same way change log-probabilities within ε/2; else within ε."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        errors, epsilon = rng.integers(0, 30, 6), 1.3
        moved = errors + rng.integers(0, 2, 6)  # one record more: an error or not
        replaced = moved - rng.integers(0, 2, 6)

        def log_probabilities(z: np.ndarray, epsilon: float = epsilon) -> np.ndarray:
            return -epsilon * z / 2 - np.log(np.exp(-epsilon * z / 2).sum())

        before = log_probabilities(errors)
        assert np.ptp(log_probabilities(moved) - before) <= epsilon / 2 * (1 + 1e-12)
        assert np.ptp(log_probabilities(replaced) - before) <= epsilon * (1 + 1e-12)


def test_each_record_falls_into_its_part_independently_of_all_others() -> None:
    stream, records = RandomStream(), 60_000
    parts = draw_parts(records, 3, 0.4, stream, RandomStream())
    expected = {SCORED: 0.4, 0: 0.2, 1: 0.2, 2: 0.2}
    assert fits(Counter(parts.tolist()), expected, records)
    pairs = Counter((4 * (a + 1) + b + 1) for a, b in zip(parts[::2].tolist(), parts[1::2].tolist(), strict=True))
    joint = {4 * (a + 1) + b + 1: pa * pb for a, pa in expected.items() for b, pb in expected.items()}
    assert fits(pairs, joint, records // 2)


@pytest.mark.parametrize("records", [0, 1, 7, 500])
def test_one_record_more_leaves_every_other_record_in_its_part(records: int) -> None:
    """Record and replay: the same random words, with and without the last record."""

    def replayed(count: int) -> list[int]:
        words = RandomStream(1), RandomStream(2)
        return draw_parts(count, 4, 0.3, *words).tolist()

    assert replayed(records + 1)[:records] == replayed(records)


def test_sizes_of_parts_are_binomial_so_no_part_is_cut_to_size() -> None:
    """Had parts been cut from a permutation, their sizes would not vary, and one record would move others."""
    stream = RandomStream()
    sizes = [int(np.sum(draw_parts(400, 3, 0.25, stream, stream) == SCORED)) for _ in range(400)]
    deviation = math.sqrt(400 * 0.25 * 0.75)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 399) / 399
    assert low < np.var(sizes, ddof=1) / deviation**2 < high


LAWS: list[Law] = [
    PoissonLaw(mean=4.0),
    TruncatedNegativeBinomial(eta=1.0, gamma=0.2),
    TruncatedNegativeBinomial(eta=0.0, gamma=0.05),
    TruncatedNegativeBinomial(eta=0.5, gamma=0.1),
    TruncatedNegativeBinomial(eta=-0.5, gamma=0.01),
]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_number_of_runs_follows_its_law(law: Law) -> None:
    stream, draws = RandomStream(), 20_000
    expected = dict(islice(probabilities(law), 300))
    assert fits(Counter(draw_runs(law, stream) for _ in range(draws)), expected, draws)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_probabilities_of_runs_add_up_and_have_the_mean_that_is_charged(law: Law) -> None:
    listed = list(islice(probabilities(law), 20_000))
    assert math.fsum(p for _, p in listed) == pytest.approx(1, abs=1e-12)
    mean = math.fsum(n * p for n, p in listed)
    assert mean == pytest.approx(expected_runs(law), rel=1e-8)
    if isinstance(law, TruncatedNegativeBinomial):
        assert mean == pytest.approx(math.exp(log_expected_runs(law)), rel=1e-8)


def test_laws_of_known_shape() -> None:
    """η = 1 is geometric, η = 0 logarithmic, by their textbook formulas (scipy's)."""
    geometric = dict(islice(probabilities(TruncatedNegativeBinomial(eta=1.0, gamma=0.3)), 40))
    logarithmic = dict(islice(probabilities(TruncatedNegativeBinomial(eta=0.0, gamma=0.3)), 40))
    poisson = dict(islice(probabilities(PoissonLaw(mean=4.0)), 40))
    for n in range(1, 30):
        assert geometric[n] == pytest.approx(stats.geom.pmf(n, 0.3), rel=1e-12)
        assert logarithmic[n] == pytest.approx(stats.logser.pmf(n, 0.7), rel=1e-12)
        assert poisson[n] == pytest.approx(stats.poisson.pmf(n, 4.0), rel=1e-12)


@pytest.mark.parametrize("eta", [-0.5, 0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("mean", [1.5, 10.0, 200.0])
def test_a_law_is_found_by_its_mean(eta: float, mean: float) -> None:
    law = law_of_mean(mean, eta)
    assert expected_runs(law) == pytest.approx(mean, rel=1e-6)
    assert quantile(law, 0.5) <= quantile(law, 0.99)


@pytest.mark.parametrize("law", [PoissonLaw(mean=1e4), TruncatedNegativeBinomial(eta=300.0, gamma=1e-3)], ids=str)
def test_a_law_too_wide_for_floating_point_is_refused_not_distorted(law: Law) -> None:
    with pytest.raises(InvalidArgument, match="too many runs"):
        draw_runs(law, RandomStream())


def test_a_mean_of_one_is_no_selection() -> None:
    with pytest.raises(InvalidArgument, match="greater than 1"):
        law_of_mean(1.0, 0.0)


@pytest.mark.parametrize(("eta", "expected"), [(0.0, 3.2444), (1.0, 3.8613)])
def test_ten_runs_on_average_cost_what_the_design_says(eta: float, expected: float) -> None:
    """ρ = .1, δ = 1e-5: dp-accounting's numbers (compared in tests/accounting), here with the law found by its mean."""
    event = RepeatAndSelect(base=GaussianRelease(sigma=math.sqrt(5.0)), runs=law_of_mean(10.0, eta))
    assert Renyi("add-remove").guarantee(event, 1e-5).epsilon == pytest.approx(expected, abs=1e-3)


def test_the_noise_of_a_score_is_the_rounded_gaussian_that_was_paid_for() -> None:
    stream, sigma, draws = RandomStream(), 3.0, 20_000
    found = np.array([noisy_counts(40, 7, sigma, stream) for _ in range(draws)]) - [40, 7]
    cells = range(-30, 31)
    law = {n: float(stats.norm.cdf((n + 0.5) / sigma) - stats.norm.cdf((n - 0.5) / sigma)) for n in cells}
    for column in found.T:
        assert fits(Counter(column.tolist()), law, draws)
    correlation = float(np.corrcoef(found.T)[0, 1])
    assert abs(correlation) < stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(draws)


def test_the_best_run_is_the_first_of_the_best_scores() -> None:
    assert best([(5, 5), (9, 2), (8, 1), (3, -4)]) == 1
    assert best([(0, 0)]) == 0
