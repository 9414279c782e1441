"""The statistics of the noise. Every bound has a false-alarm rate of at most 1e-9."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import special

from apportion.randomness import RandomStream
from apportion.training.clipping import ClippedSum
from apportion.training.noise import _PAIRS, _Scratch, add_noise, box_muller, fill_normal

N = 2_000_000
ERRORS = 6.2  # standard errors: a normal exceeds this with probability 6e-10
KOLMOGOROV = math.sqrt(math.log(2 / 1e-9) / 2)  # √N·D exceeds this with probability below 1e-9 (Massart)


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    out = torch.empty(N, dtype=torch.float64)
    fill_normal(out, 1.0, RandomStream())
    return out.numpy()


def test_moments_up_to_the_sixth(sample: np.ndarray) -> None:
    double_factorials = {1: 0, 2: 1, 3: 0, 4: 3, 5: 0, 6: 15}
    for power, expected in double_factorials.items():
        second = math.prod(range(1, 2 * power, 2))  # E[x^(2·power)]
        error = math.sqrt((second - expected**2) / N)
        assert abs(float((sample**power).mean()) - expected) < ERRORS * error, power


def test_kolmogorov_smirnov(sample: np.ndarray) -> None:
    probabilities = special.ndtr(np.sort(sample))
    steps = np.arange(N + 1) / N
    distance = max(np.max(steps[1:] - probabilities), np.max(probabilities - steps[:-1]))
    assert math.sqrt(N) * distance < KOLMOGOROV


def test_neighbours_and_the_two_halves_of_a_piece_are_independent(sample: np.ndarray) -> None:
    for lag in (1, 2, 3, _PAIRS, 2 * _PAIRS):
        first, second = sample[:-lag], sample[lag:]
        for power in (1, 2):  # squares as well: a shared radius would show there
            a, b = first**power - (power - 1), second**power - (power - 1)
            assert abs(float((a * b).mean())) < ERRORS * power / math.sqrt(N - lag), (lag, power)


def test_steps_and_tensors_are_independent() -> None:
    clipped = ClippedSum(
        sums={name: torch.zeros(300, 500, dtype=torch.float64) for name in ("a", "b", "c")},
        norms=torch.zeros(1),
        bound=0.5,
    )
    stream = RandomStream()
    noises = [noise for _ in range(3) for noise in add_noise(clipped, 4.0, stream).sums.values()]
    for noise in noises:
        assert abs(float(noise.std()) / 2.0 - 1) < ERRORS / math.sqrt(2 * noise.numel())
    for first, second in combinations(noises, 2):
        correlation = float((first * second).mean()) / 4.0
        assert abs(correlation) < ERRORS / math.sqrt(first.numel())


def transform(words: list[int], angles: list[int]) -> tuple[np.ndarray, np.ndarray]:
    size = len(words)
    first, second = torch.empty(size, dtype=torch.float64), torch.empty(size, dtype=torch.float64)
    box_muller(
        torch.tensor(words, dtype=torch.int64), torch.tensor(angles, dtype=torch.int32), 1.0, first, second, _Scratch()
    )
    return first.numpy(), second.numpy()


@pytest.mark.parametrize("radius", [0.001, 0.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0])
def test_the_tail_has_the_right_mass(radius: float) -> None:
    """P(r > t) = e^(−t²/2): the word at that share of all words must give t."""
    word = -(2**63) + round(math.exp(-radius * radius / 2) * 2**64)
    first, second = transform([min(word, 2**63 - 1)], [123456789])
    resolution = 2.0**-55 * math.exp(radius * radius / 2) / radius  # half a cell of u, in units of r
    assert math.hypot(first[0], second[0]) == pytest.approx(radius, rel=1e-6, abs=resolution)


def test_the_extreme_words_give_finite_numbers() -> None:
    first, second = transform([-(2**63), 2**63 - 1, 0, -1], [7] * 4)
    radii = np.hypot(first, second)
    assert radii[0] == pytest.approx(math.sqrt(-2 * math.log(2.0**-55)), rel=1e-6)  # 8.73
    assert 0 <= radii[1] < 1e-7
    assert radii[2] == pytest.approx(math.sqrt(2 * math.log(2)), rel=1e-6)
    assert np.all(np.isfinite(radii))


def test_angles_cover_the_circle_and_leave_no_coordinate_at_zero() -> None:
    angles = [0, -1, 2**30, -(2**30), 2**31 - 1, -(2**31), 1, 12345, -987654321]
    first, second = transform([0] * len(angles), angles)
    radius = math.sqrt(2 * math.log(2))
    expected = [(angle + 0.5) * math.pi / 2**31 for angle in angles]
    np.testing.assert_allclose(first, radius * np.cos(expected), atol=1e-6)
    np.testing.assert_allclose(second, radius * np.sin(expected), atol=1e-6)
    assert np.all(first != 0)
    assert np.all(second != 0)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 2 * _PAIRS - 1, 2 * _PAIRS, 2 * _PAIRS + 1])
def test_every_size_is_filled(size: int) -> None:
    out = torch.zeros(size, dtype=torch.float64)
    fill_normal(out, 1.0, RandomStream())
    assert bool((out != 0).all())


def test_noise_is_the_same_in_pieces_of_every_thread_count() -> None:
    found = []
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        out = torch.empty(100_001, dtype=torch.float64)
        fill_normal(out, 1.0, RandomStream(5))
        found.append(out)
    torch.set_num_threads(threads)
    assert torch.equal(*found)
