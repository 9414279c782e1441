"""Linear layers one after the other, each with an activation or none: both passes without autograd.

Where layers are small, most of a step is what PyTorch does around the arithmetic: calling modules, building a graph, walking
back through it. A plain `Sequential` needs none of that: it is run layer by layer with the very operations that modules and
autograd would use, and only the loss, which may be anything, is differentiated by autograd. Where all layers are narrow,
even those operations are mostly overhead: see `narrow_chain`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from weakref import ref

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from apportion.training.gradients.links import ACTIVATIONS, Link
from apportion.training.gradients.loss_gradient import loss_gradient
from apportion.training.gradients.narrow import are_narrow, places_are_alike
from apportion.training.gradients.narrow_chain import NarrowChain
from apportion.training.gradients.outer import VectorProducts
from apportion.training.gradients.pieces import Piece
from apportion.training.gradients.recording import Site
from apportion.training.gradients.registry import RuleDoesNotApply
from apportion.training.losses import PerExampleLoss

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Chain:
    """A model that is `first`, modules without trainable parameters, and then `links`.

    Like what else is known about a model, it does not keep the model alive, which may be a linear layer.
    """

    def __init__(
        self, modules: Sequence[torch.nn.Module], first: Sequence[torch.nn.Module], links: Sequence[Link]
    ) -> None:
        self._modules = [(ref(module), type(module).forward) for module in modules]
        self._first, self._links = first, links
        self._narrow = NarrowChain(links) if _are_narrow(links) else None

    def is_plain(self) -> bool:
        """Whether no hook and no other `forward`, of a module or of its class, would have anything to say."""
        for reference, forward in self._modules:
            module = reference()
            attributes = vars(module)
            if type(module).forward is not forward or "forward" in attributes:  # type: ignore[union-attr]
                return False
            if any(map(attributes.__getitem__, HOOKS)):
                return False
        return not _has_any_global_hook()  # type: ignore[no-untyped-call]

    def pieces(self, loss: PerExampleLoss, inputs: Tensor, targets: Tensor) -> list[Piece]:
        """From the last layer to the first."""
        with torch.no_grad():
            inputs = self._prepared(inputs)
            if self._narrow is not None and inputs.device.type == "cpu":
                return [self._narrow.products(loss, inputs, targets)]
            passed = self._forward(inputs)
            gradient = loss_gradient(loss, passed[-1], targets)
            return self._backward(passed, gradient)

    def _prepared(self, inputs: Tensor) -> Tensor:
        """What the first link gets."""
        examples = inputs.shape[0]
        for module in self._first:
            inputs = module(inputs)
        if inputs.dim() != 2 or inputs.shape[0] != examples:
            raise RuleDoesNotApply("linear layers on something else than one vector per example")
        return inputs

    def _forward(self, inputs: Tensor) -> list[Tensor]:
        """What goes into every link, and what comes out at the end."""
        passed = [inputs]
        for link in self._links:
            layer = link.layer
            output = functional.linear(passed[-1], layer.weight, layer.bias)
            if link.activation is not None:
                link.activation.apply(output)
            passed.append(output)
        return passed

    def _backward(self, passed: list[Tensor], gradient: Tensor) -> list[Piece]:
        pieces: list[Piece] = []
        output = passed.pop()
        for link in reversed(self._links):
            if link.activation is not None:
                link.activation.pull_back(gradient, output)
            output = passed.pop()
            if link.weight is not None or link.bias is not None:
                pieces.append(VectorProducts(link.weight, link.bias, output, gradient))
            if passed:
                gradient = torch.mm(gradient, link.layer.weight)
        return pieces


def _are_narrow(links: Sequence[Link]) -> bool:
    """Whether a `NarrowChain` will do: every parameter to be trained and in its place once."""
    layers = [link.layer for link in links]
    tensors = [tensor for layer in layers for tensor in (layer.weight, layer.bias) if tensor is not None]
    names = {link.weight.name for link in links if link.weight is not None}
    names |= {link.bias.name for link in links if link.bias is not None}
    return (
        len(names) == len(tensors)
        and len({tensor.dtype for tensor in tensors}) == 1
        and {tensor.device.type for tensor in tensors} == {"cpu"}
        and are_narrow([tuple(layer.weight.shape) for layer in layers])
        and all(places_are_alike(tuple(layer.weight.shape), layer.bias is not None) for layer in layers)
    )


def find_chain(model: torch.nn.Module, sites: Iterable[Site]) -> Chain | None:
    """The model as a chain, if it is one."""
    parts = {id(site.layer): site.parts for site in sites}
    containers, leaves = _taken_apart(model)
    start = next((i for i, leaf in enumerate(leaves) if id(leaf) in parts), len(leaves))
    links: list[Link] = []
    for leaf in leaves[start:]:
        if type(leaf) is torch.nn.Linear and leaf.weight.dtype in (torch.float32, torch.float64):
            own = parts.get(id(leaf), {})
            links.append(Link(ref(leaf), own.get("weight"), own.get("bias"), None))
        elif type(leaf) in ACTIVATIONS and links and links[-1].activation is None:
            links[-1] = replace(links[-1], activation=ACTIVATIONS[type(leaf)])
        elif type(leaf) is not torch.nn.Identity:
            return None
    return Chain([*containers, *leaves[start:]], leaves[:start], links) if links else None


def _taken_apart(module: torch.nn.Module) -> tuple[list[torch.nn.Module], list[torch.nn.Module]]:
    """Sequences of modules, at whatever depth, and what is in them, in the order in which it is called."""
    if type(module) is not torch.nn.Sequential:
        return [], [module]
    inner = [_taken_apart(child) for child in module]
    containers = [one for some, _ in inner for one in some]
    return [module, *containers], [leaf for _, some in inner for leaf in some]
