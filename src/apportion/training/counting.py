"""What is counted over private records and released: each record's result is its own, whoever else is there.

The same record in a batch gives results that differ in the last bits with its place there: kernels treat the end of a
batch, or rows at another address, in another order. Where an answer hangs on those bits, one record more or less moves
all that follow, and with them the answers of any number of records: a count would have no sensitivity to speak of.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from apportion.errors import InvalidArgument
from apportion.training.records import Part


def one_by_one(function: Callable[[Tensor], Tensor], parts: Iterable[Part]) -> Iterator[Part]:
    """`function` of each record, stacked, with the targets; what comes in no records comes out as nothing.

    Guarantees: every record goes through `function` alone, as a batch of one in one and the same piece of memory, without
    gradients. For a function without randomness or memory, such as a model in evaluation mode, its result depends on that
    record only, to the last bit: not on its place, nor on how many or which others there are.
    """
    buffer: Tensor | None = None
    for inputs, targets in parts:
        if not len(inputs):
            continue
        if buffer is None:
            buffer = torch.empty_like(inputs[:1], memory_format=torch.contiguous_format)
        yield _results(function, buffer, inputs), targets


@torch.no_grad()
def _results(function: Callable[[Tensor], Tensor], buffer: Tensor, inputs: Tensor) -> Tensor:
    found = []
    for number in range(len(inputs)):
        result = function(buffer.copy_(inputs[number : number + 1]))
        if result.dim() == 0 or len(result) != 1:
            raise InvalidArgument(f"one record must give one row of results, got the shape {tuple(result.shape)}")
        found.append(result.clone())  # it may be a view of the buffer
    return torch.cat(found)


def right_answers(model: torch.nn.Module, parts: Iterable[Part]) -> int:
    """How many records have their own class as the highest score, in evaluation mode; the model's modes are restored.

    Guarantees: one record more adds 0 or 1, whatever it holds: scores that are not finite count as wrong.
    """
    right = 0
    with evaluating(model):
        for scores, targets in one_by_one(model, parts):
            if targets.is_floating_point() or targets.dim() != 1:
                raise InvalidArgument("right answers are counted: targets must be class numbers")
            if scores.dim() != 2:
                raise InvalidArgument(
                    f"right answers need one row of class scores per record, got {scores.dim()}-d scores"
                )
            right += int(((scores.argmax(1) == targets) & torch.isfinite(scores).all(1)).sum())
    return right


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """In evaluation mode inside; every module has its own mode again afterwards, whatever happens."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
