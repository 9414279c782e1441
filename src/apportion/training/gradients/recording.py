"""One forward pass in which chosen layers note what went in, and where their output's gradient will be.

The parameters do not require gradients meanwhile, so autograd computes none for them. Layers are made to note by an
instance attribute `forward`, taken away afterwards; unlike a hook it sees what the layer itself computed, whatever
hooks of the user do before and after.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from apportion.training.gradients.pieces import Part, Piece
from apportion.training.gradients.registry import Rule, RuleDoesNotApply, Use


@dataclass(frozen=True, slots=True)
class Site:
    """A layer in its model: its name there, its trainable parameters (own name → part), and their present values.

    It does not keep the layer alive, because what is known about a model must go when the model goes, and the layer may
    be the model.
    """

    name: str
    reference: "ref[torch.nn.Module]"
    parts: Mapping[str, Part]
    values: Mapping[str, Tensor]

    @property
    def layer(self) -> torch.nn.Module:
        layer = self.reference()
        assert layer is not None, "the model is gone"
        return layer


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the examples are: on axis 0 in `slices` consecutive slices each, or on axis 1, or nowhere (`shared`)."""

    axis: int = 0
    slices: int = 1
    shared: bool = False


class Call(Protocol):
    """One use of a layer. Edges are places in the graph where gradients will be asked for.

    Edges, not output tensors, because an in-place activation changes what the tensor stands for.
    """

    @property
    def label(self) -> str: ...
    @property
    def edges(self) -> tuple[GradientEdge, ...]: ...
    @property
    def noted(self) -> tuple[Tensor, ...]: ...
    def pieces(self, site: Site, gradients: Sequence[Tensor | None], examples: int) -> list[Piece]: ...


Blocks = Mapping[str, tuple[str, int, int | None]]


class LayerCall(NamedTuple):
    """A use that a rule knows: one input tensor, one output tensor.

    `blocks`, for layers that keep several matrices in one parameter: the rule's name for a parameter → the layer's name
    for it, first row, number of rows.
    """

    label: str
    rule: Rule
    inputs: Tensor
    version: int
    edges: tuple[GradientEdge, ...]
    layout: Layout
    blocks: Blocks | None

    @property
    def noted(self) -> tuple[Tensor, ...]:
        return (self.inputs,)

    def pieces(self, site: Site, gradients: Sequence[Tensor | None], examples: int) -> list[Piece]:
        if self.inputs._version != self.version:
            raise RuleDoesNotApply(f"the input of {self.label!r} was modified in place after the layer used it")
        parts, gradient = site.parts if self.blocks is None else self._parts(site, self.blocks), gradients[0]
        if gradient is None or not parts:
            return []
        inputs = arranged(self.inputs, self.layout, examples, is_gradient=False)
        gradient = arranged(gradient, self.layout, examples, is_gradient=True)
        return self.rule(Use(site.layer, parts, inputs, gradient, examples))

    @staticmethod
    def _parts(site: Site, blocks: Blocks) -> Mapping[str, Part]:
        return {
            name: site.parts[own] if length is None else site.parts[own].rows(start, length)
            for name, (own, start, length) in blocks.items()
            if own in site.parts
        }


class _Anchor(torch.autograd.Function):
    """Makes a tensor that depends on nothing trainable part of the graph, without copying and without a leaf.

    A leaf is quicker, but in-place activations refuse leaves.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None


class Recorder:
    """Collects the calls of one forward pass after the other, each over `examples` examples.

    Without layouts it infers them, by shape; with layouts it holds every call to them. `channels_last` asks images to be
    held so between layers.
    """

    def __init__(
        self,
        layouts: Mapping[str, Any] | None = None,
        changed_in_place: Collection[str] = (),
        *,
        channels_last: bool = False,
    ) -> None:
        self.channels_last = channels_last
        self.layouts: dict[str, Any] = dict(layouts or {})
        self.learning = layouts is None
        self._changed_in_place = changed_in_place
        self.begin(0)

    def begin(self, examples: int) -> None:
        """The next forward pass; what is still held of the last one is let go."""
        self.examples = examples
        self.calls: list[Call] = []
        self.sites: list[str] = []
        self._outputs: list[tuple[str, Tensor, int]] = []
        # A checkpointed segment runs again during the backward pass, when nothing must be noted twice.
        self.recording = True

    def note(
        self,
        site: str,
        rule: Rule,
        inputs: Tensor,
        output: Tensor,
        blocks: Blocks | None = None,
        label: str = "",
    ) -> Tensor:
        """Notes a call and returns the output to go on with."""
        if not torch.is_grad_enabled():
            return output
        label = site + label if label else site
        layout = self.learn(label, infer_layout(inputs, output, self.examples)) if self.learning else self.learnt(label)
        if layout.shared:
            output = output.expand(self.examples, *output.shape[output.dim() > 0 and output.shape[0] == 1 :])
        if self.learning or not output.requires_grad:
            output = self.traced(label, output, inputs)
        if self.recording:
            self.sites.append(site)
            self.calls.append(LayerCall(label, rule, inputs, inputs._version, (edge_of(output),), layout, blocks))
        return output

    def add(self, site: str, call: Call) -> None:
        self.sites.append(site)
        self.calls.append(call)

    def traced(self, label: str, output: Tensor, inputs: object = None) -> Tensor:
        """The output as part of the graph, whether or not anything before it was."""
        if self.learning:
            self._outputs.append((label, output, output._version))
        if output.requires_grad:
            return output
        if output is inputs or output._is_view():
            output = output.clone()
        if label not in self._changed_in_place:
            return output.requires_grad_()
        anchor = torch.zeros((), requires_grad=True)
        anchored: Tensor = _Anchor.apply(output, anchor)  # type: ignore[no-untyped-call]
        return anchored

    def changed_in_place(self) -> frozenset[str]:
        """Whose outputs the model changed after the layer had returned them."""
        return frozenset(label for label, output, version in self._outputs if output._version != version)

    def learnt(self, label: str) -> Any:
        if label not in self.layouts:
            raise RuleDoesNotApply(f"{label!r} was not called before")
        return self.layouts[label]

    def learn(self, label: str, layout: Any) -> Any:
        if self.layouts.setdefault(label, layout) != layout:
            raise RuleDoesNotApply(f"{label!r} is used with examples in different places")
        return layout


def infer_layout(inputs: Tensor, output: Tensor, examples: int) -> Layout:
    """By shape alone; the numbers decide afterwards whether it was right."""
    if inputs.dim() == 0 or output.dim() == 0:
        return Layout(shared=True)
    if len(inputs) == examples == len(output):
        return Layout()
    if inputs.dim() > 1 and output.dim() > 1 and inputs.shape[1] == examples == output.shape[1]:
        return Layout(axis=1)
    if len(inputs) == len(output) and len(inputs) % examples == 0:
        return Layout(slices=len(inputs) // examples)
    return Layout(shared=True)


def arranged(tensor: Tensor, layout: Layout, examples: int, *, is_gradient: bool) -> Tensor:
    """The tensor with the examples outermost; refuses if it does not have them where the layout says."""
    if layout.shared and not is_gradient:
        return tensor.expand(examples, *tensor.shape[tensor.dim() > 0 and tensor.shape[0] == 1 :])
    tensor = tensor.transpose(0, 1) if layout.axis == 1 else tensor
    if tensor.shape[0] != examples * layout.slices:
        raise RuleDoesNotApply(f"expected {examples} × {layout.slices} slices, found {tensor.shape[0]}")
    return tensor


def edge_of(output: Tensor) -> GradientEdge:
    """`get_gradient_edge`, by the short way where there is one: nodes written in Python need its token of ownership."""
    node = output.grad_fn
    if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
        return get_gradient_edge(output)
    return GradientEdge(node, output.output_nr)


Forward = Callable[..., Any]


Replacement = tuple[torch.nn.Module, Forward]


class ReplacedForwards:
    """Gives each layer another `forward`, as an instance attribute, and takes it away again whatever happens."""

    def __init__(self, replacements: Sequence[Replacement]) -> None:
        self._replacements = replacements

    def __enter__(self) -> None:
        self._before = [module.__dict__.get("forward") for module, _ in self._replacements]
        try:
            for module, forward in self._replacements:
                module.__dict__["forward"] = forward
        except BaseException:
            self._restore()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for (module, _), old in zip(self._replacements, self._before, strict=True):
            if old is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = old


class WithoutGradients:
    """The parameters do not require gradients inside; they do again afterwards, whatever happens."""

    def __init__(self, parameters: Collection[torch.nn.Parameter]) -> None:
        self._parameters = parameters

    def __enter__(self) -> None:
        try:
            for parameter in self._parameters:
                parameter.requires_grad_(False)
        except BaseException:
            self._restore()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for parameter in self._parameters:
            parameter.requires_grad_(True)
