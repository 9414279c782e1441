"""Any layer with parameters, by itself: its forward pass done again for each example, vectorised, and pulled back.

Right for every layer that computes the same again from the same inputs; one that draws random numbers does not, which
the comparison with autograd at the start finds out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from apportion.training.gradients.blocks import weighted_rows
from apportion.training.gradients.per_example import slow_is_known
from apportion.training.gradients.pieces import Part, Piece, in_chunks, overall, row_norms, zeroed
from apportion.training.gradients.recording import Forward, Recorder, Site, edge_of
from apportion.training.gradients.registry import RuleDoesNotApply, wide

# At most this many numbers of per-example gradients are held; beyond, they are computed twice, a few examples at a time.
HELD = 2**24


@dataclass(frozen=True, slots=True)
class AnyLayout:
    """The axis of the examples in each tensor that goes in and comes out; None for what is not per example."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class AnyLayerCall:
    label: str
    inputs: tuple[Any, ...]
    structure: TreeSpec
    versions: tuple[int, ...]
    edges: tuple[GradientEdge, ...]
    outputs: tuple[Tensor, ...]
    layout: AnyLayout

    @property
    def noted(self) -> tuple[Tensor, ...]:
        return tuple([value for value in self.inputs if isinstance(value, Tensor)])

    def pieces(self, site: Site, gradients: Sequence[Tensor | None], examples: int) -> list[Piece]:
        if tuple(tensor._version for tensor in self.noted) != self.versions:
            raise RuleDoesNotApply(f"an input of {self.label!r} was modified in place after the layer used it")
        filled = [
            torch.zeros_like(output) if gradient is None else gradient
            for output, gradient in zip(self.outputs, gradients, strict=True)
        ]
        self._check_shapes(examples, filled)
        return [Recomputed(self, site, filled, examples)]

    def _check_shapes(self, examples: int, gradients: Sequence[Tensor]) -> None:
        places = [*zip(self.inputs, self.layout.inputs, strict=True), *zip(gradients, self.layout.outputs, strict=True)]
        if any(axis is not None and value.shape[axis] != examples for value, axis in places):
            raise RuleDoesNotApply(f"{self.label!r} has the examples in another place than before")


def noting_any_layer(recorder: Recorder, site: str, layer: torch.nn.Module, forward: Forward) -> Forward:
    def noting(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        if not torch.is_grad_enabled():
            return result
        inputs, structure = tree_flatten((args, kwargs))
        outputs, output_structure = tree_flatten(result)
        outputs = [recorder.traced(site, output, output) if _has_gradient(output) else output for output in outputs]
        traced = [output for output in outputs if _has_gradient(output)]
        layout = (
            recorder.learn(site, _infer(inputs, traced, recorder.examples))
            if recorder.learning
            else recorder.learnt(site)
        )
        if recorder.recording:
            kept = tuple(value.detach() if isinstance(value, Tensor) else value for value in inputs)
            versions = tuple(value._version for value in kept if isinstance(value, Tensor))
            edges = tuple(edge_of(output) for output in traced)
            shapes = tuple(output.detach() for output in traced)
            recorder.add(site, AnyLayerCall(site, kept, structure, versions, edges, shapes, layout))
        return tree_unflatten(outputs, output_structure)

    return noting


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _infer(inputs: Sequence[Any], outputs: Sequence[Tensor], examples: int) -> AnyLayout:
    layout = AnyLayout(
        tuple(_axis(value, examples) for value in inputs), tuple(_axis(value, examples) for value in outputs)
    )
    if None in layout.outputs:
        raise RuleDoesNotApply("an output has no axis for the examples")
    return layout


def _axis(value: Any, examples: int) -> int | None:
    if not isinstance(value, Tensor):
        return None
    return next((axis for axis in (0, 1) if value.dim() > axis and value.shape[axis] == examples), None)


class Recomputed:
    """Per-example gradients of one call of any layer, computed a few examples at a time."""

    def __init__(self, call: AnyLayerCall, site: Site, gradients: Sequence[Tensor], examples: int) -> None:
        self.call, self.site, self.gradients, self.examples = call, site, gradients, examples
        self.held: dict[Part, Tensor] | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self.site.parts.values())

    @property
    def dtype(self) -> torch.dtype:
        wide_enough = all(wide(value).dtype == torch.float64 for value in self.site.values.values())
        return torch.float64 if wide_enough else torch.float32

    def norms(self) -> tuple[list[Tensor], Tensor | None]:
        if self.examples * self._entries() <= HELD:
            self.held = self._built(torch.arange(self.examples))
            return [self._norms_of(self.held)], None
        return [torch.cat([self._norms_of(self._built(rows)) for rows in self._chunks()])], None

    def _norms_of(self, built: Mapping[Part, Tensor]) -> Tensor:
        return overall([row_norms(rows) for rows in built.values()])

    def weighted(self, factors: Tensor, dropped: Tensor | None) -> dict[Part, Tensor]:
        total: dict[Part, Tensor] = {}
        chunks = [torch.arange(self.examples)] if self.held is not None else self._chunks()
        for rows in chunks:
            bad = None if dropped is None else torch.isin(rows, dropped).nonzero().flatten()
            for part, built in (self.held or self._built(rows)).items():
                addition = weighted_rows(factors[rows], zeroed(built, bad))
                total[part] = total[part] + addition if part in total else addition.double()
        return total

    def instantiate(self, rows: Tensor) -> dict[Part, Tensor]:
        return {part: built.double() for part, built in self._built(rows).items()}

    def _entries(self) -> int:
        return sum(part.shape.numel() for part in self.parts)

    def _chunks(self) -> Sequence[Tensor]:
        return in_chunks(torch.arange(self.examples), max(1, HELD // max(1, self._entries())))

    def _built(self, rows: Tensor) -> dict[Part, Tensor]:
        layout = self.call.layout
        inputs = [_select(value, axis, rows) for value, axis in zip(self.call.inputs, layout.inputs, strict=True)]
        gradients = [_select(value, axis, rows) for value, axis in zip(self.gradients, layout.outputs, strict=True)]
        tensors = [value for value, axis in zip(inputs, layout.inputs, strict=True) if axis is not None]
        axes = [axis for axis in layout.inputs if axis is not None]
        of_one = partial(self._pulled_back, inputs, axes)
        try:
            with slow_is_known():
                built = vmap(of_one, in_dims=(axes, list(layout.outputs)), randomness="error")(tensors, gradients)
        except (RuntimeError, ValueError, NotImplementedError):
            # Some operations cannot be vectorised: one example after the other, then.
            each = [of_one(_at(i, tensors, axes), _at(i, gradients, layout.outputs)) for i in range(len(rows))]
            built = {name: torch.stack([one[name] for one in each]) for name in each[0]}
        return {part: wide(built[name]) for name, part in self.site.parts.items()}

    def _pulled_back(
        self, inputs: Sequence[Any], axes: Sequence[int], tensors: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """The gradient of one example, given what it put in and the gradients of what came out."""
        layout = self.call.layout
        batches = iter([tensor.unsqueeze(axis) for tensor, axis in zip(tensors, axes, strict=True)])
        filled = [v if axis is None else next(batches) for v, axis in zip(inputs, layout.inputs, strict=True)]
        args, kwargs = tree_unflatten(filled, self.call.structure)

        def outputs(values: dict[str, Tensor]) -> tuple[Tensor, ...]:
            flat, _ = tree_flatten(functional_call(self.site.layer, values, args, kwargs))
            return tuple(value for value in flat if _has_gradient(value))

        pull = vjp(outputs, {name: value.detach() for name, value in self.site.values.items()})[1]
        places = [axis for axis in layout.outputs if axis is not None]
        pulled: dict[str, Tensor] = pull(tuple(g.unsqueeze(a) for g, a in zip(gradients, places, strict=True)))[0]
        return pulled


def _at(i: int, tensors: Sequence[Tensor], axes: Sequence[int | None]) -> list[Tensor]:
    return [tensor.select(axis, i) for tensor, axis in zip(tensors, axes, strict=True) if axis is not None]


def _select(value: Any, axis: int | None, rows: Tensor) -> Any:
    return value if axis is None else value.index_select(axis, rows)
