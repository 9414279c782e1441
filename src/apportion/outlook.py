"""What can be said about a run before it begins, from public values alone: how loud the noise is, what would change it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from apportion import _checks, by_epoch, stages
from apportion.adaptive import AdaptivePlan, best_order
from apportion.batching import Batching, Poisson, Shuffle
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.events import Event, Repeated
from apportion.plan import TrainingPlan

MOST_FORESEEN = 1_000  # epochs of an adaptive plan that are followed
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """How the noise compares with what it hides.

    A step's noise has the length σ·clip·√parameters / batch, the mean of a batch's clipped gradients at most the length
    clip; `first` and `last` are the ratio of the two in the first and last epoch, `batch` is the first epoch's.
    `overall` is that ratio for all steps together: noise adds up like a random walk, gradients that agree add up in full.
    All are at best: gradients that are shorter than `clip`, or point in different directions, carry less. The clipping
    norm cancels out.
    """

    parameters: int
    batch: float
    epochs: int
    steps: int
    sigma_first: float
    sigma_last: float
    first: float
    last: float
    overall: float

    def to_json(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def signal(plan: TrainingPlan | AdaptivePlan, parameters: int) -> Signal:
    """Noise against signal for a model with this many trainable parameters."""
    return _signal(plan, foreseen_sigmas(plan), plan.batching, parameters)


def _signal(plan: TrainingPlan | AdaptivePlan, sigmas: Sequence[float], batching: Batching, parameters: int) -> Signal:
    epochs = [batching.at(index) for index in range(len(sigmas))]
    length = math.sqrt(_checks.count("parameters", parameters))
    ratios = [
        plan.clipping.charged(sigma) * length / epoch.nominal_batch_size(plan.examples)
        for sigma, epoch in zip(sigmas, epochs, strict=True)
    ]
    steps = sum(epoch.steps for epoch in epochs)
    walk = math.sqrt(math.fsum(epoch.steps * ratio**2 for epoch, ratio in zip(epochs, ratios, strict=True)))
    return Signal(
        parameters=parameters,
        batch=epochs[0].nominal_batch_size(plan.examples),
        epochs=len(sigmas),
        steps=steps,
        sigma_first=sigmas[0],
        sigma_last=sigmas[-1],
        first=ratios[0],
        last=ratios[-1],
        overall=walk / steps,
    )


def alternatives(plan: TrainingPlan | AdaptivePlan, parameters: int) -> Iterator[tuple[str, Signal]]:
    """What larger batches and other numbers of epochs would change for the same budget, in words and numbers.

    The noise of a fixed plan is scaled so that the budget is spent again, by an estimate (see `_scaled`): `apportion plan`
    solves it properly. An adaptive plan keeps its noise, and its cap reaches elsewhere.
    """
    for factor, words in ((2, "batch × 2"), (4, "batch × 4")):
        larger = _larger_batches(plan.batching, factor)
        if larger is None:
            continue
        if isinstance(plan, TrainingPlan):
            yield words, _signal(plan, _scaled(plan, larger, plan.epochs), larger, parameters)
        else:
            yield from _still_capped(words, plan, larger, parameters)
    if isinstance(plan, TrainingPlan):
        for epochs, words in ((plan.epochs // 2, "epochs ÷ 2"), (2 * plan.epochs, "epochs × 2")):
            if epochs >= 1:
                yield words, _signal(plan, _scaled(plan, plan.batching, epochs), plan.batching, parameters)


def _larger_batches(batching: Batching, factor: int) -> Batching | None:
    try:
        if isinstance(batching, Poisson):
            return Poisson(rate=by_epoch.checked(lambda _, rate: float(rate * factor), "rate", batching.rate))
        fewer = by_epoch.checked(lambda _, batches: int(batches // factor), "batches", batching.batches)
        return replace(batching, batches=fewer)
    except InvalidArgument:
        return None  # there is nothing larger than all records


def _still_capped(words: str, plan: AdaptivePlan, batching: Batching, parameters: int) -> Iterator[tuple[str, Signal]]:
    order = plan.order
    if order is not None:
        order = best_order(plan.budget, batching, plan.schedule, plan.neighbours, plan.clipping)
    try:
        yield words, signal(replace(plan, batching=batching, order=order), parameters)
    except (BudgetExhausted, InvalidArgument):
        return  # the budget does not allow it


def _scaled(plan: TrainingPlan, batching: Batching, epochs: int) -> tuple[float, ...]:
    """The schedule over `epochs` epochs, times what makes it cost about as much as the plan.

    An estimate, nothing that is certified: by the central limit theorem an epoch of k amplified steps tends to a Gaussian
    release with μ² = (e^(1/σ²) − 1)/k (Bu, Dong, Long and Su 2020, arXiv 1911.11607), one without amplification is one
    with μ² = 1/σ². Only the ratio of two such costs is used, which takes
    most of the error out: it is some per cent near σ = 1, and more below.
    """
    shape = [plan.schedule(epoch) for epoch in range(epochs)]
    limit = _squared_mu(plan, plan.batching, foreseen_sigmas(plan), 1.0)
    low, high = 1e-3, 1e6
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _squared_mu(plan, batching, shape, middle) > limit else (low, middle)
    return tuple(high * sigma for sigma in shape)


def _squared_mu(plan: TrainingPlan, batching: Batching, sigmas: Sequence[float], scale: float) -> float:
    amplified = not isinstance(batching, Shuffle) and plan.neighbours != "replace-one"
    inverses = [1 / (scale * plan.clipping.charged(sigma)) ** 2 for sigma in sigmas]
    if not amplified:
        return math.fsum(inverses)
    if max(inverses) > _LARGEST_EXPONENT:
        return math.inf
    return math.fsum(math.expm1(inverse) / batching.at(index).steps for index, inverse in enumerate(inverses))


def foreseen_sigmas(plan: TrainingPlan | AdaptivePlan) -> tuple[float, ...]:
    """The noise of every epoch; of an adaptive plan, on the course where it falls as fast as it can."""
    return plan.sigmas[: plan.epochs] if isinstance(plan, TrainingPlan) else noise_lowered(plan).sigmas


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
        epochs = (Repeated(event=event, count=count) for event, count in counted.values())
        spent = [*stages.events_of(plan.components), *epochs]
        slot = plan.next_slot(spent, scores, len(sigmas))
        if slot is None:
            return Path(sigmas=tuple(sigmas), ends=True)
        sigmas.append(slot.sigma)
        counted[slot.sigma] = (slot.event, counted.get(slot.sigma, (slot.event, 0))[1] + 1)
    return Path(sigmas=tuple(sigmas), ends=plan.epochs is not None)
