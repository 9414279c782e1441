"""A pipeline on the screen: what each stage gets of the budget, as a table and a bar."""

from pathlib import Path
from typing import Any

from apportion import pipeline, settings_file
from apportion.adaptive import AdaptivePlan
from apportion.cli import options as o
from apportion.cli import output
from apportion.pipeline import Share
from apportion.plan import TrainingPlan

_WIDTH = 60
_FILLS = "█▓▒░▚"


def plan_of_file(config: Path, given: dict[str, Any]) -> TrainingPlan | AdaptivePlan:
    """The plan that `apportion train CONFIG` would run. Without `examples` in it, their number would be public."""
    chosen = settings_file.load(config, given, needs_data=False)
    schedule, budget = o.schedule_of_settings(chosen), o.budget_of(chosen.rho, chosen.epsilon, chosen.delta)
    o.batching_of(chosen.batching, chosen.batches, chosen.rate)
    return pipeline.plan_of(chosen, schedule, budget, chosen.examples or 1)


def as_data(plan: TrainingPlan | AdaptivePlan) -> dict[str, object]:
    """Fields that come on top of those of a plan without components."""
    return {"stages": [share.to_json() for share in pipeline.shares_of(plan)]} if plan.components else {}


def show(plan: TrainingPlan | AdaptivePlan) -> None:
    """A row for each stage, and the budget as one bar."""
    if not plan.components:
        return
    from rich.table import Table

    shares = pipeline.shares_of(plan)
    table = Table(box=None)
    for heading in ("", "stage", "share", "σ", "ε alone"):
        table.add_column(heading, justify="right" if heading in ("share", "σ", "ε alone") else "left")
    for fill, share in _filled(shares):
        table.add_row(fill, share.stage, f"{share.share:.1%}", _sigmas(share), f"{share.epsilon:.4g}")
    output.out.print(table)
    output.out.print(_bar(shares))
    output.out.print(
        "Shares are of ρ, as if nothing were amplified; training has what the components leave, and its noise is what the "
        "certifying accountant allows for that.\n",
        soft_wrap=True,
    )


def _filled(shares: tuple[Share, ...]) -> list[tuple[str, Share]]:
    return [(_FILLS[index % len(_FILLS)], share) for index, share in enumerate(shares)]


def _sigmas(share: Share) -> str:
    first, last = share.sigmas[0], share.sigmas[-1]
    return f"{first:.4g}" if first == last else f"{first:.4g} … {last:.4g}"


def _bar(shares: tuple[Share, ...]) -> str:
    """The budget from end to end, each stage as long as its share, at least one character."""
    lengths = [max(1, round(_WIDTH * share.share)) for share in shares]
    return "".join(fill * length for (fill, _), length in zip(_filled(shares), lengths, strict=True))
