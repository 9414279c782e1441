"""Law 6 at large batches: without one record all that follow stand in other blocks of the sum, and roundings add up."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from apportion import PerLayer
from apportion.randomness import RandomStream
from apportion.training import step
from apportion.training.clipping import ClippedSum, slack_of_a_batch, stated_bound
from apportion.training.gradients import clipped_sum_of_units, prepare
from apportion.training.noise import add_noise

LARGE, PART = 20_001, 1000


def model(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(30, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(dtype)


def alternating(records: int) -> Tensor:
    """Two records in turn: without the first, every block holds the same ones in another order."""
    two = 3 * torch.randn(2, 30, generator=torch.Generator().manual_seed(1))
    return two[torch.arange(records) % 2]


def parts(inputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(inputs), PART):
        piece = inputs[start : start + PART].clone()
        yield piece, torch.zeros(len(piece), dtype=torch.long)


def noised(monkeypatch: pytest.MonkeyPatch, inputs: Tensor, nominal: float, **options: Any) -> ClippedSum:
    """The clipped sum as noise is added to it in a training step."""
    seen: list[ClippedSum] = []

    def spied(clipped: ClippedSum, *arguments: Any, **more: Any) -> Any:
        seen.append(clipped)
        return add_noise(clipped, *arguments, **{**more, "overwrite": False})

    monkeypatch.setattr(step, "add_noise", spied)
    trained = model(inputs.dtype)
    step.step_in_parts(
        trained, torch.nn.functional.cross_entropy, torch.optim.SGD(trained.parameters(), lr=0.1), parts(inputs),
        clip=1.0, sigma=1.0, nominal_batch_size=nominal, stream=RandomStream(), **options,
    )  # fmt: skip
    return seen[0]


@pytest.mark.parametrize("clipping", [{}, {"clipping": PerLayer(layers=2)}], ids=["flat", "per layer"])
def test_law_6_the_noise_covers_what_one_record_moves_in_a_large_batch(
    monkeypatch: pytest.MonkeyPatch, clipping: dict[str, Any]
) -> None:
    inputs = alternating(LARGE)
    whole = noised(monkeypatch, inputs, LARGE, **clipping)
    for left_out in (0, 1):
        kept = torch.arange(LARGE) != left_out
        fewer = noised(monkeypatch, inputs[kept], LARGE, **clipping)
        moved = {name: whole.sums[name].double() - fewer.sums[name].double() for name in whole.sums}
        assert fewer.bound == whole.bound  # the nominal size is the same
        assert math.sqrt(sum(float(part.square().sum()) for part in moved.values())) <= whole.bound
        assert sum(float((part / whole.scale(name)).square().sum()) for name, part in moved.items()) <= 1


def test_the_bound_grows_with_the_nominal_size_and_not_with_the_realised_one(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (noised(monkeypatch, alternating(records), 10_000.0).bound for records in (3, 3000))
    assert few == many == stated_bound(1.0, torch.float32) * (1 + slack_of_a_batch(10_000, torch.float32))
    # 512·√n·u in all: 1e-5 of it is stated, 6e-6 are headroom
    assert few == pytest.approx(1 + 512 * 100 * 2.0**-24 - 6e-6, abs=1e-7)


@pytest.mark.parametrize(("dtype", "records"), [(torch.float32, 16), (torch.bfloat16, 16), (torch.float64, 570)])
def test_small_batches_need_no_more_than_the_stated_bound(dtype: torch.dtype, records: int) -> None:
    assert slack_of_a_batch(records, dtype) == 0 < slack_of_a_batch(2 * records, dtype)


def test_a_model_in_float64_is_charged_for_rounding_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    assert noised(monkeypatch, alternating(4).double(), 500.0).bound == stated_bound(1.0, torch.float64)


def vectors(records: int) -> tuple[torch.nn.Module, Tensor]:
    return torch.nn.Linear(200, 200, bias=False), functional.pad(torch.ones(records, 1), (0, 199))


def sequences(records: int) -> tuple[torch.nn.Module, Tensor]:
    shares = torch.rand(records, 16, 1, generator=torch.Generator().manual_seed(1))
    return torch.nn.Linear(200, 200, bias=False), functional.pad(shares / shares.sum(1, keepdim=True), (0, 199))


def built(records: int) -> tuple[torch.nn.Module, Tensor]:
    return torch.nn.Linear(30, 30, bias=False), functional.pad(torch.ones(records, 16, 1) / 16, (0, 29))


def cancelling(records: int) -> tuple[torch.nn.Module, Tensor]:
    """Half of the terms are there to cancel the others: the sum is four times shorter than of terms with random signs."""
    terms = torch.cat([torch.ones(32), -torch.ones(32)]) * 3.9 / 8 + 1 / 64
    return torch.nn.Linear(200, 200, bias=False), functional.pad(terms[:, None].repeat(records, 1, 1), (0, 199))


def tables(records: int) -> tuple[torch.nn.Module, Tensor]:
    return torch.nn.Embedding(20_000, 16), torch.full((records,), 7)


@pytest.mark.parametrize("records", [20, 64, 200, 560, 2000])
@pytest.mark.parametrize("made", [vectors, built, sequences, cancelling, tables])
def test_law_6_gradients_that_all_have_one_entry(made: Any, records: int) -> None:
    """Nothing averages out there: every rounding of every partial sum goes along the gradient or against it."""
    for seed in range(2):
        layer, inputs = made(records)
        prepared = prepare(layer, lambda output, size: output[..., :1].flatten(1).sum(1) * size)
        targets = 0.5 + 0.7 * torch.rand(records, generator=torch.Generator().manual_seed(seed))
        whole = prepared(inputs, targets, 1.0).for_batches_of(records, torch.float32)
        for left_out in (0, records // 3, records - 1):
            kept = torch.arange(records) != left_out
            fewer = prepared(inputs[kept], targets[kept], 1.0)
            [moved] = [whole.sums[name].double() - fewer.sums[name].double() for name in whole.sums]
            own = min(1.0, float(whole.norms[left_out]))
            assert float(moved.norm()) - own <= whole.bound - 1
        assert None not in prepared.recipes.values()


def test_the_bound_is_the_same_for_every_batch_empty_ones_included() -> None:
    """Noise in proportion to a bound that depended on the records would tell of them."""
    layer = torch.nn.Linear(300, 300, bias=False)
    inputs, targets = torch.randn(9, 20, 300), torch.zeros(9)
    prepared = prepare(layer, lambda output, target: output.square().sum((1, 2)))
    assert len({prepared(inputs[:n], targets[:n], 1.0).for_batches_of(50, torch.float32).bound for n in (9, 1, 0)}) == 1
    records = torch.randn(9, 300)
    for sizes in ([9], [1] * 9, [4, 0, 5], [0]):
        count = sum(sizes)
        loss = lambda output, target: output.square().sum(1)  # noqa: E731 - one line, used once
        part = [(records[:count], targets[:count])]
        found = clipped_sum_of_units(layer, loss, part, sizes, clip=1.0).for_batches_of(50, torch.float32)
        assert (
            found.bound
            == ClippedSum(sums={}, norms=targets, bound=stated_bound(1.0, torch.float32))
            .for_batches_of(50, torch.float32)
            .bound
        )


class Shared(torch.nn.Module):
    """Two layers with one weight, whose outputs are subtracted: large terms of which little is left."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(100, 100, bias=False), torch.nn.Linear(100, 100)
        self.other.weight = self.one.weight

    def forward(self, inputs: Tensor) -> Tensor:
        difference: Tensor = self.one(inputs[:, :100]) - self.other(inputs[:, 100:])
        return difference


@pytest.mark.parametrize("large", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_law_6_layers_that_share_a_weight_and_cancel_each_other(dtype: torch.dtype, large: float) -> None:
    torch.manual_seed(0)
    first = large * torch.randn(16, 100, dtype=dtype)
    inputs, targets = torch.cat([first, first + torch.randn(16, 100, dtype=dtype)], 1), torch.ones(16, dtype=dtype)
    prepared = prepare(Shared().to(dtype), lambda output, size: output[:, 0] * size)
    whole, fewer = prepared(inputs, targets, 1.0), prepared(inputs[1:], targets[1:], 1.0)
    moved = [whole.sums[name].double() - fewer.sums[name].double() for name in whole.sums]
    assert math.sqrt(sum(float(part.square().sum()) for part in moved)) <= whole.bound
    assert None not in prepared.recipes.values()


def test_law_6_one_record_that_uses_very_many_rows_of_a_table() -> None:
    prepared = prepare(torch.nn.Embedding(20_000, 1), lambda output, size: output.flatten(1).sum(1) * size)
    alone = prepared(torch.arange(20_000)[None], torch.tensor([5.0]), 1.0)
    assert float(alone.sums["weight"].double().norm()) <= alone.bound


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize("more", [4, 5, 6, 1], ids=lambda more: f"{more} records more")
def test_law_6_units_whose_records_cancel_do_not_depend_on_the_size_of_others(more: int, averaged: bool) -> None:
    """One more unit, with no gradient at all, in front: others are grouped with it, or cut where they were not."""
    torch.manual_seed(0)
    shares = torch.tensor([1.0, 1 / 3, -0.7, 0.9, 0.0])
    gradient = shares[:, None] * 1e3 * torch.randn(9)
    gradient[4] = -gradient[:4].double().sum(0).float()
    inputs, targets = (1e3 * torch.randn(129)).repeat(64 * 5, 1), gradient.repeat(64, 1)
    layer = torch.nn.Linear(129, 9, bias=False)

    def weighted(output: Tensor, target: Tensor) -> Tensor:
        return (output * target).sum(1)

    def of(inputs: Tensor, targets: Tensor, sizes: list[int]) -> ClippedSum:
        cut = list(zip(inputs.split(40), targets.split(40), strict=True))
        return clipped_sum_of_units(layer, weighted, cut, sizes, clip=1.0, averaged=averaged)

    without = of(inputs, targets, [5] * 64)
    nothing = torch.zeros(more, 129), torch.zeros(more, 9)
    found = of(torch.cat([nothing[0], inputs]), torch.cat([nothing[1], targets]), [more, *[5] * 64])
    assert float((found.sums["weight"].double() - without.sums["weight"].double()).norm()) <= 1e-3


@pytest.mark.parametrize(("positions", "inwards"), [(1, 100_000), (2, 100_000)])
def test_law_6_gram_matrices_of_very_long_rows(positions: int, inwards: int) -> None:
    prepared = prepare(torch.nn.Linear(inwards, 4, bias=False), lambda output, size: output.sum((1, 2)) * size)
    alone = prepared(torch.full((1, positions, inwards), 0.9), torch.tensor([5.0]), 1.0)
    assert float(alone.sums["weight"].double().norm()) <= alone.bound


class TiedHead(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused, self.head = torch.nn.Linear(400, 400, bias=False), torch.nn.Linear(400, 400)
        self.head.weight = self.unused.weight

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(inputs)
        return outputs


@pytest.mark.parametrize("seed", [1, 4, 7])
@pytest.mark.parametrize("records", [1, 3])
def test_law_6_a_bias_whose_terms_cancel_per_layer(records: int, seed: int) -> None:
    torch.manual_seed(seed)
    terms = 1e7 * torch.randn(records, 64)
    terms[:, -1] = -terms[:, :-1].double().sum(1).float()
    prepared = prepare(TiedHead(), lambda output, target: (output[:, :, 0] * target).sum(1))
    clipping = PerLayer(layers={"unused": 1.0, "head": 1.0})
    whole = prepared(torch.zeros(records, 64, 400), terms, 1.0, clipping)
    fewer = prepared(torch.zeros(records - 1, 64, 400), terms[1:], 1.0, clipping)
    moved = {name: whole.sums[name].double() - fewer.sums[name].double() for name in whole.sums}
    assert sum(float((part / whole.scale(name)).square().sum()) for name, part in moved.items()) <= 1
