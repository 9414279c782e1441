"""`apportion status`: a look into a run directory, read-only."""

from pathlib import Path
from typing import Annotated, Any

import typer

from apportion import ledger
from apportion.bundle.files import LEDGER
from apportion.certificate import certify
from apportion.cli import options as o
from apportion.cli import output
from apportion.errors import RunError
from apportion.plan import NonPrivatePlan


def status(
    run: Annotated[Path, typer.Argument(help="The run directory.", show_default=False)],
    as_json: o.JsonOption = False,
) -> None:
    """Show how many slots of the plan a run has used, its guarantee, and whether it can be resumed."""
    data = describe(run)
    if as_json:
        output.print_json(data)
        return
    for name, value in data.items():
        output.out.print(f"{name.replace('_', ' ')}: {_for_people(value)}", markup=False, soft_wrap=True)


def _for_people(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "nothing"
    return "–" if value is None else str(value)


def describe(run: Path) -> dict[str, Any]:
    path = run / LEDGER
    if not path.is_file():
        raise RunError(f"{run} is not a run directory: it holds no {LEDGER}")
    content = path.read_bytes()
    whole, torn = ledger.intact_part(content)
    recorded = ledger.parse(whole)
    slots = ledger.most_slots(recorded.plan)
    used = recorded.used_slots + bool(torn and not recorded.released)
    data = {
        "run": str(run),
        "slots": slots,
        "slots_used": used if slots is None else min(slots, used),
        "finished": recorded.released,
        "resumable": not recorded.released,
        "pending": [component.kind for component in recorded.plan.components[recorded.used_components :]],
        "randomness": recorded.randomness,
    }
    if isinstance(recorded.plan, NonPrivatePlan):
        return {**data, "private": False, "epsilon": None, "delta": None}
    certificate = certify(recorded)
    return {
        **data,
        "private": True,
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "adjacency": certificate.adjacency,
        "accountant": certificate.guarantee.accountant,
    }
