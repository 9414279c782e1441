"""An adaptive plan on the screen: the cap, and the courses between which the run will go."""

from apportion import outlook
from apportion.accounting.filters import Filter, RenyiFilter
from apportion.adaptive import AdaptivePlan
from apportion.certificate import ADJACENCY_IN_WORDS
from apportion.cli import output
from apportion.outlook import MOST_FORESEEN, Path


def as_data(plan: AdaptivePlan) -> dict[str, object]:
    guarantee = plan.guarantees(plan.delta)[0]
    return {
        "schedule": plan.schedule.to_json(),
        "batching": plan.to_json()["batching"],
        "adjacency": plan.adjacency,
        "epochs": plan.epochs,
        "caps": [cap.to_json() for cap in plan.caps],
        "floor": None if plan.floor is None else plan.floor.to_json(),
        "order": plan.order,
        "noise_kept": _course(outlook.noise_kept(plan)),
        "noise_lowered": _course(outlook.noise_lowered(plan)),
        "rho": plan.rho,
        "epsilon": guarantee.epsilon,
        "delta": plan.delta,
        "accountant": guarantee.accountant,
        "solved": None,
    }


def show(plan: AdaptivePlan) -> None:
    """The slowest and the fastest course of the noise, the cap and the guarantee in words."""
    from rich.table import Table

    table = Table("if the scores", "epochs", "σ at first", "σ at last", box=None)
    for label, path in (
        ("improve at every check", outlook.noise_kept(plan)),
        ("improve at no check", outlook.noise_lowered(plan)),
    ):
        epochs = str(len(path.sigmas)) if path.ends else f"more than {MOST_FORESEEN:,}"
        table.add_row(label, epochs, f"{path.sigmas[0]:.4g}", f"{path.sigmas[-1]:.4g}")
    output.out.print(table)
    output.out.print(guarantee_in_words(plan), soft_wrap=True)


def guarantee_in_words(plan: AdaptivePlan) -> str:
    guarantee = plan.guarantees(plan.delta)[0]
    neighbours = ADJACENCY_IN_WORDS[plan.neighbours].format(unit=plan.unit.kind)
    return (
        f"However the scores turn out, (ε, δ) = ({guarantee.epsilon:.5g}, {plan.delta:g}) holds by {guarantee.accountant} "
        f"accounting, where {neighbours}: certified is {_promise(plan)}, not what a run happens to spend."
    )


def _promise(plan: AdaptivePlan) -> str:
    if plan.floor is not None:
        return f"the floor σ ≥ {plan.floor(0):g} over {plan.epochs} epochs"
    return ", that is ".join(_cap_in_words(cap) for cap in plan.caps)


def _cap_in_words(cap: Filter) -> str:
    if isinstance(cap, RenyiFilter):
        return f"the cap {cap.cap:.5g} on the Rényi divergence of order {cap.order:.5g}"
    return f"Σ1/σ² ≤ {cap.cap:.5g}" if cap.kind == "gaussian-filter" else f"Σρ ≤ {cap.cap:.5g}"


def _course(path: Path) -> dict[str, object]:
    return {"epochs": len(path.sigmas), "ends": path.ends, "sigmas": list(path.sigmas)}
