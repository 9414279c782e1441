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

from apportion.errors import IncompatibleModel, InvalidArgument, RunError
from apportion.training.clipping import as_rows
from apportion.training.gradients.blocks import weighted_rows
from apportion.training.gradients.chain import HOOKS
from apportion.training.gradients.per_example import HELD, vectorised
from apportion.training.gradients.pieces import Part, row_norms, zeroed
from apportion.training.gradients.proving import ATTEMPTS, NotFinite, agree, random_examples, tolerance, values_near
from apportion.training.gradients.registry import wide
from apportion.training.losses import PerExampleLoss

Function = Callable[[torch.nn.Module, dict[str, Tensor], Tensor, Tensor], tuple[Tensor, Tensor]]
MULTIPLE = 16  # of which there are so many rows: full vectors


def rows_for(batch: float, parameters: Mapping[str, Tensor]) -> int:
    """How many rows to compile for where batches have about `batch` examples, of a model with these parameters."""
    wanted = -(-max(1, round(batch)) // MULTIPLE) * MULTIPLE
    return min(wanted, max(1, HELD // max(1, sum(parameter.numel() for parameter in parameters.values()))))


class Compiled:
    """Compiles once for every kind of batch, which `key` tells; what it makes is tried on random examples before."""

    def __init__(self, parameters: Mapping[str, Tensor], rows: int) -> None:
        if not hasattr(torch.compiler, "set_stance"):
            raise InvalidArgument("compile=True needs PyTorch 2.6 or later")
        self.rows = rows
        self._parameters = parameters
        self._parts = tuple([Part(name, parameter.shape) for name, parameter in parameters.items()])
        self._functions: dict[Hashable, Function] = {}

    def pieces(
        self, key: Hashable, model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor
    ) -> Iterator["OneMatrix"]:
        """One for each portion of the batch."""
        key = key, _hooks(model)
        values = {name: parameter.detach() for name, parameter in self._parameters.items()}
        for start in range(0, inputs.shape[0], self.rows):
            some = slice(start, start + self.rows)
            filled = self._filled_up(inputs[some]), self._filled_up(targets[some])
            yield OneMatrix(self._parts, self._gradients(key, model, loss, values, *filled)[: len(inputs[some])])

    def _gradients(
        self,
        key: Hashable,
        model: torch.nn.Module,
        loss: PerExampleLoss,
        values: dict[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
    ) -> Tensor:
        """Nothing is compiled here, on private data: only what was proved is run."""
        if key in self._functions:
            try:
                return _run(self._functions[key], model, values, inputs, targets)
            except RuntimeError:
                del self._functions[key]  # if the model has changed since, it is compiled and proved again
        self._functions[key] = self._proved(model, loss, inputs, targets)
        try:
            return _run(self._functions[key], model, values, inputs, targets)
        except RuntimeError as error:
            raise RunError(
                "compile=True: the compiled gradients fail on these records; a label or token out of range may be why"
            ) from error

    def _filled_up(self, tensor: Tensor) -> Tensor:
        """`rows` rows, in memory of their own that is always laid out alike: strides are compiled in, too."""
        filled = tensor.new_empty((self.rows, *tensor.shape[1:]))
        filled[: len(tensor)] = tensor
        filled[len(tensor) :] = tensor[:1]
        return filled

    def _proved(self, model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor) -> Function:
        """Of the given examples only shapes and types are used."""
        function = _compiled(loss)
        for kind in ATTEMPTS:
            values = {name: value.detach() for name, value in values_near(model, moved=kind.moved).items()}
            x, y = random_examples(inputs, targets, normal=kind.normal, count=self.rows)
            try:
                with torch.no_grad(), torch.random.fork_rng(), _quietly():
                    found = OneMatrix(self._parts, function(model, values, x, y)[0])
                    gradients, losses = vectorised(model, loss)(values, x, y)
            except Exception as error:
                first = next(iter(str(error).strip().splitlines()), "")
                raise IncompatibleModel(
                    [f"compile=True: PyTorch cannot compile this model with its loss ({type(error).__name__}: {first})"]
                ) from error
            expected = {name: gradient.double() for name, gradient in gradients.items()}
            own = {part.name: rows for part, rows in found.instantiate(torch.arange(self.rows)).items()}
            try:
                if agree(expected, own, tolerance([*values.values(), losses], inputs.device)):
                    return function
            except NotFinite:
                continue
            reason = (
                "compiled, the model has other gradients than by itself; if it draws random numbers, as dropout does, it "
                "cannot be compiled"
            )
            raise IncompatibleModel([f"compile=True: {reason}"])
        raise IncompatibleModel(["compile=True: on random data the model has no finite gradients to compare with"])


def _run(
    function: Function, model: torch.nn.Module, values: dict[str, Tensor], inputs: Tensor, targets: Tensor
) -> Tensor:
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
        return function(model, values, inputs, targets)[0]


def _hooks(model: torch.nn.Module) -> tuple[int, ...]:
    """What distinguishes the hooks of its modules from any others: compiled code does not look whether they changed."""
    return tuple([number for module in model.modules() for hooks in HOOKS for number in vars(module)[hooks]])


class OneMatrix:
    """All parameters' gradients as one matrix: (examples, entries of all parts, one part after the other)."""

    def __init__(self, parts: tuple[Part, ...], rows: Tensor) -> None:
        self.parts, self._rows = parts, rows

    def __len__(self) -> int:
        return len(self._rows)

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
        return {
            part: some.reshape((*some.shape[:-1], *part.shape)) for part, some in zip(self.parts, split, strict=True)
        }


def _compiled(loss: PerExampleLoss) -> Function:
    def one_matrix(
        model: torch.nn.Module, values: dict[str, Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        gradients, losses = vectorised(model, loss)(values, inputs, targets)
        # The losses too: what nobody asks for is not computed, nor are labels out of range found that way.
        return torch.cat([wide(as_rows(gradients[name])) for name in values], dim=1), losses

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
