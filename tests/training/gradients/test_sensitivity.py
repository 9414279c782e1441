"""Law 6: one example moves the clipped sum by at most the clipping norm, whatever the example."""

import pytest
import torch
from loop_comparison import assert_bounded, flat, used_rules
from test_rules import Attends, Recurrent, Scale, Words
from torch import nn

from apportion.training.gradients import prepare


def linear_loss(outputs, targets):
    """Gradients at the output do not depend on the output, so huge inputs make huge gradients and nothing else."""
    flat = outputs.flatten(1)
    return (flat * torch.linspace(-1, 1.5, flat.shape[1], dtype=flat.dtype)).sum(1) * targets


MODELS = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "deep": (lambda: nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 5)), (6,)),
    "sequence, built": (lambda: nn.Linear(6, 5), (7, 6)),
    "sequence, Gram": (lambda: nn.Linear(30, 40), (3, 30)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 6, 6)),
    "convolution, Gram": (lambda: nn.Conv2d(24, 40, 3), (24, 4, 4)),
    "convolution by slices": (lambda: nn.Conv2d(16, 4, 3, padding=1), (16, 17, 17)),
    "groups": (lambda: nn.Conv2d(4, 4, 3, groups=2), (4, 5, 5)),
    "one dimension": (lambda: nn.Conv1d(3, 4, 2, padding=1, padding_mode="circular"), (3, 7)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), (4, 6)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(6, 6), nn.RMSNorm(6)), (4, 6)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), (2, 6, 6)),
    "instance norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True)), (2, 6, 6)),
    "attention": (lambda: Attends(), (5, 8)),
    "cross attention": (lambda: Attends(cross=True), (5, 8)),
    "recurrent": (lambda: Recurrent(nn.GRU, True), (4, 3)),
    "raw parameter": (lambda: nn.Sequential(Scale(6, 0), nn.Linear(6, 3)), (6,)),
    "whole model": (lambda: Scale(6, 0), (6,)),
}


def changes(dtype):
    huge = 1e25 if dtype == torch.float32 else 1e200
    largest = torch.finfo(dtype).max
    return [
        torch.zeros_like,
        lambda x: x * huge,
        lambda x: torch.full_like(x, largest),
        lambda x: x * 1e-30,
        lambda x: torch.full_like(x, torch.nan),
        lambda x: torch.full_like(x, torch.inf),
        lambda x: x.clone().index_fill_(0, torch.tensor([0]), -torch.inf),
        lambda x: torch.ones_like(x),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("kind", MODELS)
def test_one_example_moves_the_sum_by_at_most_the_clipping_norm(kind, dtype, clip):
    torch.manual_seed(1)
    make, shape = MODELS[kind]
    prepared = prepare(make().to(dtype), linear_loss)
    inputs, targets = torch.randn(9, *shape, dtype=dtype), torch.rand(9, dtype=dtype) + 0.5
    inputs[3] = inputs[4]
    assert_bounded(prepared, inputs, targets, clip, changes(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_embedding_with_huge_and_nan_losses(dtype):
    torch.manual_seed(1)
    prepared = prepare(Words(0).to(dtype), linear_loss)
    ids, targets = torch.randint(0, 11, (9, 5)), torch.rand(9, dtype=dtype)
    prepared(ids, targets, 1.0)
    assert used_rules(prepared)
    rest = flat(prepared(ids[1:], targets[1:], 1.0).sums)
    for value in (0.0, 1e30, torch.nan, torch.inf, -torch.inf, 1e-30):
        changed = targets.clone()
        changed[0] = value
        moved = flat(prepared(ids, changed, 1.0).sums) - rest
        assert moved.norm() <= 1 + (1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e38])
def test_a_bad_example_changes_nothing_for_the_others(bad):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 50), nn.Tanh(), nn.Linear(50, 3))
    inputs, targets = torch.randn(12, 1, 8, 8), torch.rand(12) + 1
    prepared = prepare(model, linear_loss)
    expected = prepared(inputs[:-1], targets[:-1], 0.1)
    inputs[-1] = bad
    result = prepared(inputs, targets, 0.1)
    assert torch.allclose(result.norms[:-1], expected.norms, rtol=1e-6)
    moved = flat(result.sums) - flat(expected.sums)
    assert moved.norm() <= (0.1 * (1 + 1e-5) if bad == 1e38 else 1e-6)


@pytest.mark.parametrize("copies", [600, 2000])
@pytest.mark.parametrize(
    "kind", ["linear", "deep", "wide", "sparse", "sequence, built", "sequence, Gram", "convolution"]
)
def test_many_aligned_duplicates_do_not_round_over_the_bound(kind, copies):
    """All examples the same and clipped: the sum is as long as it can be, and so is its rounding."""
    torch.manual_seed(3)
    extra = {
        "wide": (lambda: nn.Sequential(nn.Linear(60, 1000), nn.Tanh(), nn.Linear(1000, 10)), (60,)),
        "sparse": (lambda: nn.Linear(300, 300), (300,)),
    }
    make, shape = (MODELS | extra)[kind]
    prepared = prepare(make(), linear_loss)
    one = torch.randn(1, *shape)
    if kind == "sparse":
        one[:, 1:] = 0
    inputs, targets = one.expand(copies, *shape).clone(), torch.ones(copies)
    clip = 0.3337
    base = flat(prepared(inputs, targets, clip).sums)
    for count in (copies - 1, copies - 2):
        fewer = flat(prepared(inputs[:count], targets[:count], clip).sums)
        assert (base - fewer).norm() <= (copies - count) * clip * (1 + 1e-5)
        base = fewer
    without = targets.clone()
    without[copies // 2] = 0
    moved = flat(prepared(inputs, without, clip).sums) - flat(prepared(inputs, targets, clip).sums)
    assert moved.norm() <= clip * (1 + 1e-5)


def test_gradients_that_cancel_over_a_sequence_are_clipped_by_their_true_norm():
    """Gram matrices in float32 see only rounding here; the example must take the careful way."""
    torch.manual_seed(4)
    model = nn.Linear(30, 40, bias=False)
    weights = torch.tensor([1.0, -1.0, 1e-4])[None, :, None]
    prepared = prepare(model, lambda outputs, targets: (outputs * weights * targets[:, None, None]).sum((1, 2)))
    inputs = torch.randn(9, 1, 30).expand(9, 3, 30).clone()
    targets = torch.full((9,), 1e4)
    result = prepared(inputs, targets, 1e-2)
    fewer = prepared(inputs[1:], targets[1:], 1e-2)
    assert used_rules(prepared)
    moved = flat(result.sums) - flat(fewer.sums)
    assert 0.99e-2 <= moved.norm() <= 1e-2 * (1 + 1e-5)
