"""The cap on privacy loss, fixed before the data is touched."""

from dataclasses import dataclass
from typing import Any

from apportion import _checks
from apportion.errors import InvalidArgument

# Relative slack when a sum is compared with the budget. σ = √(T/(2ρ)) summed over T epochs lands a rounding error
# above ρ for many T; without the slack the last epoch would be lost. What was really spent is what is reported.
RELATIVE_SLACK = 1e-12

DEFAULT_DELTA = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Either a zCDP budget `rho`, or an (`epsilon`, `delta`) budget.

    With `rho`, `delta` does not limit anything: it is only where ε is stated (1e-5 unless given).
    """

    rho: float | None = None
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        if (self.rho is None) == (self.epsilon is None):
            raise InvalidArgument("a budget is either rho=… or epsilon=…, delta=…: give exactly one of rho and epsilon")
        if self.rho is not None:
            object.__setattr__(self, "rho", _checks.positive("rho", self.rho))
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", _checks.positive("epsilon", self.epsilon))
            if self.delta is None:
                raise InvalidArgument("an epsilon budget needs its delta, for example Budget(epsilon=3.0, delta=1e-5)")
        delta = DEFAULT_DELTA if self.delta is None else self.delta
        object.__setattr__(self, "delta", _checks.probability("delta", delta))

    @property
    def stated_delta(self) -> float:
        """The δ at which ε is stated, whichever kind of budget this is."""
        assert self.delta is not None
        return self.delta

    @property
    def limit(self) -> float:
        """The capped number itself: ρ or ε."""
        limit = self.rho if self.rho is not None else self.epsilon
        assert limit is not None
        return limit

    def admits(self, spent: float) -> bool:
        """Whether a total of `spent` (in the budget's own unit) stays within the budget."""
        return spent <= self.limit * (1 + RELATIVE_SLACK)

    def __str__(self) -> str:
        if self.rho is not None:
            return f"rho = {self.rho:g}"
        return f"epsilon = {self.epsilon:g} at delta = {self.delta:g}"

    def to_json(self) -> dict[str, Any]:
        capped = {"rho": self.rho} if self.rho is not None else {"epsilon": self.epsilon}
        return {**capped, "delta": self.delta}
