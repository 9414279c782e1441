"""What people compare: every accountant on the same noise, the invalid ones included and marked, as in the paper's figures.

Nothing here certifies. An invalid entry says why it is invalid; it exists so that a figure can show what treating one
batching as another would claim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apportion.accounting import COMPARED, PROVEN
from apportion.accounting.accountant import Accountant
from apportion.accounting.composition import StrongCompositionBestSplit
from apportion.accounting.gaussian import Gaussian
from apportion.accounting.loss_distribution import LossDistribution
from apportion.accounting.moments import Moments
from apportion.accounting.paper_estimate import PaperEstimate
from apportion.accounting.renyi import Renyi
from apportion.accounting.zcdp import ZeroConcentrated
from apportion.batching import Batching, Partition, Poisson, Shuffle
from apportion.errors import UnpricedEvent
from apportion.events import Adjacency, Composed, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One accountant's ε for one setting, or the reason why it has none, or why it does not hold."""

    accountant: str
    epsilon: float | None
    epsilon_lower: float | None
    adjacency: Adjacency
    status: str
    reason: str = ""
    details: dict[str, Any]

    @property
    def valid(self) -> bool:
        return not self.reason

    def to_json(self) -> dict[str, Any]:
        lower = {} if self.epsilon_lower is None else {"epsilon_lower": self.epsilon_lower}
        reason = {"reason": self.reason} if self.reason else {}
        return {
            "accountant": self.accountant,
            "epsilon": self.epsilon,
            **lower,
            "adjacency": self.adjacency,
            "status": self.status,
            "valid": self.valid,
            **reason,
            **self.details,
        }


def compare(
    batching: Batching, sigmas: Sequence[float], delta: float, adjacency: Adjacency, *, everything: bool = False
) -> tuple[Entry, ...]:
    """The valid entries, smallest ε first; with `everything`, the invalid ones after them."""
    event = _event(batching, sigmas)
    accountants: list[Accountant[Any]] = [cls(adjacency) for cls in PROVEN + COMPARED]
    if everything:
        accountants.append(StrongCompositionBestSplit(adjacency))
    entries = [_entry(accountant, event, delta) for accountant in accountants]
    valid = sorted((e for e in entries if e.valid), key=lambda e: e.epsilon if e.epsilon is not None else 0.0)
    if not everything:
        return tuple(valid)
    misused = _as_another_batching(batching, sigmas, delta, adjacency)
    named = {entry.accountant for entry in misused}
    refused = [entry for entry in entries if not entry.valid and entry.accountant not in named]
    return (*valid, *misused, *refused)


def _event(batching: Batching, sigmas: Sequence[float]) -> Event:
    return Composed(events=tuple(batching.at(epoch).event(sigma) for epoch, sigma in enumerate(sigmas)))


def _entry(accountant: Accountant[Any], event: Event, delta: float, reason: str = "") -> Entry:
    try:
        found = accountant.guarantee(event, delta)
    except UnpricedEvent as refusal:
        return Entry(
            accountant=accountant.name,
            epsilon=None,
            epsilon_lower=None,
            adjacency=accountant.adjacency,
            status=accountant.status,
            reason=reason or str(refusal),
            details={},
        )
    return Entry(
        accountant=found.accountant,
        epsilon=found.epsilon,
        epsilon_lower=found.epsilon_lower,
        adjacency=found.adjacency,
        status=found.status,
        reason=reason,
        details=dict(found.details),
    )


def _as_another_batching(
    batching: Batching, sigmas: Sequence[float], delta: float, adjacency: Adjacency
) -> list[Entry]:
    if batching.at(0) is not batching:
        return []  # of a batch size that changes with the epoch there is no figure to compare with
    if isinstance(batching, Poisson):
        event = _event(Shuffle(batches=batching.steps), sigmas)
        why = "not valid: priced as one pass over disjoint batches, but these are independent samples"
        cheated: list[Accountant[Any]] = [ZeroConcentrated("zero-out"), Gaussian("zero-out")]
        entries = [_entry(accountant, event, delta, why) for accountant in cheated]
        try:
            PaperEstimate(adjacency).cost(_event(batching, sigmas))
        except UnpricedEvent as refusal:
            entries.append(
                _entry(PaperEstimate(adjacency, outside_its_range=True), _event(batching, sigmas), delta, str(refusal))
            )
        return entries
    event = _event(Poisson(rate=1 / batching.steps), sigmas)
    why = f"not valid: priced as if batches were Poisson samples of rate 1/{batching.steps}, but they are not"
    cheated = [Moments("add-remove"), PaperEstimate("add-remove", outside_its_range=True)]
    if not isinstance(batching, Partition):
        cheated += [LossDistribution("add-remove"), Renyi("add-remove")]
    return [_entry(accountant, event, delta, why) for accountant in cheated]
