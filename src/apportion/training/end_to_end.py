"""Tensors that stand one after the other in memory: a small model's sums, for which calls are what takes time."""

from collections.abc import Iterator, Mapping

from torch import Tensor
from torch._utils import _unflatten_dense_tensors

FEW = 1 << 17  # parameters of a small model


def are_few(tensors: Mapping[str, Tensor]) -> bool:
    return sum([tensor.numel() for tensor in tensors.values()]) <= FEW


class EndToEnd(Mapping[str, Tensor]):
    """Name → tensor of the shape that `like` has under this name, all of them consecutive views of the vector `whole`.

    In the processor's own memory.
    """

    __slots__ = ("_views", "like", "whole")

    def __init__(self, whole: Tensor, like: Mapping[str, Tensor]) -> None:
        self.whole, self.like = whole, like
        self._views: dict[str, Tensor] | None = None

    @property
    def views(self) -> dict[str, Tensor]:
        if self._views is None:
            # Several times quicker than as many calls of `view`.
            views = _unflatten_dense_tensors(self.whole, tuple(self.like.values()))  # type: ignore[no-untyped-call]
            self._views = dict(zip(self.like, views, strict=True))
        return self._views

    def __getitem__(self, name: str) -> Tensor:
        return self.views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.like)

    def __len__(self) -> int:
        return len(self.like)
