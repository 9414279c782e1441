"""The statistics of the noise. Every bound has a false-alarm rate of at most 1e-9."""

import math
from itertools import combinations
from typing import Any

import pytest
import torch

from apportion.plan import Noise
from apportion.randomness import RandomStream
from apportion.training.clipping import ClippedSum
from apportion.training.noise import _LARGE, add_noise

ERRORS = 6.2  # standard errors: a normal exceeds this with probability 6e-10


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_every_size_and_type_get_noise_of_the_stated_size_in_their_own_place(dtype: torch.dtype) -> None:
    """Small tensors are noised together and large ones in pieces: the values must come back where they belong."""
    shapes = {"large": (3, _LARGE), "small": (70, 100), "empty": (0, 4), "scalar": (), "tail": (_LARGE + 7,)}
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


@pytest.mark.parametrize("kind", ["float", "grid"])
@pytest.mark.parametrize("given", [torch.float32, torch.float64])
def test_what_is_divided_and_rounded_is_the_noisy_sum(given: torch.dtype, kind: Noise) -> None:
    """Both are post-processing: the noise is that of a release without them, in sums of every size and layout."""
    views = torch.ones(10, dtype=torch.float64)
    sums = {"large": torch.ones(3, _LARGE, dtype=given), "a": views[:6].view(2, 3), "b": views[6:]}

    def noisy(**options: Any) -> dict[str, torch.Tensor]:
        clipped = ClippedSum(
            sums={name: total.clone() for name, total in sums.items()}, norms=torch.zeros(1), bound=2.0
        )
        return dict(add_noise(clipped, 3.0, RandomStream(seeded_for_research_only=1), kind, **options).sums)

    plain, divided = noisy(), noisy(divisor=7.0, dtype=torch.float32, overwrite=True)
    for name, total in plain.items():
        assert divided[name].dtype == torch.float32
        torch.testing.assert_close(divided[name].double(), total.double() / 7, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("parts", [(6, 4), (4, 6), (6,), (6, 2, 2)], ids=str)
def test_sums_that_are_one_tensor_get_the_noise_that_they_get_apart(parts: tuple[int, ...]) -> None:
    """In whatever order, and whether or not they are all of it; what nobody asked to overwrite stays as it is."""

    def noisy(overwrite: bool, apart: bool) -> list[torch.Tensor]:
        views = torch.arange(10.0, dtype=torch.float64)
        pieces = {6: views[:6].view(2, 3), 4: views[6:], 2: views[8:]}
        sums = {str(i): pieces[size].clone() if apart else pieces[size] for i, size in enumerate(parts)}
        clipped = ClippedSum(sums=sums, norms=torch.zeros(1), bound=2.0)
        found = add_noise(clipped, 3.0, RandomStream(seeded_for_research_only=1), overwrite=overwrite).sums
        assert overwrite or torch.equal(views, torch.arange(10.0, dtype=torch.float64))
        return list(found.values())

    expected = noisy(overwrite=False, apart=True)
    for overwrite in (False, True):
        found = noisy(overwrite=overwrite, apart=False)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
