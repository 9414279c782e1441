"""Noise against signal on the screen, and what would change it."""

from collections.abc import Sequence

from apportion import outlook
from apportion.adaptive import AdaptivePlan
from apportion.cli import output
from apportion.errors import InvalidArgument
from apportion.outlook import Signal
from apportion.plan import TrainingPlan

Row = tuple[str, Signal, float | None]  # what is changed, its signal, and its seconds if they are known


def rows_of(plan: TrainingPlan | AdaptivePlan, parameters: int) -> list[Row]:
    changes = [("as planned", outlook.signal(plan, parameters)), *outlook.alternatives(plan, parameters)]
    return [(change, signal, None) for change, signal in changes]


def require_both(examples: int | None, parameters: int | None) -> None:
    if (examples is None) != (parameters is None):
        raise InvalidArgument(
            "--examples and --parameters belong together: noise is compared with a batch of so many examples in a model of "
            "so many parameters"
        )


def as_data(rows: Sequence[Row]) -> dict[str, object]:
    """The first row is the plan itself."""
    planned = rows[0][1]
    return {
        "parameters": planned.parameters,
        "noise_to_signal": {"first": planned.first, "last": planned.last, "overall": planned.overall},
        "alternatives": [
            {"change": change, **signal.to_json(), **({} if seconds is None else {"seconds": seconds})}
            for change, signal, seconds in rows[1:]
        ],
    }


def show(rows: Sequence[Row]) -> None:
    from rich.table import Table

    timed = rows[0][2] is not None
    table = Table(box=None)
    table.add_column("", no_wrap=True)
    for heading in ("batch", "epochs", "steps", "σ", "noise/signal", "overall", *(["time"] if timed else [])):
        table.add_column(heading, justify="right")
    for change, signal, seconds in rows:
        cells = [f"{signal.batch:.5g}", str(signal.epochs), str(signal.steps)]
        cells += [_span(signal.sigma_first, signal.sigma_last), _span(signal.first, signal.last)]
        table.add_row(change, *cells, f"{signal.overall:.3g}", *([] if seconds is None else [in_words(seconds)]))
    output.out.print(table)
    output.out.print(
        f"For {rows[0][1].parameters:,} parameters: noise/signal is the length of a step's noise divided by the longest "
        "mean gradient there can be; overall, the same for all steps together. The smaller, the better. Noise in the other "
        "rows is an estimate for the same budget.",
        soft_wrap=True,
    )


def _span(first: float, last: float) -> str:
    return f"{first:.3g}" if first == last else f"{first:.3g} … {last:.3g}"


def in_words(seconds: float) -> str:
    """A rough time, in the unit in which a person would say it."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
