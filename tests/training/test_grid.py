"""Noise on a grid: exact, independent of how it was computed, and paid for."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tiny_data, tiny_plan, train
from scipy import special

import apportion as ap
from apportion import ledger
from apportion.randomness import RandomStream
from apportion.training import grid
from apportion.training.clipping import ClippedSum
from apportion.training.grid import exact_pair, grid_of, noisy_sums_on_grid, rounded_normals, transform

RATIOS = [0.3, 0.7, 3.0, 1000.5, 2.0**24 * 1.3]
EXTREMES = [-(2**63), -(2**63) + 1, -(2**63) + 2**24, -1, 0, 1, 2**62, -(2**62), 2**63 - 1]


@pytest.mark.parametrize("ratio", RATIOS)
def test_what_float64_decides_is_what_intervals_decide(ratio: float) -> None:
    stream = RandomStream()
    words = stream.words(240).view(np.int64)
    radii = np.concatenate([words[:120], np.repeat(EXTREMES, len(EXTREMES))])
    angles = np.concatenate([words[120:], np.tile(EXTREMES, len(EXTREMES))])
    found, unclear = transform(radii, angles, ratio)
    for index in set(range(len(radii))) - set(unclear):
        exact = exact_pair(int(radii[index]), int(angles[index]), ratio, stream)
        assert exact == tuple(found[:, index].tolist()), (radii[index], angles[index])
    assert len(unclear) < 0.45 * len(radii)


def test_the_stated_error_is_never_exceeded() -> None:
    """Near a rounding boundary float64 must say that it cannot tell: halving the scale until it sits on one."""
    stream = RandomStream()
    for word in stream.words(50).view(np.int64):
        radius, angle = int(word), int(stream.words(1).view(np.int64)[0])
        u = (radius + 2**63 + 0.5) / 2.0**64
        value = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * angle / 2.0**64)
        ratio = 1_000_000.5 / abs(value)  # ratio · value is a half-integer up to rounding
        _, unclear = transform(np.array([radius]), np.array([angle]), ratio)
        assert unclear == [0]
        first, _ = exact_pair(radius, angle, ratio, stream)
        assert abs(first) in (1_000_000, 1_000_001)


def test_when_nothing_is_clear_intervals_give_the_same_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_SMALLEST", 2.0)
    check_law(rounded_normals(1500, 1.1, RandomStream()), 1.1)


@pytest.mark.parametrize("ratio", [0.3, 0.7, 3.0])
def test_the_law_is_that_of_a_rounded_gaussian(ratio: float) -> None:
    check_law(rounded_normals(400_000, ratio, RandomStream()), ratio)


def check_law(sample: torch.Tensor, ratio: float) -> None:
    """Chi-square over the values that are expected at least 20 times, the rest together; false alarms below 1e-9."""
    values = np.arange(-60, 61)
    expected = len(sample) * np.diff(special.ndtr((np.arange(-60, 62) - 0.5) / ratio))
    counts = np.array([int((sample == value).sum()) for value in values])
    often = expected >= 20
    observed = np.append(counts[often], len(sample) - counts[often].sum())
    wanted = np.append(expected[often], max(len(sample) - expected[often].sum(), 1e-9))
    if wanted[-1] < 20:
        observed, wanted = observed[:-1], wanted[:-1]
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    assert special.chdtrc(len(wanted), statistic) > 1e-9


def test_sums_lie_on_the_grid_and_rounding_is_paid_for() -> None:
    generator = torch.Generator().manual_seed(1)
    sums = {"a": torch.randn(40, 50, dtype=torch.float64, generator=generator), "b": torch.tensor([math.pi])}
    clipped = ClippedSum(sums=sums, norms=torch.zeros(1), bound=0.25)
    step = grid_of(3.0 * 0.25)
    assert 2**24 <= 3.0 * 0.25 / step < 2**25
    noisy = noisy_sums_on_grid(clipped, 3.0, RandomStream())
    for name, total in noisy.items():
        assert torch.equal(total, torch.round(total / step) * step)
        assert total.shape == sums[name].shape
    deviation = float((noisy["a"] - sums["a"]).std()) / 0.75
    assert abs(deviation - 1) < 6.2 / math.sqrt(2 * 2000)


def test_the_noise_covers_the_sensitivity_after_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        grid, "rounded_normals", lambda count, ratio, _: asked.append(ratio) or torch.zeros(count).long()
    )
    clipped = ClippedSum(sums={"a": torch.rand(1000, dtype=torch.float64)}, norms=torch.zeros(1), bound=1.0)
    sums = noisy_sums_on_grid(clipped, 2.0, RandomStream())["a"]
    step = grid_of(2.0)
    assert asked[0] * step >= 2.0 * (1.0 + step * math.sqrt(1000))
    assert float((sums - clipped.sums["a"]).abs().max()) <= step / 2


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_a_run_on_the_grid_is_certified_as_covered(tmp_path: Path, kind: str) -> None:
    plan = tiny_plan(noise="grid")
    if kind == "adaptive":
        plan = ap.AdaptivePlan(
            budget=ap.Budget(rho=0.03), examples=60, batching=ap.Shuffle(batches=3), clip=1.0, noise="grid",
            schedule=ap.ValidationDecay(sigma0=8.0, decay=0.9, period=5),
        )  # fmt: skip
    run = train(tmp_path / "run", plan, **({"validation": ap.Public(tiny_data(10))} if kind == "adaptive" else {}))
    assert ledger.read(tmp_path / "run" / "ledger.jsonl").plan == plan
    certificate = run.certificate().to_json()
    assert certificate["floating_point"] == "covered"
    assert not any("floating-point" in item for item in certificate["not_covered"])
    run.publish(tmp_path / "bundle")
    assert ap.verify(tmp_path / "bundle").verified


def test_ordinary_noise_is_certified_as_not_covered(run: object) -> None:
    certificate = run.certificate().to_json()  # type: ignore[attr-defined]
    assert certificate["floating_point"] == "not covered"
    assert any("floating-point" in item for item in certificate["not_covered"])
