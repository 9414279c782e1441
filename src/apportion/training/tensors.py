"""The private data in memory: inputs and targets of one length, on the model's device and in its precision."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from apportion.errors import DataError
from apportion.training.records import Gathered, Indices, Part, Place, Records, pieces, require_one_length


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateData(Records):
    """Sensitive throughout."""

    keeps_order: ClassVar[bool] = True
    inputs: Tensor
    targets: Tensor

    @staticmethod
    def of(data: Any, model: torch.nn.Module) -> "PrivateData":
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise DataError(
                "data must be a pair (inputs, targets) of tensors or arrays, a map-style data set or a streamed table, got "
                f"{type(data).__name__}"
            )
        inputs, targets = Place(model).part((_tensor(data[0]), _tensor(data[1])))
        require_one_length(inputs.shape, targets.shape)
        return PrivateData(inputs=inputs, targets=targets)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def like(self) -> Part:
        return self.inputs[:0], self.targets[:0]

    def labels(self) -> Tensor:
        return self.targets

    def batch(self, indices: Indices) -> Part:
        chosen = torch.from_numpy(indices).to(self.inputs.device)
        return self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)  # quicker than by [chosen]

    def epoch(self, batches: Iterable[Indices], at_once: int | None) -> Iterator[Iterable[Part]]:
        for indices in batches:
            yield Gathered(self.batch, indices, at_once)

    def in_order(self, at_once: int) -> Iterator[Part]:
        for rows in pieces(len(self), at_once):
            yield self.inputs[rows], self.targets[rows]


def _tensor(part: Any) -> Tensor:
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"data must be tensors or numeric arrays: {error}") from error
