"""Layers that hold what a private component released: frozen, first in the model, and published with it.

A receiver feeds raw inputs. Before the run such a layer holds a public stand-in; the run replaces it by what the plan's
component releases.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion import _checks
from apportion.adaptive import Plan
from apportion.components import pca
from apportion.components.release import Releaser
from apportion.errors import IncompatibleModel
from apportion.randomness import RandomStream
from apportion.stages import Component, PrincipalComponents
from apportion.training import grid
from apportion.training.records import Records
from apportion.training.run_directory import RunDirectory

_ROWS = 4096


class Projection(torch.nn.Module):
    """Inputs, flattened, onto the private principal components of the training inputs: x ↦ x · directions."""

    directions: Tensor

    def __init__(self, features: int, dimensions: int) -> None:
        super().__init__()
        self.features = _checks.count("features", features)
        self.dimensions = _checks.count("dimensions", dimensions)
        if dimensions > features:
            raise IncompatibleModel([f"a Projection has at most as many dimensions as features, got {dimensions}"])
        self.register_buffer("directions", torch.eye(features, dimensions))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1) @ self.directions

    def extra_repr(self) -> str:
        return f"features={self.features}, dimensions={self.dimensions}"

    def fits(self, component: Component, inputs: Tensor) -> str | None:
        """What is wrong, if anything."""
        if not isinstance(component, PrincipalComponents) or component.dimensions != self.dimensions:
            return f"has {self.dimensions} dimensions, but the plan's component is {component}"
        found = math.prod(inputs.shape[1:])
        return None if found == self.features else f"takes {self.features} features, but its inputs have {found}"

    def release(self, component: Component, data: Iterator[NDArray[np.float64]], releaser: Releaser) -> None:
        assert isinstance(component, PrincipalComponents)
        self.load({"directions": pca.release(component, data, releaser).directions})

    def state(self) -> dict[str, NDArray[np.float64]]:
        return {"directions": self.directions.double().cpu().numpy()}

    def load(self, state: Mapping[str, NDArray[np.float64]]) -> None:
        self.directions.copy_(torch.from_numpy(state["directions"]))


Frozen = Projection


class Preparation:
    """The plan's components that come before training, and the layers that hold them."""

    def __init__(self, model: torch.nn.Module, plan: Plan, inputs: Tensor) -> None:
        """Refuse a model whose frozen layers are not those of the plan. Of `inputs` only the shape is used."""
        self._components = tuple(c for c in plan.components if isinstance(c, PrincipalComponents))
        self._layers = _leading(model)
        self._noise = getattr(plan, "noise", "float")
        reasons = [] if len(self._layers) == len(self._components) else [_mismatch(self._components)]
        for (name, layer), component in zip(self._layers, self._components, strict=False):
            problem = layer.fits(component, inputs)
            reasons += [f"{name} ({type(layer).__name__}) {problem}"] if problem else []
        if reasons:
            raise IncompatibleModel(reasons)

    @property
    def names(self) -> list[str]:
        """The buffers that are set here."""
        return [f"{name}.{buffer}" for name, layer in self._layers for buffer, _ in layer.named_buffers()]

    def run(self, records: Records, directory: RunDirectory, stream: RandomStream) -> None:
        """Release each component into its layer, or load what it released before; each is saved as soon as it exists."""
        done = directory.ledger.used_components
        exact = grid.whole_normals if self._noise == "grid" else None
        for number, ((_, layer), component) in enumerate(zip(self._layers, self._components, strict=True)):
            if number < done:
                layer.load(directory.load_component(number))
            else:
                layer.release(component, self._entering(records, number), Releaser(directory.ledger, stream, exact))
                directory.save_component(number, layer.state())

    def _entering(self, records: Records, number: int) -> Iterator[NDArray[np.float64]]:
        """What enters layer `number`, row by row a function of the inputs and of what was released before."""
        for piece, _ in records.in_order(_ROWS):
            with torch.no_grad():
                for _, layer in self._layers[:number]:
                    piece = layer(piece)
            yield piece.flatten(1).double().cpu().numpy()


def _leading(model: torch.nn.Module) -> list[tuple[str, Frozen]]:
    """The frozen layers, which must be the first ones of a Sequential, so that nothing but them touches their inputs."""
    everywhere = [(name, module) for name, module in model.named_modules() if isinstance(module, Frozen)]
    leading: list[tuple[str, Frozen]] = []
    if isinstance(model, torch.nn.Sequential):
        for name, module in model.named_children():
            if not isinstance(module, Frozen):
                break
            leading.append((name, module))
    if len(everywhere) != len(leading):
        raise IncompatibleModel(
            ["Projection must come first in the model: torch.nn.Sequential(Projection(…), the rest)"]
        )
    return leading


def _mismatch(components: tuple[Component, ...]) -> str:
    kinds = ", ".join(component.kind for component in components) or "none"
    return (
        f"the model must begin with one layer for each component of the plan that prepares inputs ({kinds}): "
        "Projection(features, dimensions) for pca; and the plan must declare components=(PrincipalComponents(…),) for each"
    )
