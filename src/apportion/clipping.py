"""How much one unit may add to a sum, as public data: flat, per layer or automatic.

A clipping mode turns the noise multiplier of a schedule into the one that is charged: `charged(sigma)` is the noise
standard deviation divided by the L2 bound on what one unit adds, once every coordinate is divided by its own scale.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from apportion import _checks
from apportion.errors import InvalidArgument

LayerNoise = Literal["scaled", "each"]

MOST_LAYERS, MOST_NAMED_LAYERS = 10_000, 64
LEAST_STABILITY = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """One bound over all parameters: a gradient longer than `clip` is scaled down to it."""

    kind: ClassVar[str] = "flat"

    def charged(self, sigma: float) -> float:
        return sigma

    def to_json(self) -> Any:
        return self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayer:
    """Every layer's part of the gradient has a bound of its own.

    `layers` is their number (each module that owns trainable parameters is one), all clipped to `clip`; or it maps names
    of modules or parameters to thresholds, as multiples of `clip`, each name standing for everything below it.

    Clipping L layers to C_l makes a vector that is √L long once every layer is divided by its C_l. So noise is C_l times
    a standard deviation that is the same for all layers, and there are two ways to pay for the √L:

    - `noise="scaled"`: the standard deviation is σ√L·C_l, and an epoch costs what it costs with flat clipping;
    - `noise="each"`: it is σ·C_l, and an epoch is charged as noise σ/√L: L times the ρ.
    """

    kind: ClassVar[str] = "per-layer"
    layers: int | Mapping[str, float]
    noise: LayerNoise = "scaled"

    def __post_init__(self) -> None:
        _checks.choice("noise", self.noise, get_args(LayerNoise))
        if not isinstance(self.layers, Mapping):
            object.__setattr__(self, "layers", _checks.count("layers", self.layers))
        elif not self.layers or not all(isinstance(name, str) and len(name) <= 200 for name in self.layers):
            raise InvalidArgument("layers must be a number, or map names of layers to their thresholds")
        else:
            checked = {name: _checks.positive(f"layers[{name!r}]", value) for name, value in self.layers.items()}
            object.__setattr__(self, "layers", checked)
        most = MOST_NAMED_LAYERS if isinstance(self.layers, Mapping) else MOST_LAYERS
        if self.number > most:
            raise InvalidArgument(f"layers must be at most {most:,}, got {self.number:,}")

    @property
    def number(self) -> int:
        return len(self.layers) if isinstance(self.layers, Mapping) else self.layers

    def charged(self, sigma: float) -> float:
        """Guarantees: dividing layer l by C_l is a public, invertible map, after which one unit moves the sum by at most
        √L and the noise is the same in every coordinate: one Gaussian mechanism, for every batching."""
        return sigma if self.noise == "scaled" else sigma / math.sqrt(self.number)

    def to_json(self) -> Any:
        layers = dict(sorted(self.layers.items())) if isinstance(self.layers, Mapping) else self.layers
        return {"kind": self.kind, "layers": layers, "noise": self.noise}


@dataclass(frozen=True, slots=True, kw_only=True)
class Automatic:
    """Every gradient g becomes clip·g/(‖g‖ + `stability`): shorter than `clip` whatever g is, so no threshold to tune.

    `clip` then only scales the step, like a learning rate. (Bu, Wang, Zha and Karypis 2022, arXiv 2206.07136.)
    """

    kind: ClassVar[str] = "automatic"
    stability: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "stability", _checks.at_least("stability", self.stability, LEAST_STABILITY))

    def charged(self, sigma: float) -> float:
        return sigma

    def to_json(self) -> Any:
        return {"kind": self.kind, "stability": self.stability}


Clipping = Flat | PerLayer | Automatic
FLAT = Flat()
KINDS = tuple(cls.kind for cls in (Flat, PerLayer, Automatic))


def from_json(data: Any) -> Clipping:
    """The inverse of `to_json`; unknown kinds and fields are refused."""
    match data:
        case Flat.kind:
            return FLAT
        case {"kind": PerLayer.kind, "layers": layers, "noise": noise, **others} if not others:
            return PerLayer(layers=layers, noise=noise)
        case {"kind": Automatic.kind, "stability": stability, **others} if not others:
            return Automatic(stability=stability)
        case _:
            raise InvalidArgument(f"unknown clipping {data!r:.80}; known kinds: {', '.join(KINDS)}")


def to_plan_json(clipping: Clipping) -> dict[str, Any]:
    """Named only where it is not flat, so that plans written before there was a choice stay valid."""
    return {} if isinstance(clipping, Flat) else {"clipping": clipping.to_json()}


def require_clipping(value: Any) -> Clipping:
    if not isinstance(value, Flat | PerLayer | Automatic):
        raise InvalidArgument(f"clipping must be Flat(), PerLayer(...) or Automatic(), got {value!r:.80}")
    return value
