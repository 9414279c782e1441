"""Many trials in a few numbers: means with their extremes, and the share of the gap that a schedule closes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from experiments.experiment import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean, smallest and largest of `count` trials."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        """
        >>> str(Spread(mean=0.93, low=0.92, high=0.94, count=3))
        '.930 (.920–.940)'
        """
        if self.count == 1:
            return short(self.mean)
        return f"{short(self.mean)} ({short(self.low)}–{short(self.high)})"


def short(accuracy: float) -> str:
    return f"{accuracy:.3f}".removeprefix("0")


def spread(values: Sequence[float]) -> Spread:
    return Spread(mean=fmean(values), low=min(values), high=max(values), count=len(values))


def final(records: Sequence[Record], part: str) -> Spread:
    """Accuracy after the last epoch."""
    return spread([record.result[part][-1] for record in records])


def curve(records: Sequence[Record], part: str) -> list[tuple[float, float]]:
    """The mean over trials after each epoch, as far as all of them go."""
    length = min(len(record.result[part]) for record in records)
    return [(epoch + 1, fmean(record.result[part][epoch] for record in records)) for epoch in range(length)]


def share_of_gap(private: float, uniform: float, non_private: float) -> float | None:
    """How much of the way from uniform noise to no noise a schedule goes; None where there is no way to go.

    >>> round(share_of_gap(0.931, 0.919, 0.970), 3)
    0.235
    """
    gap = non_private - uniform
    return (private - uniform) / gap if gap > 0 else None


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
