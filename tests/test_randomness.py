"""Statistics with a false-alarm rate of at most 1e-9 each: bounds at 6.5 standard errors or beyond."""

import os
import random
from collections.abc import Callable

import numpy as np
import pytest

from apportion.errors import InvalidArgument, RunError
from apportion.randomness import RandomStream

N = 400_000
ERRORS = 6.5


def test_global_seeds_do_not_make_two_streams_equal() -> None:
    drawn = []
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)
        drawn.append(RandomStream().words(4))
    assert not np.array_equal(drawn[0], drawn[1])


def test_a_seeded_stream_repeats_itself_and_says_that_it_is_not_secure() -> None:
    first, second = RandomStream(seeded_for_research_only=3), RandomStream(seeded_for_research_only=3)
    assert not first.secure
    assert np.array_equal(first.words(100), second.words(100))
    assert not np.array_equal(RandomStream(3, start=1).words(4), RandomStream(3).words(4))
    assert RandomStream().secure


def test_a_stream_does_not_repeat_and_chunks_join_seamlessly() -> None:
    whole = RandomStream(seeded_for_research_only=1).words(300_000)
    stream = RandomStream(seeded_for_research_only=1)
    assert np.array_equal(whole, np.concatenate([stream.words(n) for n in (1, 131_072, 99_999, 68_928)]))
    assert len(np.unique(whole)) == len(whole)


def test_normals_have_the_moments_of_a_standard_normal() -> None:
    x = RandomStream().normals(N)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - mean) < ERRORS * np.sqrt(variance / N)
    assert abs((x[1:] * x[:-1]).mean()) < ERRORS / np.sqrt(N)


def test_a_few_normals_at_a_time_are_as_independent_as_many() -> None:
    """They are drawn ahead of use: none comes twice, whatever sizes and scales follow each other."""
    stream = RandomStream()
    sizes = [*[3, 1000, 0, 500, 1024] * 40, 5000, *[700] * 40]
    x = np.concatenate([stream.normals(size) for size in sizes])
    assert len(np.unique(x)) == len(x) == sum(sizes)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - mean) < ERRORS * np.sqrt(variance / len(x))
    assert abs((x[700:] * x[:-700]).mean()) < ERRORS / np.sqrt(len(x))


def test_a_few_normals_have_the_scale_that_is_asked_for() -> None:
    stream = RandomStream()
    for scale in (2.0, 2.0, 2.0, 1e-9, 1e-9, 2.0, 1e9, 1e9):
        out = np.full(1000, 5 * scale)
        stream.add_normals(out, scale)
        assert abs(out.mean() / scale - 5) < ERRORS / np.sqrt(1000)
        assert abs(out.std() / scale - 1) < 0.2


def test_odd_counts_and_zero_are_served() -> None:
    assert len(RandomStream().normals(0)) == 0
    assert len(RandomStream().normals(7)) == 7
    assert len(RandomStream().words(0)) == 0


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 1000])
def test_whole_numbers_are_uniform(bound: int) -> None:
    counts = np.bincount(RandomStream().below(bound, N), minlength=bound)
    assert len(counts) == bound
    share = 1 / bound
    assert np.abs(counts - N * share).max() < ERRORS * np.sqrt(N * share * (1 - share)) + 1e-9


def test_permutations_are_uniform() -> None:
    stream = RandomStream()
    positions = np.array([stream.permutation(4) for _ in range(20_000)])
    assert (np.sort(positions, axis=1) == np.arange(4)).all()
    for place in range(4):
        counts = np.bincount(positions[:, place], minlength=4)
        assert np.abs(counts - 5_000).max() < ERRORS * np.sqrt(20_000 * 3 / 16)


@pytest.mark.parametrize("probability", [1e-3, 0.3, 1.0])
def test_coins_fall_with_the_probability_asked_for(probability: float) -> None:
    heads = RandomStream().coins(probability, N).sum()
    assert abs(heads - N * probability) <= ERRORS * np.sqrt(N * probability * (1 - probability))


@pytest.mark.parametrize(
    "use", [lambda stream: stream.words(1), lambda stream: stream.normals(7)], ids=["words", "ahead"]
)
def test_a_forked_process_may_not_continue_a_stream(use: Callable[[RandomStream], object]) -> None:
    stream = RandomStream()
    for _ in range(3):
        stream.normals(7)  # now some are left that were drawn before the fork
    process = os.fork()
    if process == 0:
        try:
            use(stream)
        except RunError:
            os._exit(7)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.parametrize("seed", [-1, 1.5, "a"])
def test_a_seed_must_be_a_whole_number(seed: object) -> None:
    with pytest.raises(InvalidArgument, match="seeded_for_research_only"):
        RandomStream(seeded_for_research_only=seed)  # type: ignore[arg-type]
