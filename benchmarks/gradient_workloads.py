"""What the gradient benchmark trains: five workloads that the rules were made for, three that nobody tuned for.

Needs PyTorch only, so that every engine's own environment can import it.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    """`small` is a model of the same kinds of layers, and its inputs: enough to load what libraries load at first use."""

    what: str
    batch: int
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    classes: int
    small: "tuple[Callable[[], nn.Module], Callable[[int], Tensor]]"

    def data(self, batches: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        count = self.batch * batches
        return self.inputs(count), torch.randint(0, self.classes, (count,))

    def shrunk(self) -> "Workload":
        model, inputs = self.small
        return replace(self, batch=2, model=model, inputs=inputs, classes=2)


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inwards, outwards in itertools.pairwise(sizes):
        layers += [nn.Linear(inwards, outwards), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, 3), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)),
    )


class Transformer(nn.Module):
    def __init__(self, words: int = 5000, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(ids)).mean(1))


class Block(nn.Module):
    def __init__(self, inwards: int, outwards: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inwards, outwards, 3, stride, 1, bias=False), nn.GroupNorm(8, outwards), nn.ReLU()),
            *(nn.Conv2d(outwards, outwards, 3, 1, 1, bias=False), nn.GroupNorm(8, outwards)),
        )
        same = stride == 1 and inwards == outwards
        self.short = nn.Identity() if same else nn.Conv2d(inwards, outwards, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.short(images))


def residual_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.GroupNorm(8, 32), nn.ReLU()),
        *(Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


class Recommender(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 16) for size in sizes])
        self.top = mlp(48, 64, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], dim=1))


def normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape)


def whole(below: int, *shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randint(0, below, (count, *shape))


SMALL_MLP = (lambda: mlp(3, 4, 2)), normal(3)
SMALL_CNN = small_cnn, normal(1, 28, 28)
SMALL_TRANSFORMER = (lambda: Transformer(10, 8)), whole(10, 3)
SMALL_RECOMMENDER = (lambda: Recommender(5, 5, 5)), whole(5, 3)
SMALL_RESIDUAL_CNN = (lambda: nn.Sequential(Block(8, 8, 1), nn.Flatten(), nn.Linear(128, 2))), normal(8, 4, 4)

WORKLOADS = {
    "W1": Workload("MLP 60-1000-10", 600, lambda: mlp(60, 1000, 10), normal(60), 10, SMALL_MLP),
    "W2": Workload("MLP 9-10-20-10-2", 560, lambda: mlp(9, 10, 20, 10, 2), normal(9), 2, SMALL_MLP),
    "W3": Workload("CNN 28x28", 512, small_cnn, normal(1, 28, 28), 10, SMALL_CNN),
    "W4a": Workload("linear 1280-1000-10", 200, lambda: mlp(1280, 1000, 10), normal(1280), 10, SMALL_MLP),
    "W4b": Workload("linear 1280-1000-10", 2000, lambda: mlp(1280, 1000, 10), normal(1280), 10, SMALL_MLP),
    "W5": Workload("transformer", 64, Transformer, whole(5000, 64), 2, SMALL_TRANSFORMER),
    "U1": Workload("residual CNN, GroupNorm", 64, residual_cnn, normal(3, 32, 32), 10, SMALL_RESIDUAL_CNN),
    "U2": Workload(
        "recommender, large tables",
        1024,
        lambda: Recommender(50_000, 10_000, 1_000),
        whole(1000, 3),
        2,
        SMALL_RECOMMENDER,
    ),
    "U3": Workload("deep narrow MLP, 20 x 64", 256, lambda: mlp(32, *[64] * 20, 10), normal(32), 10, SMALL_MLP),
}
