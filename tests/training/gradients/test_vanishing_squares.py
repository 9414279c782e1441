"""A tiny factor times an enormous one is an ordinary gradient, though the square of the tiny one vanishes."""

import pytest
import torch
from torch import Tensor, nn

from apportion.training.gradients import clipped_sum

SIZES = {torch.float32: (1e-23, 1e18, 1e-6), torch.float64: (1e-165, 1e152, 1e-14)}  # and a clipping norm


def times_target(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs * targets).flatten(1).sum(1)  # the gradient at the outputs is the target


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(300,), (5, 300), (70, 300)], ids=["vector", "built", "gram"])
@pytest.mark.parametrize("dtype", SIZES, ids=str)
@pytest.mark.parametrize("swapped", [False, True], ids=["tiny-input", "tiny-gradient"])
def test_one_example_adds_at_most_the_bound(
    bias: bool, shape: tuple[int, ...], dtype: torch.dtype, swapped: bool
) -> None:
    tiny, enormous, clip = SIZES[dtype]
    of_input, of_gradient = (enormous, tiny) if swapped else (tiny, enormous)
    model = nn.Linear(300, 200, bias=bias).to(dtype)
    inputs = torch.full((3, *shape), of_input, dtype=dtype)
    targets = torch.full((3, *shape[:-1], 200), of_gradient, dtype=dtype)
    found = clipped_sum(model, times_target, inputs[:1], targets[:1], clip=clip)
    length = sum(float(total.double().square().sum()) for total in found.sums.values()) ** 0.5
    assert length <= found.bound
    assert float(found.norms[0]) > clip, "the gradient is not short"
