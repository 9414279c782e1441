"""The private components of a pipeline besides training, as a plan declares them before the data is touched.

A component here is public: what will be released and with how much noise. What computes it is `apportion.components`.
To add one: a class with its `kind`, its `event` and a line in `COMPONENTS`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from apportion import _checks
from apportion.errors import InvalidArgument
from apportion.events import Event, GaussianRelease, NonPrivate

MOST_COMPONENTS = 100
MOST_SIGMA = 8192.0  # beyond it noise in floating point is coarser than the whole numbers to which it is added


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalComponents:
    """The `dimensions` leading eigenvectors of noisy second moments: the first layer of the model, frozen.

    Each row is clipped to norm 1 first. With `sigma=0` there is no noise and no privacy, for baselines: the event is then
    one of infinite cost, which no budget admits.
    """

    kind: ClassVar[str] = "pca"

    dimensions: int
    sigma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimensions", _checks.count("dimensions", self.dimensions))
        object.__setattr__(self, "sigma", checked_sigma(self.sigma))

    @property
    def event(self) -> Event:
        """Frobenius sensitivity 1, and √2 when a row is replaced; the proof is in `components.pca`."""
        return gaussian(self.sigma, self.kind, replace_one=math.sqrt(2))


ScalingMethod = Literal["standard", "quantiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Shift and scale of every feature, from noisy statistics within a declared range: a frozen layer of the model.

    `method` is "standard" (means and variances) or "quantiles" (median and interquartile range, from noisy histograms of
    `bins` bins). Each feature is clipped to `low` … `high` for the statistics; what is scaled is the feature itself.
    """

    kind: ClassVar[str] = "scaling"

    sigma: float
    method: ScalingMethod = "standard"
    low: float = -1.0
    high: float = 1.0
    bins: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", checked_sigma(self.sigma))
        _checks.choice("method", self.method, get_args(ScalingMethod))
        object.__setattr__(self, "low", _checks.number("low", self.low))
        object.__setattr__(self, "high", _checks.number("high", self.high))
        if not 0 < self.high - self.low < math.inf:
            raise InvalidArgument(f"scaling needs low < high, got {self.low:g} and {self.high:g}")
        object.__setattr__(self, "bins", _checked_bins(self.bins))

    @property
    def event(self) -> Event:
        """Replacing a record moves the statistics by at most √2 times what adding one does: see `components.scaling`."""
        return gaussian(self.sigma, self.kind, replace_one=math.sqrt(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassWeights:
    """Weights of the classes in the loss, inverse to noisy class counts, between 1/`most` and `most`."""

    kind: ClassVar[str] = "class-weights"

    sigma: float
    most: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", checked_sigma(self.sigma))
        object.__setattr__(self, "most", _checks.at_least("most", self.most, 1.0))

    @property
    def event(self) -> Event:
        """A histogram: one record moves one count by one, a replaced one moves two."""
        return gaussian(self.sigma, self.kind, replace_one=math.sqrt(2))


Measure = Literal["confusion", "calibration", "auroc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateEvaluation:
    """Noisy counts of right and wrong answers on held-out records and, by `measures`, the tables behind other scores.

    `bins` is the number of bins of predicted probabilities, for calibration and AUROC.
    """

    kind: ClassVar[str] = "evaluation"

    sigma: float
    measures: tuple[Measure, ...] = ()
    bins: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _checks.positive("sigma", checked_sigma(self.sigma)))
        object.__setattr__(self, "measures", tuple(self.measures))
        for measure in self.measures:
            _checks.choice("measures", measure, get_args(Measure))
        if len(set(self.measures)) != len(self.measures):
            raise InvalidArgument(f"measures must differ, got {', '.join(self.measures)}")
        object.__setattr__(self, "bins", _checked_bins(self.bins))

    @property
    def event(self) -> Event:
        """Histograms in each of which one record moves one count, a replaced one two: see `components.evaluation`."""
        return gaussian(self.sigma, self.kind, replace_one=math.sqrt(2))


Component = PrincipalComponents | Scaling | ClassWeights | PrivateEvaluation

COMPONENTS: Mapping[str, type[Component]] = {
    cls.kind: cls for cls in (PrincipalComponents, Scaling, ClassWeights, PrivateEvaluation)
}
_MOST_BINS = 1000


def checked_sigma(sigma: float) -> float:
    value = _checks.at_least("sigma", sigma, 0.0)
    if value > MOST_SIGMA:
        raise InvalidArgument(f"sigma of a component must be at most {MOST_SIGMA:g}, got {sigma!r:.40}")
    return value


def _checked_bins(bins: int) -> int:
    if _checks.count("bins", bins, least=2) > _MOST_BINS:
        raise InvalidArgument(f"bins must be at most {_MOST_BINS}, got {bins!r:.40}")
    return bins


def gaussian(sigma: float, purpose: str, *, replace_one: float) -> Event:
    """A Gaussian release; without noise, an event of infinite cost."""
    return GaussianRelease(sigma=sigma, replace_one=replace_one, purpose=purpose) if sigma else NonPrivate()


def checked(components: Sequence[Component]) -> tuple[Component, ...]:
    """The components of a plan, in the order in which they run."""
    found = tuple(components)
    for component in found:
        if type(component) not in COMPONENTS.values():
            raise InvalidArgument(f"components must hold {', '.join(COMPONENTS)}, got {component!r:.80}")
    if any(isinstance(component, PrivateEvaluation) for component in found[:-1]):
        raise InvalidArgument("an evaluation is of the released weights: it must be the last of the components")
    if len(found) > MOST_COMPONENTS:
        raise InvalidArgument(f"a plan has at most {MOST_COMPONENTS} components, got {len(found)}")
    return found


def prepares(component: Component) -> bool:
    """Whether it runs before the first epoch; an evaluation is of the released weights."""
    return not isinstance(component, PrivateEvaluation)


def events_of(components: Sequence[Component]) -> tuple[Event, ...]:
    return tuple(component.event for component in components)


def to_json(components: Sequence[Component]) -> dict[str, Any]:
    """A plan's field of this name, which is absent where there are none."""
    if not components:
        return {}
    return {
        "components": [{"kind": c.kind} | {f.name: _plain(getattr(c, f.name)) for f in fields(c)} for c in components]
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def from_json(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Component, ...]]:
    """A plan's other fields, and its components."""
    others = dict(data)
    given = others.pop("components", None)
    if given is None and "components" not in data:
        return others, ()
    if not isinstance(given, list) or not 0 < len(given) <= MOST_COMPONENTS:
        raise InvalidArgument(f"components must be a list of 1 to {MOST_COMPONENTS} components, or left out")
    return others, tuple(_component(item) for item in given)


def _component(data: Any) -> Component:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    cls = COMPONENTS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InvalidArgument(f"a component's kind must be one of {', '.join(COMPONENTS)}, got {kind!r:.80}")
    values: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in data.items() if name != "kind"
    }
    expected = {field.name for field in fields(cls)}
    if set(values) != expected:
        raise InvalidArgument(f"{kind} must have the fields {sorted(expected)}, got {sorted(map(str, values))!r:.200}")
    return cls(**values)
