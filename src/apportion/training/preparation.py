"""The components of a pipeline that come before training: released into the layers, or the loss, that hold them."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from apportion.adaptive import Plan
from apportion.components.release import Releaser
from apportion.errors import IncompatibleModel
from apportion.randomness import RandomStream
from apportion.stages import Component, PrivateEvaluation
from apportion.training import grid
from apportion.training.counting import one_by_one
from apportion.training.frozen import ClassWeighted, Holder, Layer, Parts
from apportion.training.records import Records
from apportion.training.run_directory import RunDirectory

_ROWS = 4096


class Preparation:
    """Which component of the plan is held by which layer; the loss, if it weighs classes, comes last."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Tensor], plan: Plan, inputs: Tensor) -> None:
        """Refuse a model whose frozen layers are not those of the plan. Of `inputs` only the shape is used."""
        self._components = tuple(c for c in plan.components if not isinstance(c, PrivateEvaluation))
        self._layers = _leading(model)
        self._holders: list[tuple[str, Holder]] = [*self._layers]
        if isinstance(loss, ClassWeighted):
            self._holders.append(("the loss", loss))
        self._noise = getattr(plan, "noise", "float")
        self._examples = plan.examples
        reasons = _wrong_features(self._layers, inputs) + self._mismatches()
        if reasons:
            raise IncompatibleModel(reasons)

    def _mismatches(self) -> list[str]:
        if [type(component) for component in self._components] != [holder.component for _, holder in self._holders]:
            return [_mismatch(self._components, self._holders)]
        pairs = zip(self._holders, self._components, strict=True)
        return [
            f"{name} ({type(holder).__name__}) {problem}, but the plan's component is {component}"
            for (name, holder), component in pairs
            if (problem := holder.problem(component))
        ]

    @property
    def names(self) -> list[str]:
        """The buffers that are set here."""
        return [f"{name}.{buffer}" for name, layer in self._layers for buffer, _ in layer.named_buffers()]

    def run(self, records: Records, directory: RunDirectory, stream: RandomStream) -> None:
        """Release each component into its holder, or load what it released before; each is saved as soon as it exists."""
        done = directory.ledger.used_components
        exact = grid.whole_normals if self._noise == "grid" else None
        for number, ((_, holder), component) in enumerate(zip(self._holders, self._components, strict=True)):
            if number < done:
                holder.load(directory.load_component(number))
            else:
                releaser = Releaser(directory.ledger, stream, exact)
                holder.release(component, self._entering(records, number), self._examples, releaser)
                directory.save_component(number, holder.state())

    def _entering(self, records: Records, number: int) -> Parts:
        """What enters holder `number`: each row a function of its own record and of what was released before."""
        parts = records.in_order(_ROWS)
        before = [layer for _, layer in self._layers[:number]]
        for piece, targets in one_by_one(torch.nn.Sequential(*before), parts) if before else parts:
            yield piece.flatten(1).double().cpu().numpy(), targets.cpu().numpy()


def _leading(model: torch.nn.Module) -> list[tuple[str, Layer]]:
    """The frozen layers, which must be the first ones of a Sequential, so that nothing but them touches their inputs."""
    everywhere = [name for name, module in model.named_modules() if isinstance(module, Layer)]
    leading: list[tuple[str, Layer]] = []
    if isinstance(model, torch.nn.Sequential):
        for name, module in model.named_children():
            if not isinstance(module, Layer):
                break
            leading.append((name, module))
    if len(everywhere) != len(leading):
        raise IncompatibleModel(
            [
                f"{', '.join(everywhere)}: Projection and Standardise must come first in the model: "
                "torch.nn.Sequential(Projection(…), Standardise(…), the rest)"
            ]
        )
    return leading


def _wrong_features(layers: list[tuple[str, Layer]], inputs: Tensor) -> list[str]:
    found, reasons = math.prod(inputs.shape[1:]), []
    for name, layer in layers:
        if layer.features != found:
            reasons.append(f"{name} ({type(layer).__name__}) takes {layer.features} features, but {found} enter it")
        found = getattr(layer, "dimensions", layer.features)
    return reasons


def _mismatch(components: tuple[Component, ...], holders: list[tuple[str, Holder]]) -> str:
    planned = ", ".join(component.kind for component in components) or "none"
    found = ", ".join(holder.component.kind for _, holder in holders) or "none"
    return (
        f"the plan's components before training are {planned}; the model and loss hold {found}. Each component needs its "
        "holder, in the same order, and the other way round: Projection(features, dimensions) for pca, "
        "Standardise(features) for scaling, at the beginning of the model; ClassWeighted(loss, classes) for class-weights"
    )
