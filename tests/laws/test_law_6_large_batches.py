"""Law 6 at large batches: without one record all that follow stand in other blocks of the sum, and roundings add up."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from apportion import PerLayer
from apportion.randomness import RandomStream
from apportion.training import step
from apportion.training.clipping import NO_SLACK_UP_TO, ClippedSum, slack_of_a_batch, stated_bound
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
    # n·u in all: 1e-5 of it is stated, 6e-6 are headroom
    assert few == pytest.approx(1 + 10_000 * 2.0**-24 - 6e-6, abs=1e-8)


@pytest.mark.parametrize(
    ("dtype", "records"), [(torch.float32, NO_SLACK_UP_TO), (torch.bfloat16, NO_SLACK_UP_TO), (torch.float64, 9000)]
)
def test_small_batches_need_no_more_than_the_stated_bound(dtype: torch.dtype, records: int) -> None:
    assert slack_of_a_batch(records, dtype) == 0 < slack_of_a_batch(2 * records, dtype)


def test_a_model_in_float64_is_charged_for_rounding_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    assert noised(monkeypatch, alternating(4).double(), 5000.0).bound == stated_bound(1.0, torch.float64)
