"""The steps under the accountant, one by one: laws on grids bound the law they came from, sums are what they claim."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft

from apportion.accounting.loss_distribution.allocation import allocation_law
from apportion.accounting.loss_distribution.composition import Composition
from apportion.accounting.loss_distribution.discretise import Atoms, Law, contract, spread
from apportion.accounting.loss_distribution.few_bins import few_bins_law
from apportion.accounting.loss_distribution.fourier import power, product
from apportion.accounting.loss_distribution.laws import RandomisedResponse, SampledGaussian
from apportion.accounting.loss_distribution.sums import Chernoff, LatticeSums, gathered
from apportion.accounting.loss_distribution.values import ValueGrid

LAWS: list[Law] = [
    SampledGaussian(1.0),
    SampledGaussian(0.2, 0.05),
    SampledGaussian(3.0, 0.3),
    SampledGaussian(0.01, 0.9),
    RandomisedResponse(0.7),
]


def under_q(atoms: Atoms) -> tuple[np.ndarray, np.ndarray]:
    """Values of Y, and masses under Q."""
    s = atoms.step * np.arange(atoms.first, atoms.last + 1)
    return np.exp(s), atoms.masses * np.exp(-np.maximum(s, 0.0))


def calls_of(atoms: Atoms, levels: np.ndarray) -> np.ndarray:
    y, masses = under_q(atoms)
    return np.maximum(y - levels[:, None], 0) @ masses + atoms.infinite


def exact_calls(law: Law, logs: np.ndarray) -> np.ndarray:
    """E(Y − e^s)₊ on both sides of one; from puts by parity."""
    right = law.calls(np.maximum(logs, 0.0), np.maximum(logs, 0.0))
    left = law.puts(np.minimum(logs, 0.0), np.minimum(logs, 0.0)) * np.exp(logs) - np.expm1(logs)
    return np.where(logs >= 0, right, left)


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("cells", [3.0, 20.0])
def test_spread_lies_above_and_contract_below_everywhere(law: Law, cells: float) -> None:
    low, high = law.support(1e-12)
    step = (high - low) / 8 / cells
    logs = np.linspace(low, high, 777)
    exact = exact_calls(law, logs)
    above, below = spread(law, step, low, high), contract(law, step, low, high)
    assert np.all(calls_of(above, np.exp(logs)) >= exact - 1e-13)
    assert np.all(calls_of(below, np.exp(logs)) <= exact + 1e-13)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_mass_and_mean_are_kept(law: Law) -> None:
    low, high = law.support(1e-12)
    for make in (spread, contract):
        atoms = make(law, (high - low) / 100, low, high)
        y, masses = under_q(atoms)
        assert masses.sum() + atoms.zero == pytest.approx(1, abs=1e-12)
        assert y @ masses + atoms.infinite == pytest.approx(1, abs=1e-12)
        assert np.all(masses >= 0)


def test_errors_are_of_second_order_in_the_step() -> None:
    law = SampledGaussian(1.0, 0.2)
    low, high = law.support(1e-12)
    at = np.array([0.1])
    exact = exact_calls(law, at)[0]
    for make in (spread, contract):
        errors = [abs(calls_of(make(law, 0.2 / n, low, high), np.exp(at))[0] - exact) for n in (3, 31)]
        assert errors[1] < errors[0] / 30


def test_the_mirror_image_swaps_the_directions() -> None:
    law = SampledGaussian(0.8, 0.3)
    atoms = spread(law, 0.01, *law.support(1e-12))
    y, masses = under_q(atoms)
    mirrored_y, mirrored_masses = under_q(atoms.mirrored())
    assert np.maximum(1 - 1.5 * y, 0) @ masses == pytest.approx(np.maximum(mirrored_y - 1.5, 0) @ mirrored_masses)


def test_the_product_of_transforms_is_the_transform_of_the_sum() -> None:
    generator = np.random.default_rng(3)
    rows = generator.random((12, 40)) ** 4
    rows /= rows.sum(axis=1)[:, None]
    counts = [int(count) for count in generator.integers(1, 9, 12)]
    length = fft.next_fast_len(40 * sum(counts), real=True)
    found, error = product(rows, counts, length)
    direct = np.ones(1)
    for row, count in zip(rows, counts, strict=True):
        for _ in range(count):
            direct = np.convolve(direct, row)
    off = np.abs(fft.irfft(found, length)[: len(direct)] - direct).sum()
    assert off <= error + 1e-12
    assert error < 1e-9


def test_power_by_squaring() -> None:
    values = np.array([0.5 + 0.5j, 1.0 + 0j, -0.9j])
    for exponent in (1, 2, 7, 100):
        assert power(values, exponent) == pytest.approx(values**exponent)


def test_lattice_sums_keep_their_relative_precision_far_out() -> None:
    lattice, weights, count = np.arange(-1, 2), np.array([0.25, 0.5, 0.25]), 60
    window = Chernoff.of(0.5 * lattice, weights, count, count, 60.0)
    sums = LatticeSums(lattice, weights, 0.5, window, count)
    exact = np.ones(1)
    for _ in range(count):
        exact = np.convolve(exact, weights)
    for upper in (True, False):
        x, masses = sums.of(count, upper)
        truth = exact[np.round(x / 0.5).astype(int) + count]
        ratio = masses / truth
        assert np.all(ratio >= 1 - 1e-12) if upper else np.all(ratio <= 1 + 1e-12)
        assert np.all(np.abs(ratio - 1) < 1e-3)
        assert truth.min() < 1e-22


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 1)), min_size=2, max_size=30), st.floats(0, 10))
def test_gathering_keeps_mass_and_mean_and_the_order(points: list[tuple[float, float]], level: float) -> None:
    x, weights = (np.array(column) for column in zip(*points, strict=True))
    truth = np.maximum(x - level, 0) @ weights
    for upper in (True, False):
        at, masses = gathered(x, weights, np.linspace(-0.5, 10.5, 7), upper)
        assert masses.sum() == pytest.approx(weights.sum())
        assert at @ masses == pytest.approx(x @ weights, abs=1e-9)
        value = np.maximum(at - level, 0) @ masses
        assert value >= truth - 1e-9 if upper else value <= truth + 1e-9


@pytest.mark.parametrize(("mu", "cut", "top"), [(1.0, 8.0, 3000.0), (0.1, 0.9, 0.9), (3.0, 50.0, 1e9)])
def test_values_keep_mass_and_mean(mu: float, cut: float, top: float) -> None:
    bottom = math.expm1(-9 * mu - mu * mu / 2)
    grid = ValueGrid.of(mu, 1 / 64, bottom, cut, top, 1 / 64)
    x = np.append(grid.d * grid.lattice, grid.tail)
    weights, infinite, lost = grid.spread()
    assert weights.sum() + lost == pytest.approx(1, abs=1e-12)
    assert weights @ x + infinite == pytest.approx(0, abs=1e-9)
    weights = grid.contract()
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights @ x == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("make", [allocation_law, few_bins_law])
def test_both_ways_of_adding_bins_agree(make: Callable[..., Law]) -> None:
    s = np.linspace(0.05, 1.5, 30)
    above, below = make(0.7, 6, 0.05, 1e-12, True), make(0.7, 6, 0.05, 1e-12, False)
    reference = few_bins_law(0.7, 6, 0.01, 1e-12, True), few_bins_law(0.7, 6, 0.01, 1e-12, False)
    assert np.all(above.calls(s, s) >= reference[1].calls(s, s) - 1e-12)
    assert np.all(below.calls(s, s) <= reference[0].calls(s, s) + 1e-12)
    assert above.calls(s, s) == pytest.approx(below.calls(s, s), rel=0.02, abs=1e-9)
    assert np.all(above.puts(-s, -s) >= reference[1].puts(-s, -s) - 1e-12)


def test_every_order_gives_a_valid_profile() -> None:
    """The tilt is a matter of precision only: all upper bounds lie above all lower ones."""
    law = SampledGaussian(1.0, 0.1)
    low, high = law.support(1e-14)
    above, below = ([make(law, 0.01, low, high)] for make in (spread, contract))
    epsilons = (0.0, 0.5, 1.0, 2.0)
    uppers = [Composition(above, [20]).profile(order, True) for order in (1.5, 3.0, 6.0, 10.0)]
    lowers = [Composition(below, [20]).profile(order, False) for order in (1.5, 3.0, 6.0, 10.0)]
    for epsilon in epsilons:
        least = min(profile.delta(epsilon) for profile in uppers if profile is not None)
        most = max(profile.delta(epsilon) for profile in lowers if profile is not None)
        assert most <= least <= 1.05 * most
