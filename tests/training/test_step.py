"""Laws of one step: clipping bounds every example, noise is fresh, an empty batch is an ordinary step."""

import math

import pytest
import torch
from conftest import tiny_data, tiny_model
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from apportion.errors import IncompatibleModel, InvalidArgument
from apportion.randomness import RandomStream
from apportion.training.clipping import ClippedSum, stated_bound
from apportion.training.gradients import clipped_sum, trainable
from apportion.training.noise import PrivateGradient, add_noise
from apportion.training.step import private_step, update

SPECIAL = {
    "normal": lambda x: x,
    "huge": lambda x: x * 1e18,
    "zero": lambda x: x * 0,
    "nan": lambda x: x * math.nan,
    "infinite": lambda x: x * math.inf,
}


def distance(first: ClippedSum, second: ClippedSum) -> float:
    return math.sqrt(sum(float(((first.sums[name] - second.sums[name]) ** 2).sum()) for name in first.sums))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("neighbour", ["removed", "zeroed"])
def test_neighbouring_batches_differ_by_at_most_the_bound(dtype: torch.dtype, kind: str, neighbour: str) -> None:
    model = tiny_model().to(dtype)
    x, y = tiny_data()
    x = x.to(dtype)
    for clip in (1e-3, 0.1, 10.0):
        special = torch.cat([SPECIAL[kind](x[:1]), x[1:]])
        with_it = clipped_sum(model, cross_entropy, special, y, clip=clip)
        # An example of NaNs adds nothing, so replacing by it zeroes a contribution without changing the batch's shape.
        others = (x[1:], y[1:]) if neighbour == "removed" else (torch.cat([x[:1] * math.nan, x[1:]]), y)
        without = clipped_sum(model, cross_entropy, *others, clip=clip)
        assert all(torch.isfinite(total).all() for total in with_it.sums.values())
        assert with_it.bound == stated_bound(clip, dtype)
        assert distance(with_it, without) <= with_it.bound
        if kind in ("nan", "infinite"):
            assert distance(with_it, without) <= 1e-3 * clip, "such an example adds nothing and does not spread"


def test_duplicates_move_the_sum_by_at_most_the_bound() -> None:
    model, (x, y) = tiny_model(), tiny_data()
    same_x, same_y = x[:1].expand(300, -1), y[:1].expand(300)
    more = clipped_sum(model, cross_entropy, same_x, same_y, clip=0.01)
    fewer = clipped_sum(model, cross_entropy, same_x[1:], same_y[1:], clip=0.01)
    assert distance(more, fewer) <= more.bound


def test_gradients_are_clipped_to_the_norm_and_norms_are_those_before_clipping() -> None:
    model, (x, y) = tiny_model(), tiny_data()
    for index in range(5):
        one = clipped_sum(model, cross_entropy, x[index : index + 1], y[index : index + 1], clip=0.05)
        length = math.sqrt(sum(float((total**2).sum()) for total in one.sums.values()))
        assert length == pytest.approx(min(0.05, float(one.norms[0])), rel=1e-5)
        model.zero_grad()
        cross_entropy(model(x[index : index + 1]), y[index : index + 1]).backward()
        by_autograd = math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters()))
        assert float(one.norms[0]) == pytest.approx(by_autograd, rel=1e-5)


def test_no_noise_and_a_huge_clip_is_ordinary_sgd() -> None:
    x, y = tiny_data()
    private, ordinary = tiny_model(), tiny_model()
    ordinary.load_state_dict(private.state_dict())
    first = torch.optim.SGD(private.parameters(), lr=0.3, momentum=0.9)
    second = torch.optim.SGD(ordinary.parameters(), lr=0.3, momentum=0.9)
    for start in range(0, 60, 20):
        batch_x, batch_y = x[start : start + 20], y[start : start + 20]
        clipped = clipped_sum(private, cross_entropy, batch_x, batch_y, clip=1e9)
        means = {name: total / 20 for name, total in clipped.sums.items()}
        update(private, first, PrivateGradient(sums=means, sigma=0.0))
        second.zero_grad()
        cross_entropy(ordinary(batch_x), batch_y).backward()
        second.step()
    for mine, theirs in zip(private.parameters(), ordinary.parameters(), strict=True):
        assert float((mine - theirs).detach().abs().max()) <= 1e-6


def test_an_empty_batch_is_a_step_of_pure_noise() -> None:
    torch.manual_seed(0)
    model, (x, y) = torch.nn.Linear(4, 5000), tiny_data()
    before = {name: p.detach().clone() for name, p in trainable(model).items()}
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    constants = {"clip": 0.5, "sigma": 3.0, "nominal_batch_size": 20.0, "stream": RandomStream()}
    private_step(model, cross_entropy, sgd, x[:0], y[:0], **constants)
    moved = torch.cat([(p.detach() - before[name]).flatten() for name, p in trainable(model).items()])
    assert float(moved.std()) == pytest.approx(3.0 * 0.5 / 20, rel=0.05)
    assert abs(float(moved.mean())) < 6.5 * 3.0 * 0.5 / 20 / math.sqrt(len(moved))


def test_noise_has_the_stated_scale_and_is_fresh() -> None:
    zero = ClippedSum(sums={"w": torch.zeros(200_000)}, norms=torch.zeros(0), bound=0.25)
    stream = RandomStream()
    first, second = (add_noise(zero, 4.0, stream).sums["w"] for _ in range(2))
    for drawn in (first, second):
        assert abs(float(drawn.std()) - 1.0) < 6.5 / math.sqrt(2 * 200_000)
    assert abs(float((first * second).mean())) < 6.5 / math.sqrt(200_000)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_noise_of_no_size_is_refused(sigma: float) -> None:
    zero = ClippedSum(sums={"w": torch.zeros(3)}, norms=torch.zeros(0), bound=1.0)
    with pytest.raises(InvalidArgument, match="sigma"):
        add_noise(zero, sigma, RandomStream())


def per_example_mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean(1)


@pytest.mark.parametrize("loss", [mse_loss, torch.nn.MSELoss(), per_example_mse], ids=["function", "module", "own"])
def test_losses_of_every_form_give_the_same_sum(loss: object) -> None:
    model, (x, _) = tiny_model(), tiny_data()
    targets = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    found = clipped_sum(model, loss, x, targets, clip=1.0)  # type: ignore[arg-type]
    expected = clipped_sum(model, per_example_mse, x, targets, clip=1.0)
    assert distance(found, expected) < 1e-5


def test_a_loss_that_averages_over_the_batch_is_refused() -> None:
    model, (x, y) = tiny_model(), tiny_data()
    with pytest.raises(IncompatibleModel, match="one value per example"):
        clipped_sum(model, lambda outputs, targets: cross_entropy(outputs, targets), x, y, clip=1.0)


def test_a_parameter_without_dimensions_is_clipped_with_the_others() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = torch.nn.Linear(3, 2), torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.scale * self.layer(inputs)

    model, inputs, targets = Scaled(), torch.randn(40, 3), torch.randint(0, 2, (40,))
    found = clipped_sum(model, cross_entropy, inputs, targets, clip=0.5)
    expected = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for number in range(len(inputs)):
        loss = cross_entropy(model(inputs[number : number + 1]), targets[number : number + 1])
        own = dict(zip(expected, torch.autograd.grad(loss, list(model.parameters())), strict=True))
        norm = torch.stack([gradient.norm() for gradient in own.values()]).norm()
        for name, gradient in own.items():
            expected[name] += gradient * min(1.0, 0.5 / float(norm))
    assert found.sums["scale"].shape == ()
    for name, total in expected.items():
        assert torch.allclose(found.sums[name].float(), total, atol=1e-4)
