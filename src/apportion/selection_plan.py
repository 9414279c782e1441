"""The plan of a private selection: candidates, how one of them is chosen, and the whole cost, fixed beforehand.

Two methods. `RepeatRuns`: a candidate is drawn at random, trained on most of the records and scored, with noise, on the
rest; this happens a secret, random number of times, and only the best is released. `SplitParts`, the paper's: every
candidate is trained on a part of its own, one is chosen by the exponential mechanism on the last part, and is perhaps
trained again on everything.

A selection has one slot for choosing, and one for training again. Candidates are public; which of them won is an output
that the slot pays for.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from apportion import _checks, accounting, events, plan
from apportion.batching import Shuffle
from apportion.budget import Budget
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.events import (
    Adjacency,
    Composed,
    DisjointParts,
    Event,
    ExponentialMechanism,
    GaussianRelease,
    OneOf,
    PoissonLaw,
    RepeatAndSelect,
    Repeated,
    TruncatedNegativeBinomial,
)
from apportion.plan import Noise, Slot, TrainingPlan
from apportion.stages import Component
from apportion.units import Person

PURPOSE = "selection"  # of the release by which repeated runs are scored
MOST_CANDIDATES = 500
MOST_DESCRIPTION = 5000
_NAME = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatRuns:
    """The best of K runs, K drawn from `runs`; scores are counts of right and wrong answers with noise `sigma` each."""

    runs: TruncatedNegativeBinomial | PoissonLaw
    sigma: float

    def __post_init__(self) -> None:
        if not isinstance(self.runs, TruncatedNegativeBinomial | PoissonLaw):
            raise InvalidArgument(f"runs must be a TruncatedNegativeBinomial or a PoissonLaw, got {self.runs!r:.80}")
        object.__setattr__(self, "sigma", _checks.positive("sigma", self.sigma))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "repeat", "runs": events.to_json(self.runs), "sigma": self.sigma}


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitParts:
    """One training on each part; the exponential mechanism chooses by errors on the last part, weights exp(−εz/2)."""

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _checks.positive("epsilon", self.epsilon))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "split", "epsilon": self.epsilon}


Method = RepeatRuns | SplitParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One public configuration. `trial` is how it is trained for the comparison, `retraining` how if it has won.

    `description` is published as it is: model and optimizer, say.
    """

    name: str
    trial: TrainingPlan
    retraining: TrainingPlan | None = None
    description: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(_NAME, self.name):
            raise InvalidArgument(f"name must be one line of at most 200 characters, got {self.name!r:.80}")
        if not isinstance(self.description, str) or len(self.description) > MOST_DESCRIPTION:
            raise InvalidArgument(f"description must be a text of at most {MOST_DESCRIPTION} characters")
        for training in (self.trial, self.retraining):
            if training is not None and not isinstance(training, TrainingPlan):
                raise InvalidArgument(f"candidate {self.name!r}: a candidate is trained by a TrainingPlan")
            if training is not None and isinstance(training.batching, Shuffle):
                raise InvalidArgument(
                    f"candidate {self.name!r}: shuffle batching needs a public number of records, but parts are drawn by "
                    "coins; use partition or poisson"
                )
            if training is not None and isinstance(training.unit, Person):
                raise InvalidArgument(f"candidate {self.name!r}: scores are priced for records, not for persons")
            if training is not None and training.components:
                raise InvalidArgument(f"candidate {self.name!r}: components are not part of a selection")

    @property
    def released(self) -> TrainingPlan:
        """By which the released model is trained, if this candidate wins."""
        return self.trial if self.retraining is None else self.retraining

    def to_json(self) -> dict[str, Any]:
        retraining = None if self.retraining is None else self.retraining.to_json()
        training = {"trial": self.trial.to_json(), "retraining": retraining}
        return {"name": self.name, "description": self.description, **training}


@dataclass(frozen=True, kw_only=True)
class SelectionPlan:
    """Candidates + method + budget. A plan that exceeds its budget cannot exist.

    `score_share` is each record's chance to fall into the part on which candidates are compared; the others are trained
    on. `examples` is the declared number of all records together.
    """

    budget: Budget
    examples: int
    method: Method
    candidates: tuple[Candidate, ...]
    score_share: float
    adjacency: Adjacency = "add-remove"

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", tuple(self.candidates))
        object.__setattr__(self, "examples", _checks.count("examples", self.examples))
        object.__setattr__(self, "score_share", _checks.probability("score_share", self.score_share))
        _checks.choice("adjacency", self.adjacency, events.ADJACENCIES)
        if not isinstance(self.method, RepeatRuns | SplitParts):
            raise InvalidArgument(f"method must be RepeatRuns or SplitParts, got {self.method!r:.80}")
        self._check_candidates()
        cost = self.spent
        if not self.budget.admits(cost):
            unit = "rho" if self.budget.rho is not None else "epsilon"
            raise BudgetExhausted(
                f"this selection costs {unit} = {cost:.6g}, more than the budget ({self.budget}); use more noise, fewer "
                "epochs or fewer runs"
            )

    def _check_candidates(self) -> None:
        if not 1 <= len(self.candidates) <= MOST_CANDIDATES:
            raise InvalidArgument(f"a selection has 1 to {MOST_CANDIDATES} candidates, got {len(self.candidates)}")
        names = [candidate.name for candidate in self.candidates]
        if len(set(names)) != len(names):
            raise InvalidArgument("each candidate needs a name of its own")
        if any(training.neighbours != self.adjacency for training in self.trainings):
            raise InvalidArgument(f"every training must be planned under the selection's adjacency, {self.adjacency}")
        if len({candidate.retraining is None for candidate in self.candidates}) > 1:
            raise InvalidArgument("either every candidate has a retraining or none has")
        if isinstance(self.method, RepeatRuns):
            if self.retrains:
                raise InvalidArgument("the best of repeated runs is released as it is: there is no retraining")
            if self.budget.rho is not None:
                raise InvalidArgument("the best of repeated runs has no rho: give epsilon and delta as budget")

    @property
    def components(self) -> tuple[Component, ...]:
        """None: everything happens inside the slots."""
        return ()

    @property
    def noise(self) -> Noise:
        """How noise is made: on a grid only if every training's is."""
        return "grid" if all(training.noise == "grid" for training in self.trainings) else "float"

    @property
    def trainings(self) -> tuple[TrainingPlan, ...]:
        """All that may happen."""
        again = (candidate.retraining for candidate in self.candidates)
        return (*(candidate.trial for candidate in self.candidates), *(training for training in again if training))

    @property
    def retrains(self) -> bool:
        return self.candidates[0].retraining is not None

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Choosing and, if the winner is trained again, that. Each is recorded before any of it happens."""
        found = slot_events(self.method, self.candidates)
        return tuple(Slot(index=index, sigma=0.0, charged=0.0, event=event) for index, event in enumerate(found))

    @property
    def event(self) -> Event:
        """What is certified: every slot."""
        return Composed(events=tuple(slot.event for slot in self.slots))

    @property
    def neighbours(self) -> Adjacency:
        return self.adjacency

    @property
    def delta(self) -> float:
        return self.budget.stated_delta

    @property
    def spent(self) -> float:
        """What the whole costs, in the budget's own unit."""
        if self.budget.rho is not None:
            return plan.rho_of(self.event, self.adjacency)
        return self.guarantee.epsilon

    @cached_property
    def guarantee(self) -> accounting.Guarantee:
        """The tightest proven guarantee of the whole."""
        return accounting.guarantees(self.event, self.delta, self.adjacency, lower_bounds=False)[0]

    def to_json(self) -> dict[str, Any]:
        return {
            "selection": self.method.to_json(),
            "budget": self.budget.to_json(),
            "examples": self.examples,
            "score_share": self.score_share,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "adjacency": self.adjacency,
            "unit": "example",
        }


def slot_events(method: Method, candidates: Sequence[Candidate]) -> tuple[Event, ...]:
    """What choosing by this method is, and training the winner again, whichever it will be."""
    trials = [_training_event(candidate.trial) for candidate in candidates]
    again = [_training_event(candidate.retraining) for candidate in candidates if candidate.retraining is not None]
    return (choice_event(method, trials), *([one_of(again)] if again else []))


def choice_event(method: Method, trials: Sequence[Event]) -> Event:
    """In both methods a record is either trained on or scored, by a coin, so that the dearer of the two is paid."""
    if isinstance(method, SplitParts):
        return DisjointParts(parts=(*trials, ExponentialMechanism(epsilon=method.epsilon, counts=True)))
    score = GaussianRelease(sigma=method.sigma, replace_one=math.sqrt(2), purpose=PURPOSE)
    return RepeatAndSelect(base=DisjointParts(parts=(one_of(trials), score)), runs=method.runs)


def one_of(options: Sequence[Event]) -> Event:
    """One of the options, whichever; of equal ones simply that."""
    return options[0] if len(set(options)) == 1 else OneOf(options=tuple(dict.fromkeys(options)))


def _training_event(training: TrainingPlan) -> Event:
    """All slots of a training, equal neighbours written once."""
    runs = [(event, len(list(same))) for event, same in groupby(slot.event for slot in training.slots)]
    parts = tuple(event if count == 1 else Repeated(event=event, count=count) for event, count in runs)
    return parts[0] if len(parts) == 1 else Composed(events=parts)


_FIELDS = {"selection", "budget", "examples", "score_share", "candidates", "adjacency", "unit"}


def from_json(data: Mapping[str, Any]) -> SelectionPlan:
    """The inverse of `to_json`; unknown or missing fields are refused."""
    plan.require_fields("a selection plan", data, _FIELDS)
    if data["unit"] != "example":
        raise InvalidArgument(f"unit must be 'example', got {data['unit']!r:.80}")
    if not isinstance(data["candidates"], list):
        raise InvalidArgument("candidates must be a list")
    return SelectionPlan(
        budget=plan.budget_from_json(data["budget"]),
        examples=data["examples"],
        method=_method_from_json(data["selection"]),
        candidates=tuple(_candidate_from_json(candidate) for candidate in data["candidates"]),
        score_share=data["score_share"],
        adjacency=data["adjacency"],
    )


def _method_from_json(data: Any) -> Method:
    match data:
        case {"kind": "repeat", "runs": runs, "sigma": sigma} if len(data) == 3:
            return RepeatRuns(runs=events.law_from_json(runs), sigma=sigma)
        case {"kind": "split", "epsilon": epsilon} if len(data) == 2:
            return SplitParts(epsilon=epsilon)
        case _:
            raise InvalidArgument(f"selection must be a known method with its fields, got {data!r:.120}")


def _candidate_from_json(data: Any) -> Candidate:
    if not isinstance(data, Mapping):
        raise InvalidArgument(f"a candidate must be a JSON object, got {data!r:.80}")
    plan.require_fields("a candidate", data, {"name", "description", "trial", "retraining"})
    trial = plan.from_json(data["trial"])
    retraining = None if data["retraining"] is None else plan.from_json(data["retraining"])
    return Candidate(
        name=data["name"],
        trial=trial,  # type: ignore[arg-type]  # checked there
        retraining=retraining,  # type: ignore[arg-type]
        description=data["description"],
    )
