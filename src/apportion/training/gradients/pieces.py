"""The shapes in which a layer's per-example gradients come, and what can be done with them without building them.

A layer rule only says which shape its gradients have; the linear algebra is in the pieces, once. A piece gives

- `norms()`: the norm of each example's gradient, as norms of one or more parts of it, and a floor: an example whose
  norm over all pieces is below it cannot be trusted;
- `weighted(factors, dropped)`: the sum over examples of factor × gradient, leaving the dropped rows out;
- `instantiate(rows)`: the gradients of a few examples themselves, in float64, for the examples that need care.

Norms and sums agree to rounding in the layer's own precision: either both read the same built gradient, or the
gradient is a single outer product, whose norm is a product of norms, or where they might disagree both are float64, or the
floor tells. Pieces that share a parameter are made one (`summation.Together`) before anything is asked of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from apportion.training.gradients.blocks import weighted_rows

BLOCK = 512


@dataclass(frozen=True, slots=True)
class Part:
    """A trainable parameter under its canonical name, or the block of `length` of its rows that begins at `start`."""

    name: str
    shape: torch.Size
    start: int = 0
    length: int | None = None

    @property
    def stop(self) -> int:
        return self.start + (self.shape[0] if self.length is None else self.length)

    def overlaps(self, other: "Part") -> bool:
        if self.name != other.name:
            return False
        return self.length is None or other.length is None or (self.start < other.stop and other.start < self.stop)

    def rows(self, start: int, length: int) -> "Part":
        return Part(self.name, self.shape, start, length)

    def add_into(self, total: Tensor, block: Tensor, axis: int = 0) -> None:
        """Adds the block to the whole parameter's tensor, whose rows are on `axis`."""
        self.within(total, axis).add_(block)

    def within(self, total: Tensor, axis: int = 0) -> Tensor:
        return total if self.length is None else total.narrow(axis, self.start, self.length)


class Piece(Protocol):
    @property
    def parts(self) -> tuple[Part, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def norms(self) -> tuple[list[Tensor], Tensor | None]: ...
    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]: ...
    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]: ...


@runtime_checkable
class CanWiden(Protocol):
    def widen(self, rows: Tensor) -> None:
        """From now on norms and sums of these examples are taken in float64, and their floor is lower."""


class Instantiated:
    """Gradients small enough to build: part → (examples, *block shape)."""

    def __init__(self, gradients: Mapping[Part, Tensor]) -> None:
        self.gradients = gradients

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self.gradients)

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.gradients.values())).dtype

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        return [row_norms(rows) for rows in self.gradients.values()], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        return {part: weighted_rows(factors, zeroed(rows, dropped)) for part, rows in self.gradients.items()}

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return {part: gradients[rows].double() for part, gradients in self.gradients.items()}


def row_norms(rows: Tensor) -> Tensor:
    """(examples, …) → (examples,) L2 norms.

    `vector_norm` reads memory once, where square-and-sum reads it three times, but adds up one after the other: on a
    constant row of a million entries it is wrong by 4e-4. So long rows go in blocks, and the blocks' norms again.
    """
    flat = rows if rows.dim() == 2 else rows.reshape(len(rows), -1)
    width = flat.shape[1]
    if width <= 2 * BLOCK:
        norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
        return norms
    least = -(-width // (2 * BLOCK))
    count = next((count for count in range(least, 2 * least + 1) if width % count == 0), None)
    if count is not None:
        return row_norms(torch.linalg.vector_norm(flat.reshape(len(flat), count, -1), dim=2))
    even = width - width % BLOCK
    norms = row_norms(torch.linalg.vector_norm(flat[:, :even].reshape(len(flat), -1, BLOCK), dim=2))
    return norms if even == width else overall([norms, row_norms(flat[:, even:])]).to(norms.dtype)


def row_squares(rows: Tensor) -> Tensor:
    return row_norms(rows).square_()


def overall(norms: list[Tensor]) -> Tensor:
    """Norms of parts of a vector → norm of the vector, example by example, in float64."""
    if len(norms) == 1:
        return norms[0].double()
    if norms[0].device.type == "cpu":  # where NumPy's calls are quicker
        squares = np.square(norms[0].numpy(), dtype=np.float64)
        for other in norms[1:]:
            squares += np.square(other.numpy(), dtype=np.float64)
        return torch.from_numpy(np.sqrt(squares, out=squares))
    # `vector_norm` along the first axis is several times slower than this.
    return torch.stack(norms).double().square_().sum(0).sqrt_()


def zeroed(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """A copy in which these rows are zero: by replacement, because 0 × NaN is NaN."""
    return tensor if rows is None else tensor.index_fill(0, rows, 0)


def as_sequence(tensor: Tensor, examples: int, features: int) -> Tensor:
    """(…, features) with examples outermost → (examples, T, features): all an example did, as one sequence."""
    return tensor.reshape(examples, -1, features)


def in_chunks(rows: Tensor, size: int) -> list[Tensor]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
