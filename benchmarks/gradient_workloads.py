"""What the gradient benchmark trains: five workloads that the rules were made for, three that nobody tuned for.

Needs PyTorch only, so that every engine's own environment can import it.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    what: str
    batch: int
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    classes: int

    def data(self, batches: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        count = self.batch * batches
        return self.inputs(count), torch.randint(0, self.classes, (count,))


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
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 2)

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
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 16) for size in (50_000, 10_000, 1_000)])
        self.top = mlp(48, 64, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], dim=1))


def normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape)


WORKLOADS = {
    "W1": Workload("MLP 60-1000-10", 600, lambda: mlp(60, 1000, 10), normal(60), 10),
    "W2": Workload("MLP 9-10-20-10-2", 560, lambda: mlp(9, 10, 20, 10, 2), normal(9), 2),
    "W3": Workload("CNN 28x28", 512, small_cnn, normal(1, 28, 28), 10),
    "W4a": Workload("linear 1280-1000-10", 200, lambda: mlp(1280, 1000, 10), normal(1280), 10),
    "W4b": Workload("linear 1280-1000-10", 2000, lambda: mlp(1280, 1000, 10), normal(1280), 10),
    "W5": Workload("transformer", 64, Transformer, lambda count: torch.randint(0, 5000, (count, 64)), 2),
    "U1": Workload("residual CNN, GroupNorm", 64, residual_cnn, normal(3, 32, 32), 10),
    "U2": Workload("recommender, large tables", 1024, Recommender, lambda n: torch.randint(0, 1000, (n, 3)), 2),
    "U3": Workload("deep narrow MLP, 20 x 64", 256, lambda: mlp(32, *[64] * 20, 10), normal(32), 10),
}
