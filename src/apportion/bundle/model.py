"""`model.json`: how the weights become predictions, in public facts only; and those predictions, without PyTorch."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import canonical
from apportion.bundle import schema
from apportion.bundle.files import MODEL, refuse_other_format
from apportion.bundle.tensors import Tensor
from apportion.errors import BundleError

FORMAT = 1
_LONGEST_LIST = 10_000  # characters: what the certificate's schema admits as one declaration
_ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {"relu": lambda x: np.maximum(x, 0.0), "tanh": np.tanh}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableModel:
    """A multilayer perceptron on a table, with the ranges by which its inputs are scaled.

    Before it, perhaps, a `projection` to so many dimensions, and a shift and scale of each feature: frozen layers, which
    hold what private components of the pipeline released.
    """

    target: str
    classes: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]
    hidden: tuple[int, ...]
    activation: str
    projection: int | None = None
    standardised: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "classes": list(self.classes),
            "features": [{"name": name, "low": low, "high": high} for name, (low, high) in self.ranges.items()],
            "hidden": list(self.hidden),
            "activation": self.activation,
            **({} if self.projection is None else {"projection": self.projection}),
            **({"standardised": True} if self.standardised else {}),
        }

    @property
    def widths(self) -> tuple[int, ...]:
        inputs = len(self.ranges) if self.projection is None else self.projection
        return (inputs, *self.hidden, len(self.classes))

    @property
    def frozen_layers(self) -> int:
        return (self.projection is not None) + self.standardised

    def declared(self) -> dict[str, str]:
        """What the ledger's first line says about such a model, so that the two can be compared."""
        ranges = [f"{name} {low:g}:{high:g}" for name, (low, high) in self.ranges.items()]
        return {
            "classes": _listed(self.classes),
            "features": _listed(list(self.ranges)),
            "feature ranges": _listed(ranges),
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each layer's tensors, under the names that `torch.nn.Sequential` gives them."""
        layers = [(self._at(index), before, after) for index, (before, after) in enumerate(pairwise(self.widths))]
        weights: dict[str, tuple[int, ...]] = {f"{index}.weight": (after, before) for index, before, after in layers}
        weights |= {f"{index}.bias": (after,) for index, _, after in layers}
        if self.projection is not None:
            weights["0.directions"] = (len(self.ranges), self.projection)
        if self.standardised:
            at = self.frozen_layers - 1
            weights |= {f"{at}.shift": (self.widths[0],), f"{at}.scale": (self.widths[0],)}
        return weights

    def _at(self, layer: int) -> int:
        """The place of a linear layer in the Sequential."""
        return self.frozen_layers + 2 * layer

    def scores(self, inputs: NDArray[np.float64], weights: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """One row of class scores per record."""
        values, last = self._prepared(inputs, weights), len(self.widths) - 2
        for index in range(last + 1):
            layer = weights[f"{self._at(index)}.weight"].astype(np.float64)
            values = values @ layer.T + weights[f"{self._at(index)}.bias"].astype(np.float64)
            values = values if index == last else _ACTIVATIONS[self.activation](values)
        return values

    def _prepared(self, inputs: NDArray[np.float64], weights: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """What the frozen layers make of the inputs."""
        if self.projection is not None:
            inputs = inputs @ weights["0.directions"].astype(np.float64)
        if self.standardised:
            at = self.frozen_layers - 1
            inputs = (inputs - weights[f"{at}.shift"].astype(np.float64)) / weights[f"{at}.scale"].astype(np.float64)
        return inputs


def _listed(items: Sequence[str]) -> str:
    """The items; of a list too long for a certificate its ends and a digest, so that it still cannot be another one."""
    text = ", ".join(items)
    if len(text) <= _LONGEST_LIST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{items[0]:.200}, …, {items[-1]:.200} ({len(items)} in all, SHA-256 of the list {digest})"


def describe(table: TableModel | None, onnx: Mapping[str, Any] | None) -> bytes | None:
    """The content of model.json, or None if there is nothing to say."""
    if table is None and onnx is None:
        return None
    content = {"format": FORMAT, "table": None if table is None else table.to_json(), "onnx": onnx}
    schema.check(content, "model")
    return canonical.pretty(content).encode()


def parse(data: bytes) -> dict[str, Any]:
    content = canonical.loads(data)
    refuse_other_format(content, FORMAT, MODEL)
    schema.check(content, "model")
    return content  # type: ignore[no-any-return]  # an object, by its schema


def table_of(content: Mapping[str, Any]) -> TableModel | None:
    table = content["table"]
    if table is None:
        return None
    ranges = {feature["name"]: (feature["low"], feature["high"]) for feature in table["features"]}
    if len(ranges) != len(table["features"]) or not all(low < high for low, high in ranges.values()):
        raise BundleError("model.json: each feature needs its own name, and low < high")
    if table.get("projection", 1) > len(ranges):
        raise BundleError("model.json: a projection has at most as many dimensions as there are features")
    if len(set(table["classes"])) != len(table["classes"]):
        raise BundleError("model.json: a class occurs twice")
    return TableModel(
        target=table["target"],
        classes=tuple(table["classes"]),
        ranges=ranges,
        hidden=tuple(table["hidden"]),
        activation=table["activation"],
        projection=table.get("projection"),
        standardised=table.get("standardised", False),
    )


def check_against(content: Mapping[str, Any], declared: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """A table model agrees with what the ledger declared and with the shapes of the weights."""
    table = table_of(content)
    if table is None:
        return
    for name, text in table.declared().items():
        if declared.get(name) != text:
            raise BundleError(f"model.json: its {name} are not those declared in the ledger")
    if {name: tensor.shape for name, tensor in tensors.items()} != table.shapes():
        raise BundleError("model.json: the weights do not have the shapes of the network that it describes")
