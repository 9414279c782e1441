"""The layers of per-layer clipping: which parameters share a bound."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from apportion.clipping import PerLayer
from apportion.errors import IncompatibleModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Parameters that are clipped together, to `clip`."""

    label: str
    parameters: tuple[str, ...]
    clip: float


def count_layers(model: torch.nn.Module) -> int:
    """How many layers `PerLayer(layers=…)` has to name for this model: modules that own trainable parameters."""
    return len(_by_module(name for name, parameter in model.named_parameters() if parameter.requires_grad))


def layers_of(names: Iterable[str], clipping: PerLayer, clip: float) -> tuple[Layer, ...]:
    """The named trainable parameters in the layers that `clipping` says; an error if they do not fit."""
    if isinstance(clipping.layers, Mapping):
        return _as_named(list(names), clipping.layers, clip)
    found = _by_module(names)
    if len(found) != clipping.layers:
        raise IncompatibleModel(
            [
                f"the plan clips {clipping.layers} layers, but the model has {len(found)} with trainable parameters "
                f"({', '.join(found) or 'none'}): make the plan with PerLayer(layers={max(1, len(found))}), or name groups "
                "of layers"
            ]
        )
    return tuple(Layer(label=label, parameters=tuple(own), clip=clip) for label, own in found.items())


def _by_module(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.rpartition(".")[0] or "(model)", []).append(name)
    return found


def _as_named(names: list[str], thresholds: Mapping[str, float], clip: float) -> tuple[Layer, ...]:
    owned: dict[str, list[str]] = {key: [] for key in thresholds}
    homeless: list[str] = []
    for name in names:
        fitting = [key for key in thresholds if name == key or key == "" or name.startswith(key + ".")]
        (owned[max(fitting, key=len)] if fitting else homeless).append(name)
    empty = [key for key, own in owned.items() if not own]
    if homeless or empty:
        problems = [f"no layer of the plan holds the parameter {name}" for name in homeless]
        problems += [f"the plan's layer {key!r} holds no trainable parameter" for key in empty]
        raise IncompatibleModel([f"{problem}: PerLayer(layers=…) must name them all" for problem in problems])
    return tuple(
        Layer(label=key or "(rest)", parameters=tuple(owned[key]), clip=clip * value)
        for key, value in thresholds.items()
    )
