"""From drafts of candidates and a budget to the plan of a selection that spends it.

Where drafts leave their noise open, all get the same unamplified ρ, as much as the budget of the whole allows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from apportion import _checks, accounting
from apportion import plan as plans
from apportion.accounting import Gaussian, LossDistribution, Renyi
from apportion.accounting.conversions import mu_of_epsilon
from apportion.budget import Budget
from apportion.components.selection import Law
from apportion.errors import InvalidArgument, Unsolvable
from apportion.events import Adjacency, Composed, Event, GaussianRelease
from apportion.plan import TrainingPlan
from apportion.selection_plan import Candidate, Method, RepeatRuns, SelectionPlan, SplitParts, choice_event, slot_events
from apportion.solver import admitted_by_bisection, dearest_admitted

_TOLERANCE = 2e-3  # of the budget, which may be left over
_SMALLEST_SHARE = math.log(1e-6)  # of the whole budget's ρ, for one training
_ENOUGH = 1e9  # a budget that limits nothing: the selection's does


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A candidate whose plan depends on what it may spend. `open` says whether something is left to be solved."""

    name: str
    description: str
    open: bool
    plan: Callable[[Budget, int], TrainingPlan]
    sampled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked of a selection. `sigma` or `epsilon` left out: the choice gets as much ρ as one training.

    `runs` makes it one of repeated runs. `retrain_share` is the part of ρ that goes into training the winner again.
    """

    budget: Budget
    examples: int
    adjacency: Adjacency
    drafts: tuple[Draft, ...]
    score_share: float | None = None
    runs: Law | None = None
    sigma: float | None = None
    epsilon: float | None = None
    retrain_share: float | None = None

    def __post_init__(self) -> None:
        if not self.drafts:
            raise InvalidArgument("a selection needs candidates")
        share = self.score_share
        if share is None:
            share = 0.2 if self.runs is not None else 1 / (len(self.drafts) + 1)
        object.__setattr__(self, "score_share", _checks.probability("score_share", share))
        if self.runs is not None and (self.epsilon is not None or self.retrain_share is not None):
            raise InvalidArgument("epsilon and retrain_share belong to kind = 'split'; repeated runs have score_sigma")
        if self.runs is None and self.sigma is not None:
            raise InvalidArgument(
                "score_sigma belongs to kind = 'repeat'; parts are compared by the exponential mechanism"
            )
        if self.retrain_share is not None:
            _checks.probability("retrain_share", self.retrain_share)

    @property
    def open(self) -> bool:
        return any(draft.open for draft in self.drafts)


def solve_selection(wish: Wish) -> SelectionPlan:
    """The plan that spends the budget and no more; where nothing is open, the plan as it is, if the budget admits it."""
    rho = _affordable_rho(wish) if wish.open else None
    method, candidates = _drawn_up(wish, rho)
    assert wish.score_share is not None
    return SelectionPlan(
        budget=wish.budget,
        examples=wish.examples,
        method=method,
        candidates=candidates,
        score_share=wish.score_share,
        adjacency=wish.adjacency,
    )


def _affordable_rho(wish: Wish) -> float:
    """The ρ of everything that one record goes through, as near below the budget as the tolerance asks."""
    most = wish.budget.rho or mu_of_epsilon(wish.budget.limit, wish.budget.stated_delta) ** 2 / 2

    def cost(position: float) -> float:
        return _price(wish, slot_events(*_drawn_up(wish, most * math.exp(position))))

    fixed = [plans.rho_of(_fixed(draft, 1, wish).event, wish.adjacency) for draft in wish.drafts if not draft.open]

    def at_most(position: float) -> float:
        return _price(wish, _without_amplification(wish, most * math.exp(position), max(fixed, default=0.0)))

    start, end = _SMALLEST_SHARE, math.log(50.0)
    if at_most(start) <= wish.budget.limit:
        start = admitted_by_bisection(at_most, wish.budget, start, end)
    elif (least := cost(start)) > wish.budget.limit:
        raise Unsolvable(
            f"what is fixed (score_sigma, epsilon, or a candidate's own noise) alone costs {least:.4g}, more than the "
            f"budget ({wish.budget}); use more noise there, or fewer runs"
        )
    found, _ = dearest_admitted(cost, wish.budget.limit, start, end, _TOLERANCE)
    return most * math.exp(found)


def _price(wish: Wish, parts: Sequence[Event]) -> float:
    """In the budget's unit, by those accountants that matter here; the certified one is no larger."""
    event = Composed(events=tuple(parts))
    if wish.budget.rho is not None:
        return plans.rho_of(event, wish.adjacency)
    asked = (Gaussian, LossDistribution, Renyi)
    found = accounting.guarantees(event, wish.budget.stated_delta, wish.adjacency, asked, lower_bounds=False)
    return found[0].epsilon


def _without_amplification(wish: Wish, rho: float, fixed: float) -> tuple[Event, ...]:
    """The same selection with every training replaced by one Gaussian release of its ρ: no cheaper, and quick to price."""
    again = rho * (wish.retrain_share or 0.0)
    spent = [rho - again, *([again] if again else [])]
    releases = [GaussianRelease(sigma=1 / math.sqrt(2 * max(part, fixed))) for part in spent]
    return (choice_event(_method(wish, rho - again), releases[:1]), *releases[1:])


def _drawn_up(wish: Wish, rho: float | None) -> tuple[Method, tuple[Candidate, ...]]:
    """The method and candidates if so much ρ may be spent by one record, training the winner again included."""
    again = (rho or 0.0) * (wish.retrain_share or 0.0)
    stage = None if rho is None else rho - again
    assert wish.score_share is not None
    parts = 1 if wish.runs is not None else len(wish.drafts)
    trained_on = max(1, round(wish.examples * (1 - wish.score_share) / parts))
    candidates = tuple(
        Candidate(
            name=draft.name,
            description=draft.description,
            trial=_training(draft, stage, trained_on, wish),
            retraining=None if wish.retrain_share is None else _training(draft, again, wish.examples, wish),
        )
        for draft in wish.drafts
    )
    return _method(wish, stage), candidates


def _method(wish: Wish, rho: float | None) -> Method:
    if wish.runs is not None:
        sigma = wish.sigma or (None if rho is None else 1 / math.sqrt(2 * rho))
        if sigma is None:
            raise InvalidArgument("give score_sigma: no candidate leaves its noise open")
        return RepeatRuns(runs=wish.runs, sigma=sigma)
    # ρ = ε²/32 for counts that a record moves one way, ε²/8 where it may be replaced
    spread = 8 if wish.adjacency == "replace-one" else 32
    epsilon = wish.epsilon or (None if rho is None else math.sqrt(spread * rho))
    if epsilon is None:
        raise InvalidArgument("give epsilon of the choice: no candidate leaves its noise open")
    return SplitParts(epsilon=epsilon)


def _training(draft: Draft, rho: float | None, examples: int, wish: Wish) -> TrainingPlan:
    delta = wish.budget.stated_delta
    if draft.open:
        assert rho is not None
        if draft.sampled:
            raise InvalidArgument(
                f"candidate {draft.name!r}: give sigma0 with poisson batching, whose cost no rho describes, or use partition"
            )
        return draft.plan(Budget(rho=rho, delta=delta), examples)
    return _fixed(draft, examples, wish)


def _fixed(draft: Draft, examples: int, wish: Wish) -> TrainingPlan:
    """A training whose noise is given: its own cost is its budget."""
    delta = wish.budget.stated_delta
    free = Budget(epsilon=_ENOUGH, delta=delta) if draft.sampled else Budget(rho=_ENOUGH, delta=delta)
    found = draft.plan(free, examples)
    # A little more than it costs, because other platforms round otherwise: distributions more than sums.
    own = plans.spent(free, found.event, found.neighbours) * (1 + (1e-4 if draft.sampled else 1e-9))
    return replace(found, budget=Budget(epsilon=own, delta=delta) if draft.sampled else Budget(rho=own, delta=delta))
