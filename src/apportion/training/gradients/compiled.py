"""Per-example gradients by one function that `torch.compile` makes of model and loss, for small models.

Where layers are small, a step is mostly calls, and a compiled function is one. It builds every example's gradient, so for
large models it is slow; and compiling takes some seconds, and a C++ compiler.

It always gets the same number of rows, `rows`, which is public: smaller batches are filled up with rows that are then left
out, larger ones come in portions. So how many examples a batch has, which may be private, can neither be read off the
generated code, which PyTorch keeps on disk, nor compile anything anew.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType

import torch
from torch import Tensor

from apportion.errors import IncompatibleModel
from apportion.training.clipping import as_rows
from apportion.training.gradients.blocks import weighted_rows
from apportion.training.gradients.per_example import HELD, vectorised
from apportion.training.gradients.pieces import Part, row_norms, zeroed
from apportion.training.gradients.proving import ATTEMPTS, NotFinite, agree, random_examples, tolerance, values_near
from apportion.training.gradients.registry import wide
from apportion.training.losses import PerExampleLoss

Function = Callable[[torch.nn.Module, dict[str, Tensor], Tensor, Tensor], Tensor]
MULTIPLE = 16  # of which there are so many rows: full vectors


def rows_for(batch: float, parameters: Mapping[str, Tensor]) -> int:
    """How many rows to compile for where batches have about `batch` examples, of a model with these parameters."""
    wanted = -(-max(1, round(batch)) // MULTIPLE) * MULTIPLE
    return min(wanted, max(1, HELD // max(1, sum(parameter.numel() for parameter in parameters.values()))))


class Compiled:
    """Compiles once for every kind of batch, which `key` tells; what it makes is tried on random examples before."""

    def __init__(self, parameters: Mapping[str, Tensor], rows: int) -> None:
        self.rows = rows
        self._parameters = parameters
        self._parts = tuple([Part(name, parameter.shape) for name, parameter in parameters.items()])
        self._functions: dict[Hashable, Function] = {}

    def pieces(
        self, key: Hashable, model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor
    ) -> Iterator[tuple["OneMatrix", int]]:
        """One for each portion of the batch, and how many examples that has."""
        if key not in self._functions:
            self._functions[key] = self._proved(model, loss, inputs, targets)
        function, values = self._functions[key], {name: p.detach() for name, p in self._parameters.items()}
        for start in range(0, inputs.shape[0], self.rows):
            some = slice(start, start + self.rows)
            examples = inputs[some].shape[0]
            with torch.no_grad():
                gradients = function(model, values, self._filled_up(inputs[some]), self._filled_up(targets[some]))
            yield OneMatrix(self._parts, gradients[:examples]), examples

    def _filled_up(self, tensor: Tensor) -> Tensor:
        if tensor.shape[0] == self.rows:
            return tensor
        return tensor[torch.arange(self.rows, device=tensor.device) % tensor.shape[0]]

    def _proved(self, model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor) -> Function:
        """Of the given examples only shapes and types are used."""
        function = _compiled(loss)
        for kind in ATTEMPTS:
            values = {name: value.detach() for name, value in values_near(model, moved=kind.moved).items()}
            x, y = random_examples(inputs, targets, normal=kind.normal, count=self.rows)
            try:
                with torch.no_grad(), torch.random.fork_rng(), _quietly():
                    found = function(model, values, x, y).double()
                    expected = {name: g.double() for name, g in vectorised(model, loss)(values, x, y).items()}
            except Exception as error:
                first = next(iter(str(error).strip().splitlines()), "")
                raise IncompatibleModel(
                    [f"compile=True: PyTorch cannot compile this model with its loss ({type(error).__name__}: {first})"]
                ) from error
            split = found.split_with_sizes([part.shape.numel() for part in self._parts], dim=1)
            own = {part.name: rows.reshape(-1, *part.shape) for part, rows in zip(self._parts, split, strict=True)}
            try:
                if agree(expected, own, tolerance(values.values(), inputs.device)):
                    return function
            except NotFinite:
                continue
            reason = (
                "compiled, the model has other gradients than by itself; if it draws random numbers, as dropout does, it "
                "cannot be compiled"
            )
            raise IncompatibleModel([f"compile=True: {reason}"])
        raise IncompatibleModel(["compile=True: on random data the model has no finite gradients to compare with"])


class OneMatrix:
    """All parameters' gradients as one matrix: (examples, entries of all parts, one part after the other)."""

    def __init__(self, parts: tuple[Part, ...], rows: Tensor) -> None:
        self.parts, self._rows = parts, rows

    @property
    def dtype(self) -> torch.dtype:
        return self._rows.dtype

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        return [row_norms(self._rows)], None

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        return self._apart(weighted_rows(factors, zeroed(self._rows, dropped)))

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return self._apart(self._rows[rows].double())

    def _apart(self, entries: Tensor) -> dict[Part, Tensor]:
        split = entries.split_with_sizes([part.shape.numel() for part in self.parts], dim=-1)
        return {part: some.reshape(*some.shape[:-1], *part.shape) for part, some in zip(self.parts, split, strict=True)}


def _compiled(loss: PerExampleLoss) -> Function:
    def one_matrix(model: torch.nn.Module, values: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        gradients = vectorised(model, loss)(values, inputs, targets)
        return torch.cat([wide(as_rows(gradients[name])) for name in values], dim=1)

    # PyTorch keeps what it compiled with the code object, a few for each; so every model gets one of its own.
    own = FunctionType(one_matrix.__code__.replace(), globals(), "one_matrix", None, one_matrix.__closure__)
    made: Function = torch.compile(own, fullgraph=True, dynamic=False)
    return made


@contextmanager
def _quietly() -> Iterator[None]:
    """What PyTorch warns about while it compiles is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
