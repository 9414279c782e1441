"""Noise schedules: epoch index (from 0) in, noise multiplier out. Pure and frozen: the same answer tomorrow.

`ValidationDecay` is the adaptive one: the recorded public scores in, noise multiplier out, just as pure.

A schedule may leave `sigma0` or `decay` unknown (None) for `apportion.solve` to find; calling such a schedule raises.
To add a schedule: a frozen dataclass like those below, with its formula in `_sigma`, and its name in `PLAIN_KINDS`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self

from apportion import _checks
from apportion.errors import InvalidArgument


class Schedule(Protocol):
    """What a plan needs of a schedule."""

    kind: ClassVar[str]

    def __call__(self, epoch: int) -> float: ...
    def unknowns(self) -> tuple[str, ...]: ...
    def with_value(self, name: str, value: float) -> "Schedule": ...
    def decay_at(self, position: float) -> float: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decaying:
    """What all schedules share: an initial noise multiplier, perhaps a decay, and how they are written down."""

    kind: ClassVar[str]
    sigma0: float | None = None

    def __post_init__(self) -> None:
        if self.sigma0 is not None:
            object.__setattr__(self, "sigma0", _checks.positive("sigma0", self.sigma0))

    def __call__(self, epoch: int) -> float:
        epoch = _checks.count("epoch", epoch, least=0)
        if self.unknowns():
            raise InvalidArgument(
                f"{type(self).__name__}.{self.unknowns()[0]} is not known yet; apportion.solve finds it"
            )
        return self._sigma(epoch)

    def _sigma(self, epoch: int) -> float:
        raise AssertionError("every schedule defines its own")

    def unknowns(self) -> tuple[str, ...]:
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is None)

    def with_value(self, name: str, value: float) -> Self:
        return replace(self, **{name: value})

    def decay_at(self, position: float) -> float:
        """Decays ordered from the cheapest (position → −∞) to the dearest (position → ∞), for the solver."""
        return math.exp(position)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind} | {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(_Decaying):
    """σ_t = σ₀."""

    kind: ClassVar[str] = "uniform"

    def _sigma(self, epoch: int) -> float:
        assert self.sigma0 is not None
        return self.sigma0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeDecay(_Decaying):
    """σ_t = σ₀ / (1 + k⌊t/period⌋), k = `decay` > 0."""

    kind: ClassVar[str] = "time"
    decay: float | None = None
    period: int = 1

    def __post_init__(self) -> None:
        _Decaying.__post_init__(self)
        _check_decay(self, _checks.positive)

    def _sigma(self, epoch: int) -> float:
        assert self.sigma0 is not None
        assert self.decay is not None
        return self.sigma0 / (1 + self.decay * (epoch // self.period))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDecay(_Decaying):
    """σ_t = σ₀ e^(−k⌊t/period⌋), k = `decay` > 0."""

    kind: ClassVar[str] = "exponential"
    decay: float | None = None
    period: int = 1

    def __post_init__(self) -> None:
        _Decaying.__post_init__(self)
        _check_decay(self, _checks.positive)

    def _sigma(self, epoch: int) -> float:
        assert self.sigma0 is not None
        assert self.decay is not None
        return self.sigma0 * math.exp(-self.decay * (epoch // self.period))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecay(_Decaying):
    """σ_t = σ₀ k^⌊t/period⌋, 0 < k = `decay` < 1."""

    kind: ClassVar[str] = "step"
    decay: float | None = None
    period: int

    def __post_init__(self) -> None:
        _Decaying.__post_init__(self)
        _check_decay(self, _checks.probability)

    def _sigma(self, epoch: int) -> float:
        assert self.sigma0 is not None
        assert self.decay is not None
        return self.sigma0 * self.decay ** (epoch // self.period)

    def decay_at(self, position: float) -> float:
        return math.exp(-math.exp(position))  # a factor near 1 is cheap, near 0 dear


@dataclass(frozen=True, slots=True, kw_only=True)
class PolynomialDecay(_Decaying):
    """σ_t = (σ₀ − σ_end)(1 − t/period)^k + σ_end for t < period, then σ_end; k = `decay` > 0 and σ_end < σ₀."""

    kind: ClassVar[str] = "polynomial"
    decay: float | None = None
    period: int
    sigma_end: float

    def __post_init__(self) -> None:
        _Decaying.__post_init__(self)
        _check_decay(self, _checks.positive)
        object.__setattr__(self, "sigma_end", _checks.positive("sigma_end", self.sigma_end))
        if self.sigma0 is not None and self.sigma0 <= self.sigma_end:
            raise InvalidArgument(f"sigma0 must be greater than sigma_end = {self.sigma_end:g}, got {self.sigma0:g}")

    def _sigma(self, epoch: int) -> float:
        assert self.sigma0 is not None
        assert self.decay is not None
        left = max(0.0, 1 - epoch / self.period)
        return float((self.sigma0 - self.sigma_end) * left**self.decay + self.sigma_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """`schedule` between two epochs, constant before `start` and from `end` on.

    >>> hold = Hold(schedule=ExponentialDecay(sigma0=10.0, decay=0.1), start=5, end=20)
    >>> hold(0) == hold(5) == 10.0, hold(20) == hold(99)
    (True, True)
    """

    kind: ClassVar[str] = "hold"
    schedule: "Uniform | TimeDecay | ExponentialDecay | StepDecay | PolynomialDecay"
    start: int = 0
    end: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, _Decaying):
            raise InvalidArgument(f"schedule must be one of {', '.join(PLAIN_KINDS)}; got {self.schedule!r}")
        object.__setattr__(self, "start", _checks.count("start", self.start, least=0))
        if self.end is not None:
            object.__setattr__(self, "end", _checks.count("end", self.end, least=self.start))

    def __call__(self, epoch: int) -> float:
        epoch = _checks.count("epoch", epoch, least=0)
        last = epoch if self.end is None else min(epoch, self.end)
        return self.schedule(max(last - self.start, 0))

    def unknowns(self) -> tuple[str, ...]:
        return self.schedule.unknowns()

    def with_value(self, name: str, value: float) -> "Hold":
        return replace(self, schedule=self.schedule.with_value(name, value))

    def decay_at(self, position: float) -> float:
        return self.schedule.decay_at(position)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "schedule": self.schedule.to_json(), "start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationDecay:
    """σ ← k·σ whenever the public validation score has stopped improving (k = `decay`).

    The model is scored after every `every`-th epoch; S₀ = 0 stands for the untrained model and is the first score. Each
    time the number of scores reaches a multiple of `period`, the mean of the last `window` of them is compared with the
    mean at the check before (0 at first): an improvement of at most `threshold` lowers the noise. So with `every` = 1
    a check falls just before the epochs number `period`, 2·`period`, … (counted from 1).

    >>> decay = ValidationDecay(sigma0=10.0, decay=0.5, period=2, window=1)
    >>> decay([]), decay([0.8]), decay([0.8, 0.8]), decay([0.8, 0.8, 0.8])
    (10.0, 10.0, 10.0, 5.0)
    """

    kind: ClassVar[str] = "validation"
    sigma0: float
    decay: float
    period: int
    window: int = 5
    threshold: float = 0.01
    every: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma0", _checks.positive("sigma0", self.sigma0))
        object.__setattr__(self, "decay", _checks.probability("decay", self.decay))
        object.__setattr__(self, "threshold", _checks.number("threshold", self.threshold))
        for name in ("period", "window", "every"):
            object.__setattr__(self, name, _checks.count(name, getattr(self, name)))

    def __call__(self, scores: Sequence[float]) -> float:
        """The noise multiplier of the next epoch, given the scores so far (without S₀)."""
        known = [0.0, *scores]
        sigma, before = self.sigma0, 0.0
        for count in range(self.period, len(known) + 1, self.period):
            if count == 1:
                continue  # S₀ alone is what the next check is compared with, not a check
            recent = known[max(0, count - self.window) : count]
            now = math.fsum(recent) / len(recent)
            if now - before <= self.threshold:
                sigma *= self.decay
            before = now
        return sigma

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind} | {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, data: Any) -> "ValidationDecay":
        """The inverse of `to_json`; unknown and missing fields are refused."""
        expected = {"kind"} | {field.name for field in fields(cls)}
        if not isinstance(data, Mapping) or set(data) != expected or data["kind"] != cls.kind:
            raise InvalidArgument(f"a validation schedule must have the fields {sorted(expected)}, got {data!r:.200}")
        return cls(**{name: value for name, value in data.items() if name != "kind"})


PLAIN_KINDS: Mapping[str, type] = {
    cls.kind: cls for cls in (Uniform, TimeDecay, ExponentialDecay, StepDecay, PolynomialDecay)
}


def from_json(data: Any) -> Schedule:
    """The inverse of `to_json`; unknown kinds and fields are refused."""
    if not isinstance(data, Mapping):
        raise InvalidArgument(f"a schedule must be a JSON object, got {data!r:.80}")
    kind = data.get("kind")
    values = {name: value for name, value in data.items() if name != "kind"}
    if kind == Hold.kind:
        if set(values) != {"schedule", "start", "end"}:
            raise InvalidArgument(f"hold must have the fields schedule, start and end, got {sorted(values)!r:.200}")
        inner = from_json(values.pop("schedule"))
        return Hold(schedule=inner, **values)  # type: ignore[arg-type]  # Hold checks the kind itself
    cls = PLAIN_KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InvalidArgument(f"unknown schedule kind {kind!r:.80}; known: {', '.join(PLAIN_KINDS)}, hold")
    expected = {field.name for field in fields(cls)}
    if set(values) != expected:
        raise InvalidArgument(f"{kind} must have the fields {sorted(expected)}, got {sorted(map(str, values))!r:.200}")
    return cls(**values)  # type: ignore[no-any-return]  # one of PLAIN_KINDS


def _check_decay(schedule: Any, valid: Any) -> None:
    if schedule.decay is not None:
        object.__setattr__(schedule, "decay", valid("decay", schedule.decay))
    object.__setattr__(schedule, "period", _checks.count("period", schedule.period))
