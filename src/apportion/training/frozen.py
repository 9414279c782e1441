"""Layers that hold what a private component released: frozen, first in the model, and published with it.

A receiver feeds raw inputs. Before the run such a layer holds a public stand-in; the run replaces it by what the plan's
component releases (see `preparation`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion import _checks
from apportion.components import pca, scaling
from apportion.components.release import Releaser
from apportion.errors import InvalidArgument
from apportion.stages import ClassWeights, Component, PrincipalComponents, Scaling
from apportion.training.losses import per_example

Parts = Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]  # inputs as they enter the layer, and targets
State = dict[str, NDArray[np.float64]]


class Projection(torch.nn.Module):
    """Inputs, flattened, onto the private principal components of the training inputs: x ↦ x · directions."""

    component: ClassVar[type[Component]] = PrincipalComponents
    directions: Tensor

    def __init__(self, features: int, dimensions: int) -> None:
        super().__init__()
        self.features = _checks.count("features", features)
        self.dimensions = _checks.count("dimensions", dimensions)
        if dimensions > features:
            raise InvalidArgument(f"dimensions must be at most features = {features}, got {dimensions}")
        self.register_buffer("directions", torch.eye(features, dimensions))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1) @ self.directions

    def extra_repr(self) -> str:
        return f"features={self.features}, dimensions={self.dimensions}"

    def problem(self, component: Component) -> str | None:
        found = isinstance(component, PrincipalComponents) and component.dimensions == self.dimensions
        return None if found else f"has {self.dimensions} dimensions"

    def release(self, component: Component, parts: Parts, examples: int, releaser: Releaser) -> None:
        assert isinstance(component, PrincipalComponents)
        self.load({"directions": pca.release(component, (rows for rows, _ in parts), releaser).directions})

    def state(self) -> State:
        return {"directions": self.directions.double().cpu().numpy()}

    def load(self, state: Mapping[str, NDArray[np.float64]]) -> None:
        self.directions.copy_(torch.from_numpy(state["directions"]))


class Standardise(torch.nn.Module):
    """Inputs, flattened, shifted and scaled feature by feature by private statistics: x ↦ (x − shift) / scale."""

    component: ClassVar[type[Component]] = Scaling
    shift: Tensor
    scale: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = _checks.count("features", features)
        self.register_buffer("shift", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs.flatten(1) - self.shift) / self.scale

    def extra_repr(self) -> str:
        return f"features={self.features}"

    def problem(self, component: Component) -> str | None:
        return None if isinstance(component, Scaling) else "standardises its inputs"

    def release(self, component: Component, parts: Parts, examples: int, releaser: Releaser) -> None:
        assert isinstance(component, Scaling)
        found = scaling.release(component, (rows for rows, _ in parts), examples, releaser)
        self.load({"shift": found.shift, "scale": found.scale})

    def state(self) -> State:
        return {"shift": self.shift.double().cpu().numpy(), "scale": self.scale.double().cpu().numpy()}

    def load(self, state: Mapping[str, NDArray[np.float64]]) -> None:
        self.shift.copy_(torch.from_numpy(state["shift"]))
        self.scale.copy_(torch.from_numpy(state["scale"]))


class ClassWeighted:
    """A loss in which each example counts by the private weight of its class; all weigh 1 until the run has found them."""

    component: ClassVar[type[Component]] = ClassWeights

    def __init__(self, loss: Callable[..., Tensor], classes: int) -> None:
        self._loss = per_example(loss)
        self.classes = _checks.count("classes", classes, least=2)
        self.weights = torch.ones(classes, dtype=torch.float64)
        self.__name__ = f"{getattr(loss, '__name__', type(loss).__name__)}, class-weighted"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(outputs, targets) * self.weights.to(outputs)[targets]

    def problem(self, component: Component) -> str | None:
        return None if isinstance(component, ClassWeights) else "weighs classes"

    def release(self, component: Component, parts: Parts, examples: int, releaser: Releaser) -> None:
        assert isinstance(component, ClassWeights)
        labels = (targets for _, targets in parts)
        self.load({"weights": scaling.release_class_weights(component, labels, self.classes, releaser)})

    def state(self) -> State:
        return {"weights": self.weights.numpy()}

    def load(self, state: Mapping[str, NDArray[np.float64]]) -> None:
        self.weights = torch.from_numpy(np.array(state["weights"]))


Layer = Projection | Standardise
Holder = Layer | ClassWeighted
