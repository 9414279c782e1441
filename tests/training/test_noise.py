"""The statistics of the noise. Every bound has a false-alarm rate of at most 1e-9."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import special

from apportion.randomness import RandomStream
from apportion.training.clipping import ClippedSum
from apportion.training.noise import _PAIRS, _Scratch, add_noise, add_normal, box_muller

N = 2_000_000
ERRORS = 6.2  # standard errors: a normal exceeds this with probability 6e-10
KOLMOGOROV = math.sqrt(math.log(2 / 1e-9) / 2)  # √N·D exceeds this with probability below 1e-9 (Massart)


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    out = torch.zeros(N, dtype=torch.float64)
    add_normal(out, 1.0, RandomStream())
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
    first, second = np.zeros(len(words)), np.zeros(len(words))
    box_muller(np.array(words, np.int64), np.array(angles, np.int64), 1.0, first, second, _Scratch())
    return first, second


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("radius", [0.001, 0.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0])
def test_the_tail_has_the_right_mass(radius: float, sign: int) -> None:
    """P(r > t) = e^(−t²/2): that share of all words, the smallest in size, must give more than t."""
    word = sign * round(math.exp(-radius * radius / 2) * 2**63)
    first, second = transform([word], [123456789 << 32])
    cell = 1 / (abs(word) * radius)  # of u, in units of r
    assert math.hypot(first[0], second[0]) == pytest.approx(radius, rel=1e-6, abs=cell)


def test_the_extreme_words_give_finite_numbers_and_some_noise() -> None:
    first, second = transform([-(2**63), 2**63 - 1, 0, -1, 2**62], [7] * 5)
    radii = np.hypot(first, second)
    assert np.all((radii[:2] > 1e-8) & (radii[:2] < 2e-8))
    assert radii[2:4] == pytest.approx(math.sqrt(2 * 64 * math.log(2)), rel=1e-6)  # 9.42
    assert radii[4] == pytest.approx(math.sqrt(2 * math.log(2)), rel=1e-6)


def test_angles_cover_the_circle_and_leave_no_coordinate_at_zero() -> None:
    angles = [0, -1, 2**62, -(2**62), 2**63 - 1, -(2**63), 1, 12345 << 40, -987654321 << 32]
    first, second = transform([2**62] * len(angles), angles)
    radius = math.sqrt(2 * math.log(2))
    expected = [(angle + 0.5) * math.pi / 2**63 for angle in angles]
    np.testing.assert_allclose(first, radius * np.cos(expected), atol=1e-14)
    np.testing.assert_allclose(second, radius * np.sin(expected), atol=1e-14)
    assert np.all(first != 0)
    assert np.all(second != 0)


def test_the_direction_of_a_noisy_pair_does_not_tell_which_of_two_sums_it_hides() -> None:
    """With angles from float32 the true sum leaves a direction that float32 has, every time, and another sum hardly ever."""
    size = 20_000
    truth, other = np.zeros(size), np.full(size, 0.01)
    noisy = torch.from_numpy(truth.copy())
    add_normal(noisy, 20.0, RandomStream())

    def off_float32(noise: np.ndarray) -> float:
        angles = np.arctan2(noise[size // 2 :], noise[: size // 2])
        nearest = torch.from_numpy(angles.astype(np.float32))
        rounded = np.arctan2(torch.sin(nearest).double().numpy(), torch.cos(nearest).double().numpy())
        return float(np.median(np.abs(rounded - angles)))

    assert off_float32(noisy.numpy() - truth) == pytest.approx(off_float32(noisy.numpy() - other), rel=0.1)


def test_the_length_of_a_noisy_pair_lies_on_no_grid() -> None:
    """Logarithms near 126 ln 2, subtracted from it, would leave multiples of 2⁻⁴⁶ only."""
    noise = torch.zeros(2 * _PAIRS, dtype=torch.float64)
    add_normal(noise, 1.0, RandomStream())
    squares = noise[:_PAIRS].numpy() ** 2 + noise[_PAIRS:].numpy() ** 2
    places = squares[squares < 0.5] * 2.0**46
    assert float(np.abs(places - np.rint(places)).mean()) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 2 * _PAIRS - 1, 2 * _PAIRS, 2 * _PAIRS + 1])
def test_every_size_is_filled(size: int) -> None:
    out = torch.zeros(size, dtype=torch.float64)
    add_normal(out, 1.0, RandomStream())
    assert bool((out != 0).all())


def test_noise_is_the_same_in_pieces_of_every_thread_count() -> None:
    found = []
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        out = torch.zeros(100_001, dtype=torch.float64)
        add_normal(out, 1.0, RandomStream(5))
        found.append(out)
    torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_every_size_and_type_get_noise_of_the_stated_size_in_their_own_place(dtype: torch.dtype) -> None:
    """Small tensors are noised together and large ones in pieces: the values must come back where they belong."""
    shapes = {"large": (3, 2 * _PAIRS), "small": (70, 100), "empty": (0, 4), "scalar": (), "tail": (2 * _PAIRS + 7,)}
    sums = {
        name: torch.full(shape, 1000.0 * (1 + index), dtype=dtype) for index, (name, shape) in enumerate(shapes.items())
    }
    noisy = add_noise(ClippedSum(sums=sums, norms=torch.zeros(1), bound=2.0), 3.0, RandomStream()).sums
    assert list(noisy) == list(sums)
    for name, total in sums.items():
        noise = (noisy[name] - total).double()
        assert noise.shape == total.shape
        assert bool((noise.abs() < 6.0 * 9.5).all())
        if noise.numel() > 1000:
            assert abs(float(noise.std()) / 6.0 - 1) < ERRORS / math.sqrt(2 * noise.numel()) + 1e-4
            assert abs(float(noise.mean())) < ERRORS * 6.0 / math.sqrt(noise.numel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_in_place_is_the_same_noise(dtype: torch.dtype) -> None:
    """Large sums are overwritten when asked, and only then; what is released does not depend on it."""

    def noisy(overwrite: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        sums = {
            "large": torch.ones(300, 300, dtype=dtype),
            "turned": torch.ones(400, 200, dtype=dtype).T,
            "b": torch.ones(7),
        }
        clipped = ClippedSum(sums=sums, norms=torch.zeros(1), bound=2.0)
        return sums, dict(add_noise(clipped, 3.0, RandomStream(seeded_for_research_only=1), overwrite=overwrite).sums)

    (kept, first), (used, second) = noisy(False), noisy(True)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(bool((total == 1).all()) for total in kept.values())
    assert used["large"].data_ptr() == second["large"].data_ptr()
