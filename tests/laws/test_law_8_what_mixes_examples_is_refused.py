"""Law 8, and the start-up self-test: what mixes examples, or by-passes the private path, is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import sgd, tiny_data, tiny_model, tiny_plan
from torch import nn

from apportion.errors import IncompatibleModel
from apportion.training import Run, fit, step
from apportion.training.noise import PrivateGradient


def start(out: Path, model: Any = None, **changes: Any) -> Run:
    values = {"optimizer": sgd, "loss": nn.functional.cross_entropy, "out": out}
    return Run(model or tiny_model(), tiny_data(), tiny_plan(), **(values | changes))


class Forward(nn.Sequential):
    """A tiny model with something in its forward pass."""

    def __init__(self, before: Any) -> None:
        super().__init__(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        self.before = [before]  # in a list, so that it is no module of this one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.before[0](x))


class Mixup:
    def __init__(self, permutation: Any) -> None:
        self.permutation = permutation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return 0.999 * x + 0.001 * x[torch.as_tensor(self.permutation(len(x)))]


class Memory(nn.Module):
    """Batch statistics in a plain attribute, where no check of buffers sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.mean: Any = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x - self.mean)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return out


class SelfTraining(nn.Module):
    """A layer that updates itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x)
        if torch.is_grad_enabled():
            self.linear.weight.data.add_(1e-3)
        return out


class Untracked(nn.Module):
    """A layer in a list: torch does not see its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.layers = [nn.Linear(5, 2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](torch.tanh(self.first(x)))  # type: ignore[no-any-return]


class SharedMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = nn.Parameter(self.first.weight.data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


def contrastive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    normal = nn.functional.normalize(outputs, dim=1)
    return nn.functional.cross_entropy(normal @ normal.T, torch.arange(len(outputs)), reduction="none")


MIXING = {
    "batch norm in training mode": (
        nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)),
        "1 .BatchNorm1d",
    ),
    "batch norm without statistics": (
        nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)).eval(),
        "0 .BatchNorm1d",
    ),
    "mixup with torch's numbers": (Forward(Mixup(torch.randperm)), "another example's input"),
    "mixup with numpy's numbers": (
        Forward(Mixup(lambda count: np.random.permutation(count))),
        "another example's input",
    ),
    "own batch statistics": (Forward(lambda x: x - 1e-6 * x.mean(0)), "another example's input"),
    "memory of earlier batches": (Memory(), "remembers earlier batches|depends on another"),
    "numbers without a seed": (Forward(lambda x: x + np.random.default_rng().normal()), "same random seeds"),
}


@pytest.mark.parametrize("kind", MIXING)
def test_law_8_a_model_that_mixes_examples_is_refused(tmp_path: Path, kind: str) -> None:
    model, reason = MIXING[kind]
    with pytest.raises(IncompatibleModel, match=reason):
        start(tmp_path / "run", model)
    assert not (tmp_path / "run").exists()


def test_law_8_a_contrastive_loss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleModel, match="another example's input"):
        start(tmp_path / "run", loss=contrastive)


OUTSIDE = {
    "a layer that updates itself": (SelfTraining(), "linear.weight changes"),
    "a layer that torch does not see": (Untracked(), "layers .Untracked. of shape"),
    "shared memory": (SharedMemory(), "first.weight and second.weight share memory"),
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_self_test_refuses_a_layer_outside_the_private_path(tmp_path: Path, kind: str) -> None:
    model, reason = OUTSIDE[kind]
    with pytest.raises(IncompatibleModel, match=reason):
        start(tmp_path / "run", model)


def test_self_test_refuses_an_optimizer_over_other_parameters(tmp_path: Path) -> None:
    other = tiny_model()
    with pytest.raises(IncompatibleModel, match="not trainable parameters of this model"):
        start(tmp_path / "run", optimizer=lambda _: torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(IncompatibleModel, match=r"0\.bias is not in the optimizer"):
        start(tmp_path / "run", optimizer=lambda p: torch.optim.SGD(list(p)[:1], lr=0.1))


def forgetting_a_layer(*arguments: Any, **options: Any) -> Any:
    from apportion.training.gradients import clipped_sum

    found = clipped_sum(*arguments, **options)
    return type(found)(
        sums={name: 0 * total if name == "2.weight" else total for name, total in found.sums.items()},
        norms=found.norms, bound=found.bound,
    )  # fmt: skip


def forgetting_to_clip(model: Any, loss: Any, inputs: Any, targets: Any, *, clip: float, **options: Any) -> Any:
    from apportion.training.gradients import clipped_sum

    found = clipped_sum(model, loss, inputs, targets, clip=1e6, **options)
    return type(found)(sums=found.sums, norms=found.norms, bound=clip)


def forgetting_noise(clipped: Any, sigma: float, stream: Any, kind: Any = "float") -> PrivateGradient:
    from apportion.training.noise import add_noise

    noisy = add_noise(clipped, sigma, stream)
    return PrivateGradient(sums={**noisy.sums, "2.bias": clipped.sums["2.bias"]}, sigma=sigma)


def too_little_noise(clipped: Any, sigma: float, stream: Any, kind: Any = "float") -> PrivateGradient:
    from apportion.training.noise import add_noise

    return add_noise(clipped, sigma / 10, stream)


@pytest.mark.parametrize(
    ("name", "replacement", "reason"),
    [
        ("clipped_sum", forgetting_a_layer, r"2\.weight is not clipped"),
        ("clipped_sum", forgetting_to_clip, "is not clipped"),
        ("add_noise", forgetting_noise, r"2\.bias is not reached by noise"),
        ("add_noise", too_little_noise, "standard deviation"),
        ("assign", lambda *arguments, **options: None, "not reached by the private gradient"),
    ],
)
def test_self_test_catches_a_forgotten_hook(
    tmp_path: Path, monkeypatch: Any, name: str, replacement: Any, reason: str
) -> None:
    monkeypatch.setattr(step, name, replacement)
    with pytest.raises(IncompatibleModel, match=reason):
        start(tmp_path / "run")


class Normalised(nn.Module):
    """Much that is allowed: tied weights, dropout, group norm, an embedding-like frozen layer, BatchNorm pinned to eval."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm, self.pinned = nn.GroupNorm(2, 4), nn.BatchNorm1d(4).eval()
        self.dropout, self.last = nn.Dropout(0.5), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.pinned(self.norm(self.second(torch.tanh(self.first(self.frozen(x))))))
        return self.last(self.dropout(hidden))  # type: ignore[no-any-return]


def test_self_test_passes_what_is_allowed_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    model = Normalised()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    run = start(tmp_path / "run", model, optimizer=lambda p: torch.optim.Adam(p, lr=0.1))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert not run.optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())


def test_self_test_never_calls_a_users_own_step(tmp_path: Path) -> None:
    calls = []

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            calls.append(1)
            return super().step(closure)

    def make(parameters: Any) -> Any:
        optimizer = Own(parameters, lr=0.1)
        optimizer.register_step_post_hook(lambda *_: calls.append(2))
        return optimizer

    start(tmp_path / "run", optimizer=make)
    assert calls == []
    fit(
        tiny_model(), tiny_data(), tiny_plan(), loss=nn.functional.cross_entropy, optimizer=make,
        out=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert calls.count(1) == 6  # three batches in each of two epochs
