"""What mixes examples is refused, with the replacement named; what does not is left alone."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from apportion.errors import IncompatibleModel
from apportion.training.compatibility import check_model
from apportion.training.losses import per_example

X, Y = torch.zeros(10, 6), torch.zeros(10, dtype=torch.int64)


def check(model: nn.Module, loss: object = cross_entropy, x: Tensor = X, y: Tensor = Y) -> None:
    check_model(model, per_example(loss), x, y)  # type: ignore[arg-type]


class CentredOverTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - 1e-3 * x.mean(0))


class Mixup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(0.9 * x + 0.1 * x.roll(1, 0))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.sum()
        return self.linear(x)


class OwnPrecision(nn.Module):
    """Insists on float32 inside, so the float64 experiment fails and the one on the model itself must decide."""

    def __init__(self, mixing: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3))
        self.mixing = mixing

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype != torch.float32:
            raise TypeError("float32 only")
        return (x - x.mean(0) if self.mixing else x) @ self.weight


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.logsumexp(outputs @ outputs.T, 1)


def averaged(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none") / len(outputs)


@pytest.mark.parametrize(
    ("model", "loss", "reason"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), cross_entropy, "1 .BatchNorm1d.*GroupNorm"),
        (nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False).eval(), nn.Linear(6, 3)), cross_entropy, "GroupNorm"),
        (CentredOverTheBatch(), cross_entropy, "another example's input"),
        (Mixup(), cross_entropy, "another example's input"),
        (OwnPrecision(mixing=True), cross_entropy, "another example's input"),
        (Counting(), cross_entropy, "buffer seen"),
        (nn.Linear(6, 3), contrastive, "another example's input"),
        (nn.Linear(6, 3), averaged, "the size of the batch"),
        (nn.Linear(6, 3), lambda o, t: cross_entropy(o, t), "one value per example"),
        (nn.Linear(5, 3), cross_entropy, "fails on random data"),
        (nn.Linear(6, 3).requires_grad_(False), cross_entropy, "no trainable parameter"),
    ],
    ids=["batchnorm", "stateless batchnorm", "centred", "mixup", "own precision", "buffer", "contrastive", "averaged",
         "reduced", "shape", "frozen"],
)  # fmt: skip
def test_what_mixes_examples_is_refused(model: nn.Module, loss: object, reason: str) -> None:
    with pytest.raises(IncompatibleModel, match=reason):
        check(model, loss)


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(6, 3),
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)),
        nn.Sequential(nn.BatchNorm1d(6).eval(), nn.Linear(6, 3)),
        OwnPrecision(mixing=False),
    ],
    ids=["linear", "dropout", "groupnorm", "pinned batchnorm", "own precision"],
)
def test_what_does_not_mix_is_accepted_and_left_alone(model: nn.Module) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    check(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_token_inputs_and_float_targets_are_tried_with_their_own_types() -> None:
    tokens = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(4 * 7, 3))
    check(tokens, x=torch.zeros(10, 7, dtype=torch.int64))
    check(nn.Linear(6, 2), nn.MSELoss(), y=torch.zeros(10, 2))


class Counts(nn.Module):
    """Does something else from its hundredth pass on."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind, self.calls, self.seen, self.cached = nn.Linear(6, 3), kind, 0, [], None

    def forward(self, inputs: Tensor) -> Tensor:
        self.cached = 1 if self.kind == "cache" else None
        self.calls += self.kind == "number"
        self.seen += [None] * (self.kind == "list")
        outputs = self.layer(inputs)
        return outputs if self.calls + len(self.seen) < 100 else -outputs


@pytest.mark.parametrize(("kind", "attribute"), [("number", "calls"), ("list", "seen")])
def test_a_model_that_counts_its_passes_is_refused_because_their_number_is_private(kind: str, attribute: str) -> None:
    with pytest.raises(IncompatibleModel, match=f"^{attribute} changes in every forward pass"):
        check(Counts(kind))


def test_a_cache_that_is_filled_once_is_fine() -> None:
    check(Counts("cache"))
