"""A whole pipeline from its settings: the components, with shares of the budget solved to noise, and the plan of it all.

A share is of the budget's ρ; of an (ε, δ) budget, of the ρ = μ²/2 of the Gaussian release that is exactly (ε, δ). Each
component gets the noise that costs its share, and training is solved for what is left under the accountant that
certifies: Gaussian components compose with the training there, so that the whole spends the budget, and no more.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from apportion import accounting, by_epoch, solver
from apportion import plan as plans
from apportion.accounting.filters import GaussianFilter
from apportion.adaptive import AdaptivePlan, adaptive_plan
from apportion.batching import from_json as batching_from_json
from apportion.budget import Budget
from apportion.events import Adjacency, Composed
from apportion.plan import TrainingPlan
from apportion.schedules import Schedule, ValidationDecay
from apportion.settings import Settings
from apportion.stages import ClassWeights, Component, PrincipalComponents, PrivateEvaluation, Scaling

DEFAULT_EPOCHS = 30


def plan_of(
    chosen: Settings, schedule: Schedule | ValidationDecay, budget: Budget, examples: int
) -> TrainingPlan | AdaptivePlan:
    """The plan of a run with these settings. `examples` is the declared number of records, or the true one."""
    epochs = chosen.epochs
    name, size = ("rate", chosen.rate) if chosen.batching == "poisson" else ("batches", chosen.batches)
    batching = batching_from_json({"kind": chosen.batching, name: by_epoch.to_json(size)})
    adjacency = plans.checked_adjacency(batching, "zero-out" if chosen.examples is None else None)
    known: dict[str, Any] = {
        "budget": budget,
        "examples": examples,
        "batching": batching,
        "clip": chosen.clip,
        "clipping": chosen.to_clipping(),
        "unit": chosen.to_unit(),
        "noise": chosen.noise,
        "adjacency": adjacency,
        "components": components_of(chosen, budget, adjacency),
    }
    if isinstance(schedule, ValidationDecay):
        return adaptive_plan(schedule=schedule, epochs=epochs, floor=chosen.floor, order=chosen.order, **known)
    known["spare_epochs"] = chosen.spare_epochs
    if epochs is None and "sigma0" in schedule.unknowns():
        epochs = DEFAULT_EPOCHS
    if epochs is not None and not schedule.unknowns():
        return TrainingPlan(schedule=schedule, epochs=epochs, **known)
    return solver.solve(schedule=schedule, epochs=epochs, **known)


def components_of(chosen: Settings, budget: Budget, adjacency: Adjacency) -> tuple[Component, ...]:
    """What the sections [pca], [scaling], [class_weights] and [evaluation] declare, in the order in which they run."""
    found: list[Component] = []
    for section, make in _MAKERS.items():
        share, sigma = getattr(chosen, f"{section}_share"), getattr(chosen, f"{section}_sigma")
        if share is not None:
            found.append(with_share(make(chosen, 1.0), share, budget, adjacency))
        elif sigma is not None:
            found.append(make(chosen, sigma))
    return tuple(found)


def _scaling(chosen: Settings, sigma: float) -> Scaling:
    return Scaling(
        sigma=sigma,
        method=chosen.scaling_method,  # type: ignore[arg-type]  # checked by Scaling
        low=chosen.scaling_low,
        high=chosen.scaling_high,
        bins=chosen.scaling_bins,
    )


def _evaluation(chosen: Settings, sigma: float) -> PrivateEvaluation:
    measures: Any = chosen.evaluation_measures
    return PrivateEvaluation(sigma=sigma, measures=measures, bins=chosen.evaluation_bins)


_MAKERS: dict[str, Any] = {
    "pca": lambda chosen, sigma: PrincipalComponents(dimensions=chosen.pca_dimensions, sigma=sigma),
    "scaling": _scaling,
    "class_weights": lambda chosen, sigma: ClassWeights(sigma=sigma, most=chosen.class_weights_most),
    "evaluation": _evaluation,
}


def with_share(component: Component, share: float, budget: Budget, adjacency: Adjacency) -> Component:
    """The component with the noise that costs this share of the budget's ρ."""
    at_one = plans.rho_of(replace(component, sigma=1.0).event, adjacency)
    return replace(component, sigma=math.sqrt(at_one / (share * whole_rho(budget, adjacency))))


def whole_rho(budget: Budget, adjacency: Adjacency) -> float:
    """The ρ of one Gaussian release that spends the whole budget."""
    if budget.rho is not None:
        return budget.rho
    cap = GaussianFilter.of_budget(epsilon=budget.limit, delta=budget.stated_delta, adjacency=adjacency)
    return cap.mu_squared / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One row of a pipeline's table: `share` of the budget's ρ, and `epsilon` if this were all that is released.

    Training has the share that is left; amplified, it may have less noise than a Gaussian release of that share.
    """

    stage: str
    sigmas: tuple[float, ...]
    share: float
    epsilon: float

    def to_json(self) -> dict[str, Any]:
        sigma = self.sigmas[0] if self.sigmas else None
        return {"stage": self.stage, "sigma": sigma, "share": self.share, "epsilon": self.epsilon}


def shares_of(plan: TrainingPlan | AdaptivePlan) -> tuple[Share, ...]:
    """What each stage of the pipeline gets, in the order in which they run; training before the evaluation."""
    whole = whole_rho(plan.budget, plan.neighbours)
    before: list[Share] = []
    after: list[Share] = []
    for component in plan.components:
        share = Share(
            stage=component.kind,
            sigmas=(component.sigma,),
            share=plans.rho_of(component.event, plan.neighbours) / whole,
            epsilon=accounting.certifying_epsilon(component.event, plan.delta, plan.neighbours),
        )
        (after if isinstance(component, PrivateEvaluation) else before).append(share)
    left = 1 - math.fsum(share.share for share in (*before, *after))
    return (*before, _training(plan, left), *after)


def _training(plan: TrainingPlan | AdaptivePlan, left: float) -> Share:
    if isinstance(plan, AdaptivePlan):
        epsilon = plan.guarantees(plan.delta)[0].epsilon  # the cap: training may spend what the others leave
        return Share(stage="training", sigmas=(plan.schedule.sigma0,), share=left, epsilon=epsilon)
    alone = Composed(events=tuple(slot.event for slot in plan.slots))
    epsilon = accounting.certifying_epsilon(alone, plan.delta, plan.neighbours)
    return Share(stage="training", sigmas=plan.sigmas, share=left, epsilon=epsilon)
