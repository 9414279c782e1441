"""What can be said about a run before it begins, from public values alone."""

from dataclasses import dataclass

from apportion.adaptive import AdaptivePlan
from apportion.events import Event, Repeated
from apportion.plan import TrainingPlan

MOST_FORESEEN = 1_000  # epochs of an adaptive plan that are followed


def foreseen_sigmas(plan: TrainingPlan | AdaptivePlan) -> tuple[float, ...]:
    """The noise of every slot; of an adaptive plan, on the course where it falls as fast as it can."""
    return plan.sigmas if isinstance(plan, TrainingPlan) else noise_lowered(plan).sigmas


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The noise of one possible course of an adaptive run; `ends` is False where it goes on beyond what was followed."""

    sigmas: tuple[float, ...]
    ends: bool


def noise_kept(plan: AdaptivePlan) -> Path:
    """The course on which every check finds an improvement, so that the noise never falls."""
    return _course(plan, slope=2 * abs(plan.schedule.threshold) + 1)


def noise_lowered(plan: AdaptivePlan) -> Path:
    """The course on which no check finds an improvement, so that the noise falls as fast as it can."""
    return _course(plan, slope=-2 * abs(plan.schedule.threshold) - 1)


def _course(plan: AdaptivePlan, slope: float) -> Path:
    """Scores that rise or fall by `slope` each time; of equal epochs the ledger would hold a list, here they are counted."""
    sigmas: list[float] = []
    counted: dict[float, tuple[Event, int]] = {}
    most = MOST_FORESEEN if plan.epochs is None else min(plan.epochs, MOST_FORESEEN)
    while len(sigmas) < most:
        scores = [slope * (i + 1) for i in range(len(sigmas) // plan.schedule.every)]
        spent = [Repeated(event=event, count=count) for event, count in counted.values()]
        slot = plan.next_slot(spent, scores, len(sigmas))
        if slot is None:
            return Path(sigmas=tuple(sigmas), ends=True)
        sigmas.append(slot.sigma)
        counted[slot.sigma] = (slot.event, counted.get(slot.sigma, (slot.event, 0))[1] + 1)
    return Path(sigmas=tuple(sigmas), ends=plan.epochs is not None)
