"""A batch may be worked on in parts: examples are clipped in their part, noise is added once, and nothing else changes."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import sgd, tiny_data, tiny_model, tiny_plan, train
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.clipping import Automatic, Clipping, Flat, PerLayer
from apportion.errors import InvalidArgument
from apportion.randomness import RandomStream
from apportion.training import memory, start, step
from apportion.training.clipping import ClippedSum
from apportion.training.gradients import clipped_sum
from apportion.training.gradients.prepared import Preparation
from apportion.training.records import pieces

CLIPPINGS = [Flat(), PerLayer(layers=2), PerLayer(layers={"0": 1.0, "2": 0.5}, noise="each"), Automatic()]
BATCHINGS = [ap.Shuffle(batches=3), ap.Partition(batches=3), ap.Poisson(rate=0.25)]


def weights(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path / "model.safetensors")


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda b: b.kind)
@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
def test_a_split_run_is_the_unsplit_run(tmp_path: Path, batching: Any, clipping: Clipping) -> None:
    assert_split_is_unsplit(tmp_path, 1e-12, batching=batching, clipping=clipping)


def test_a_split_run_is_the_unsplit_run_on_a_grid(tmp_path: Path) -> None:
    assert_split_is_unsplit(tmp_path, 1e-7, batching=ap.Partition(batches=3), noise="grid")


def assert_split_is_unsplit(tmp_path: Path, tolerance: float, **choices: Any) -> None:
    plan = tiny_plan(schedule=ap.Uniform(sigma0=12.0), **choices)
    initial = tiny_model().double().state_dict()
    for name, most in (("whole", 1000), ("split", 7), ("single", 1)):
        model = tiny_model().double()
        model.load_state_dict(initial)
        train(tmp_path / name, plan, model=model, seeded_for_research_only=3, max_physical_batch=most)
    whole = weights(tmp_path / "whole")
    for name in ("split", "single"):
        for key, value in weights(tmp_path / name).items():
            torch.testing.assert_close(value, whole[key], rtol=0, atol=tolerance)


def test_a_split_baseline_is_the_unsplit_baseline(tmp_path: Path) -> None:
    plan = ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=2), epochs=2)
    initial = tiny_model().state_dict()
    for name, most in (("whole", None), ("split", 7)):
        model = tiny_model()
        model.load_state_dict(initial)
        train(tmp_path / name, plan, model=model, seeded_for_research_only=3, max_physical_batch=most)
    for key, value in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weights(tmp_path / "split")[key], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
@pytest.mark.parametrize("sizes", [(60,), (0, 60), (25, 0, 35, 0), (1,) * 60], ids=len)
def test_empty_parts_add_nothing_and_the_bound_stays(sizes: tuple[int, ...], clipping: Clipping) -> None:
    model, (x, y) = tiny_model(), tiny_data()
    whole = clipped_sum(model, cross_entropy, x, y, clip=0.1, clipping=clipping)
    parts = zip(x.split(sizes), y.split(sizes), strict=True)
    split = step.sum_over_parts(model, cross_entropy, parts, clip=0.1, clipping=clipping)
    assert split.bound == whole.bound
    torch.testing.assert_close(split.norms, whole.norms, rtol=1e-5, atol=1e-6)
    for name, total in whole.sums.items():
        torch.testing.assert_close(split.sums[name].double(), total.double(), rtol=0, atol=1e-6)


def test_noise_is_drawn_once_however_many_parts(monkeypatch: Any) -> None:
    calls: list[int] = []
    real = step.add_noise

    def counting(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(step, "add_noise", counting)
    model, (x, y) = tiny_model(), tiny_data()
    constants = {"clip": 1.0, "sigma": 1.0, "nominal_batch_size": 60.0, "stream": RandomStream()}
    parts = [(x[rows], y[rows]) for rows in pieces(60, 7)]
    step.step_in_parts(model, cross_entropy, sgd(model.parameters()), parts, **constants)
    assert len(calls) == 1


def test_a_batch_that_was_looked_at_is_still_split(tmp_path: Path, monkeypatch: Any) -> None:
    seen: list[int] = []
    real = Preparation.clipped_sum

    def watching(self: Any, model: Any, loss: Any, inputs: Any, *others: Any) -> Any:
        seen.append(len(inputs))
        return real(self, model, loss, inputs, *others)

    with start(
        tiny_model(), tiny_data(), tiny_plan(), optimizer=sgd, loss=cross_entropy, out=tmp_path / "run",
        max_physical_batch=8,
    ) as run:  # fmt: skip
        monkeypatch.setattr(Preparation, "clipped_sum", watching)
        for epoch in run:
            for batch in epoch:
                assert len(batch.inputs) == len(batch.targets) == 20
                run.step(batch)
                assert len(batch.inputs) == 20
    assert seen == [8, 8, 4] * 6


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "many"])
@pytest.mark.parametrize("name", ["max_physical_batch", "memory_limit"])
def test_a_size_that_is_none_is_refused(tmp_path: Path, name: str, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        train(tmp_path / "run", **{name: wrong})
    assert not (tmp_path / "run").exists()


def test_the_size_comes_from_the_memory_limit_and_never_from_the_records(tmp_path: Path) -> None:
    found = []
    for records in (0, 60, 600):
        data, plan = tiny_data(records), tiny_plan(batching=ap.Partition(batches=3))
        run = start(
            tiny_model(), data, plan, optimizer=sgd, loss=cross_entropy, out=tmp_path / "run", memory_limit=100_000
        )
        found.append(run.physical_batch)
    assert len(set(found)) == 1
    assert 8 <= found[0] <= 4096
    model, (x, y) = tiny_model(), tiny_data(found[0])
    with memory.PeakMemory() as peak:
        clipped_sum(model, cross_entropy, x, y, clip=1.0)
        clipped_sum(model, cross_entropy, x, y, clip=1.0)
    assert 20_000 < peak.peak < 200_000


def test_peak_memory_counts_what_is_alive_at_one_time() -> None:
    start = torch.zeros(1000)
    with memory.PeakMemory() as peak:
        for _ in range(5):
            kept = (start + 1).view(10, 100)  # 4000 bytes, and a view
            kept += 1
        del kept
        torch.zeros(3, dtype=torch.float64)
    assert peak.peak == 8000, "the old one is alive while the new one is made"


def test_a_limit_too_small_for_one_example_works_on_one_at_a_time() -> None:
    model = tiny_model()
    like = (torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    work = lambda x, y: clipped_sum(model, cross_entropy, x, y, clip=1.0)  # noqa: E731
    assert memory.physical_batch(model, work, like, most=None, limit=1) == 1


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=str)
@pytest.mark.parametrize("special", [1.0, 1e18, 0.0, math.nan, math.inf])
def test_neighbouring_batches_differ_by_at_most_the_bound_however_they_are_split(
    clipping: Clipping, special: float
) -> None:
    """Leaving out the first example shifts every other one, so that all parts change."""
    model, (x, y) = tiny_model(), tiny_data()
    x = torch.cat([x[:1] * special, x[1:]])

    def summed(start: int, at_once: int) -> ClippedSum:
        parts = [(x[start:][rows], y[start:][rows]) for rows in pieces(60 - start, at_once)]
        return step.sum_over_parts(model, cross_entropy, parts, clip=0.1, clipping=clipping)

    for at_once in (1, 7, 1000):
        with_it, without = summed(0, at_once), summed(1, at_once)
        moved = {name: (with_it.sums[name] - without.sums[name]).double() for name in with_it.sums}
        assert math.sqrt(sum(float((part**2).sum()) for part in moved.values())) <= with_it.bound
        noised = [part / with_it.scale(name) for name, part in moved.items()]
        assert math.sqrt(sum(float((part**2).sum()) for part in noised)) <= 1
