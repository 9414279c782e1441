"""The closed grammar of what can happen to private data.

An event is one mechanism that ran, as data. Accountants interpret events; events know nothing of accountants. The
meaning of an event, once written here, never changes: a ledger of today must be priced the same way in ten years. A
new mechanism is a new class with a new tag.

Noise multipliers are relative: `sigma` is the noise standard deviation divided by the L2 bound on what one unit adds to
the released sum; where coordinates have bounds of their own (clipping per layer), of the sum with every coordinate divided
by its bound. Leaves describe mechanisms, `Composed`, `Repeated`, `DisjointParts` and `OneOf` combine them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from apportion import _checks
from apportion.errors import InvalidArgument

Adjacency = Literal["add-remove", "zero-out", "replace-one"]
ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)

MAX_NESTING = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianRelease:
    """M(D) = f(D) + N(0, (σΔ)² I), with ‖f(D) − f(D′)‖₂ ≤ Δ when one unit is added, removed or zeroed.

    `replace_one` is the factor by which Δ grows when one unit is replaced: 2 for a sum of bounded vectors (the safe
    default), √2 for histograms and second moments.
    """

    sigma: float
    replace_one: float = 2.0
    purpose: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _checks.positive("sigma", self.sigma))
        object.__setattr__(self, "replace_one", _checks.at_least("replace_one", self.replace_one, 1.0))
        if not re.fullmatch(r"[a-z-]{0,40}", self.purpose):
            raise InvalidArgument(f"purpose must be at most 40 letters a-z and dashes, got {self.purpose!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleEpoch:
    """One pass over a uniformly random permutation cut into k = `batches` disjoint batches of fixed sizes.

    For i = 1…k, adaptively: Mᵢ(D) = Σ_{x in batch i} g(x) + N(0, σ²C²I) with ‖g(x)‖₂ ≤ C. The batch of a record depends
    on the presence of other records, so nothing is claimed when a unit is added or removed.
    """

    sigma: float
    batches: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _checks.positive("sigma", self.sigma))
        object.__setattr__(self, "batches", _checks.count("batches", self.batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEpoch:
    """One pass in which each unit falls, independently and uniformly, into one of k = `batches` secret bins.

    For i = 1…k, adaptively: Mᵢ(D) = Σ_{x in bin i} g(x) + N(0, σ²C²I) with ‖g(x)‖₂ ≤ C. Bins are drawn afresh for every
    epoch and never released.
    """

    sigma: float
    batches: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _checks.positive("sigma", self.sigma))
        object.__setattr__(self, "batches", _checks.count("batches", self.batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonEpoch:
    """`steps` steps, each on a secret sample that every unit enters independently with probability q = `rate`.

    For i = 1…steps, adaptively: Mᵢ(D) = Σ_{x in sample i} g(x) + N(0, σ²C²I) with ‖g(x)‖₂ ≤ C.
    """

    sigma: float
    rate: float
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _checks.positive("sigma", self.sigma))
        object.__setattr__(self, "rate", _checks.rate("rate", self.rate))
        object.__setattr__(self, "steps", _checks.count("steps", self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanism:
    """Outputs candidate i with probability ∝ exp(−ε zᵢ/2), where one unit changes each error zᵢ by at most 1.

    `counts` says that the zᵢ count records, so that adding, removing or zeroing a unit moves all of them the same way.
    """

    epsilon: float
    counts: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _checks.positive("epsilon", self.epsilon))
        if not isinstance(self.counts, bool):
            raise InvalidArgument(f"counts must be true or false, got {self.counts!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedNegativeBinomial:
    """Pr[K = n] ∝ (1 − γ)ⁿ · Π_{l<n} (l + η)/(l + 1), n ≥ 1 (logarithmic law for η = 0, geometric for η = 1)."""

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        eta = _checks.number("eta", self.eta)
        if eta <= -1:
            raise InvalidArgument(f"eta must be greater than -1, got {self.eta!r}")
        object.__setattr__(self, "eta", eta)
        object.__setattr__(self, "gamma", _checks.probability("gamma", self.gamma))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonLaw:
    """Pr[K = n] = e^(−m) mⁿ/n!, n ≥ 0, m = `mean`."""

    mean: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _checks.positive("mean", self.mean))


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatAndSelect:
    """`base` is run K times independently, K drawn from `runs` and kept secret; only the best output is released.

    `base` includes the private score by which the best is chosen.
    """

    base: "Event"
    runs: TruncatedNegativeBinomial | PoissonLaw

    def __post_init__(self) -> None:
        _require_event("base", self.base)
        if not isinstance(self.runs, TruncatedNegativeBinomial | PoissonLaw):
            raise InvalidArgument(f"runs must be a TruncatedNegativeBinomial or a PoissonLaw, got {self.runs!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPrivate:
    """Something computed from the data without noise. Its cost is infinite under every accountant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """All of `events`, each allowed to depend on the outputs of those before it; their parameters are fixed."""

    events: tuple["Event", ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        for event in self.events:
            _require_event("events", event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """`event`, `count` times, composed."""

    event: "Event"
    count: int

    def __post_init__(self) -> None:
        _require_event("event", self.event)
        object.__setattr__(self, "count", _checks.count("count", self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class DisjointParts:
    """Each of `parts` runs on its own part of the data.

    A unit's part is drawn by a coin that looks neither at other units nor at the unit's own data, so that adding,
    removing, zeroing or replacing it touches one part only.
    """

    parts: tuple["Event", ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts:
            raise InvalidArgument("parts must hold at least one event")
        for part in self.parts:
            _require_event("parts", part)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """Exactly one of `options` runs.

    Which one may be decided by a coin or by outputs released before, all of which are paid for; the data has no other say
    in it.
    """

    options: tuple["Event", ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(self.options))
        if not self.options:
            raise InvalidArgument("options must hold at least one event")
        for option in self.options:
            _require_event("options", option)


Leaf = (
    GaussianRelease | ShuffleEpoch | PartitionEpoch | PoissonEpoch | ExponentialMechanism | RepeatAndSelect | NonPrivate
)
Event = Leaf | Composed | Repeated | DisjointParts | OneOf

# The tag of each class in a ledger. Tags are forever; a class without a line here cannot be recorded.
TAGS: Mapping[str, type] = {
    "gaussian-release": GaussianRelease,
    "shuffle-epoch": ShuffleEpoch,
    "partition-epoch": PartitionEpoch,
    "poisson-epoch": PoissonEpoch,
    "exponential-mechanism": ExponentialMechanism,
    "repeat-and-select": RepeatAndSelect,
    "truncated-negative-binomial": TruncatedNegativeBinomial,
    "poisson-law": PoissonLaw,
    "non-private": NonPrivate,
    "composed": Composed,
    "repeated": Repeated,
    "disjoint-parts": DisjointParts,
    "one-of": OneOf,
}
_TAG_OF = {cls: tag for tag, cls in TAGS.items()}


def _require_event(name: str, value: Any) -> None:
    if not isinstance(value, get_args(Event)):
        raise InvalidArgument(f"{name} must hold events, got {value!r}")


def to_json(event: Any) -> dict[str, Any]:
    """The event as plain JSON data, tagged by `kind`."""
    if type(event) not in _TAG_OF:
        raise InvalidArgument(f"not an event: {event!r}")

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return to_json(value) if type(value) in _TAG_OF else value

    return {"kind": _TAG_OF[type(event)]} | {field.name: plain(getattr(event, field.name)) for field in fields(event)}


def from_json(data: Any) -> Event:
    """The inverse of `to_json`. Unknown kinds, unknown fields and missing fields are refused."""
    event = _from_json(data, MAX_NESTING)
    _require_event("kind", event)
    return event  # type: ignore[no-any-return]  # narrowed by _require_event


def law_from_json(data: Any) -> TruncatedNegativeBinomial | PoissonLaw:
    """A law of the number of runs, by itself."""
    law = _from_json(data, 1)
    if not isinstance(law, TruncatedNegativeBinomial | PoissonLaw):
        raise InvalidArgument(f"runs must be a law of a number of runs, got {data!r:.80}")
    return law


def _from_json(data: Any, depth: int) -> Any:
    if depth == 0:
        raise InvalidArgument(f"an event may be nested at most {MAX_NESTING} levels deep")
    if not isinstance(data, Mapping):
        raise InvalidArgument(f"an event must be a JSON object, got {data!r:.80}")
    kind = data.get("kind")
    cls = TAGS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InvalidArgument(f"unknown event kind {kind!r:.80}; known: {', '.join(TAGS)}")
    expected = {field.name for field in fields(cls)}
    found = set(data) - {"kind"}
    if found != expected:
        raise InvalidArgument(f"{kind} must have the fields {sorted(expected)}, got {sorted(map(str, found))!r:.200}")

    def rich(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(_from_json(item, depth - 1) for item in value)
        return _from_json(value, depth - 1) if isinstance(value, Mapping) else value

    return cls(**{name: rich(data[name]) for name in expected})
