"""Private records as training reads them: an epoch's batches, one after the other, each in parts that fit in memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.errors import DataError

Indices = NDArray[np.int64]
Part = tuple[Tensor, Tensor]  # inputs and targets of some records, on the model's device and in its precision


class Records(ABC):
    """Sensitive throughout, except `like`.

    An epoch asks for its batches once and in order. A batch is an iterable of parts of at most `at_once` records, at
    least one; an empty batch is one empty part. Parts are read when they are asked for, and perhaps only once.

    `keeps_order` promises that a batch's records come in the order of its indices: only then is it known whose each is.
    """

    keeps_order: ClassVar[bool] = False

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def like(self) -> Part:
        """No records at all, in the shape and type of all: what start-up checks may look at."""

    def labels(self) -> Tensor | None:
        """All targets, where they are cheap to get; they are checked before anything is spent."""
        return None

    @abstractmethod
    def epoch(self, batches: Iterable[Indices], at_once: int | None) -> Iterator[Iterable[Part]]: ...

    @abstractmethod
    def in_order(self, at_once: int) -> Iterator[Part]:
        """All records, from the first to the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """How a batch's records make up its units: `sizes` consecutive ones each, their gradients averaged or added up."""

    sizes: Indices
    averaged: bool

    def none(self) -> "Units":
        return Units(sizes=self.sizes[:0], averaged=self.averaged)


class Place:
    """Where a model computes: brings parts to its device and floating-point numbers to its precision."""

    def __init__(self, model: torch.nn.Module) -> None:
        parameter = next(model.parameters(), torch.empty(0))
        self._device, self._dtype = parameter.device, parameter.dtype

    def tensor(self, values: Tensor) -> Tensor:
        return values.detach().to(self._device, self._dtype if values.is_floating_point() else values.dtype)

    def part(self, part: Part) -> Part:
        return self.tensor(part[0]), self.tensor(part[1])


def require_one_length(inputs: Sequence[int], targets: Sequence[int]) -> None:
    """Of the shapes of all inputs and all targets."""
    if not inputs or not targets or inputs[0] != targets[0]:
        raise DataError(
            f"inputs and targets must have one entry per record, got shapes {tuple(inputs)} and {tuple(targets)}"
        )


@dataclass(frozen=True, slots=True)
class Gathered:
    """A batch that can be read at any time, a part after the other, as often as one likes."""

    read: Callable[[Indices], Part]
    indices: Indices
    at_once: int | None

    def __iter__(self) -> Iterator[Part]:
        for rows in pieces(len(self.indices), self.at_once):
            yield self.read(self.indices[rows])


def pieces(length: int, at_once: int | None) -> Iterator[slice]:
    """Slices that cover 0 … length − 1, at least one."""
    size = max(1, length) if at_once is None else at_once
    yield from (slice(start, start + size) for start in range(0, max(1, length), size))


def joined(parts: Iterable[Part]) -> Part:
    inputs, targets = zip(*parts, strict=True)
    return torch.cat(inputs), torch.cat(targets)
