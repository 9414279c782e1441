"""The private components of a pipeline besides training, as a plan declares them before the data is touched.

A component here is public: what will be released and with how much noise. What computes it is `apportion.components`.
To add one: a class with its `kind`, its `event` and a line in `COMPONENTS`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from apportion import _checks
from apportion.errors import InvalidArgument
from apportion.events import Event, GaussianRelease, NonPrivate

MOST_COMPONENTS = 100
MOST_SIGMA = 1e6  # beyond it noise would not fit the whole numbers to which it is added, nor serve any purpose


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


Component = PrincipalComponents

COMPONENTS: Mapping[str, type[Component]] = {cls.kind: cls for cls in (PrincipalComponents,)}


def checked_sigma(sigma: float) -> float:
    value = _checks.at_least("sigma", sigma, 0.0)
    if value > MOST_SIGMA:
        raise InvalidArgument(f"sigma of a component must be at most {MOST_SIGMA:g}, got {sigma!r:.40}")
    return value


def gaussian(sigma: float, purpose: str, *, replace_one: float) -> Event:
    """A Gaussian release; without noise, an event of infinite cost."""
    return GaussianRelease(sigma=sigma, replace_one=replace_one, purpose=purpose) if sigma else NonPrivate()


def checked(components: Sequence[Component]) -> tuple[Component, ...]:
    """The components of a plan, in the order in which they run."""
    found = tuple(components)
    for component in found:
        if type(component) not in COMPONENTS.values():
            raise InvalidArgument(f"components must hold {', '.join(COMPONENTS)}, got {component!r:.80}")
    if len(found) > MOST_COMPONENTS:
        raise InvalidArgument(f"a plan has at most {MOST_COMPONENTS} components, got {len(found)}")
    return found


def events_of(components: Sequence[Component]) -> tuple[Event, ...]:
    return tuple(component.event for component in components)


def to_json(components: Sequence[Component]) -> dict[str, Any]:
    """A plan's field of this name, which is absent where there are none."""
    if not components:
        return {}
    return {"components": [{"kind": c.kind} | {f.name: getattr(c, f.name) for f in fields(c)} for c in components]}


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
    values = {name: value for name, value in data.items() if name != "kind"}
    expected = {field.name for field in fields(cls)}
    if set(values) != expected:
        raise InvalidArgument(f"{kind} must have the fields {sorted(expected)}, got {sorted(map(str, values))!r:.200}")
    return cls(**values)
