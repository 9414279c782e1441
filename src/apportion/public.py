"""What may steer a run: data declared public, or private data of which each look is paid for."""

from dataclasses import dataclass
from typing import Any

from apportion import _checks
from apportion.errors import DataError
from apportion.events import GaussianRelease


@dataclass(frozen=True, slots=True)
class Public:
    """Data declared public, as (inputs, targets). Decisions while training may depend on it and on nothing else."""

    data: tuple[Any, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.data, tuple | list) or len(self.data) != 2:
            raise DataError(f"Public holds a pair (inputs, targets), got {type(self.data).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidLooks:
    """Private validation data, as (inputs, targets), of which each look is paid for.

    A score is (right answers + N(0, σ²), rounded to a whole number) / `examples`, `examples` being a declared number; each
    look is a Gaussian release with its own event, under the cap of an adaptive plan.
    """

    data: tuple[Any, Any]
    sigma: float
    examples: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", _checks.positive("sigma", self.sigma))
        object.__setattr__(self, "examples", _checks.count("examples", self.examples))

    @property
    def event(self) -> GaussianRelease:
        return GaussianRelease(sigma=self.sigma, purpose="validation")


def require_public(name: str, value: Any) -> Public | PaidLooks:
    """`value`, if it is marked as public or paid for; otherwise an error that names these two ways out."""
    if isinstance(value, Public | PaidLooks):
        return value
    raise DataError(
        f"{name} must be Public(...), got {type(value).__name__}: what it scores steers the training, and so would leak "
        "through the released weights. Either declare it public, Public((inputs, targets)), if nobody's record is in it; "
        "or pay per look, PaidLooks(data=(inputs, targets), sigma=…, examples=…): each score is then a noisy count with an "
        "event of its own in the ledger"
    )
