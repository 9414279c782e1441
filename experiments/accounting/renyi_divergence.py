"""The divergence of one sampled Gaussian release over its orders: why concentrated privacy cannot see sampling."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from apportion.accounting.renyi.sampled_gaussian import divergences
from apportion.drawing import Series, chart
from experiments import paper, words
from experiments.experiment import Experiment, Record, Report, Result, Row, Settings, Table

NAME = "renyi-divergence"


def rows(quick: bool) -> Sequence[Row]:
    return [Row(settings={"sigma": 4.0, "rate": 0.01, "largest_order": 200})]


def compute(settings: Settings, scratch: Path) -> Result:
    orders = [float(order) for order in range(2, settings["largest_order"] + 1)]
    sampled = [float(divergences(settings["sigma"], settings["rate"], (order,))[0]) for order in orders]
    return {"orders": orders, "sampled": sampled, "plain": [order / (2 * settings["sigma"] ** 2) for order in orders]}


def steepest(orders: Sequence[float], values: Sequence[float]) -> float:
    """The order from which the next one's divergence is the largest multiple of its own."""
    ratios = [after / before for before, after in pairwise(values)]
    return orders[ratios.index(max(ratios))]


def report(records: Sequence[Record]) -> Report:
    (record,) = records
    found, settings = record.result, record.settings
    orders, sampled = found["orders"], found["sampled"]
    by_order = dict(zip(orders, sampled, strict=True))
    change = steepest(orders, sampled)
    shown = [change - 1, change, change + 1, orders[-1]]
    lines = list(zip(orders, sampled, found["plain"], strict=True))
    drawn = chart(
        [
            Series(label="sampled", points=list(zip(orders, sampled, strict=True))),
            Series(label="without sampling", points=list(zip(orders, found["plain"], strict=True))),
        ],
        title=f"Rényi divergence, q = {settings['rate']:g}, σ = {settings['sigma']:g}",
        x="order α",
        y="divergence",
    )
    agrees = "**We agree.**" if abs(change - paper.CHANGING_POINT) <= 1 else "**We differ**; why, we do not know."
    text = f"""
{words.picture(NAME, "divergence", "Rényi divergence over orders")}

{words.table(["order α", "D_α of the sampled release"], [[f"{o:g}", words.number(by_order[o])] for o in shown])}

The divergence stays near zero and then turns within two orders: it jumps by the largest factor from order {change:g} to
{change + 1:g}; the paper puts the changing point at {paper.CHANGING_POINT}. {agrees} A bound of the form D_α ≤ αρ
for all orders therefore cannot see
the sampling, which is why reshuffling and partition, not sampling, are what zCDP is used for here.
"""
    return Report(
        text=text,
        tables={"divergence": Table(columns=("order", "sampled", "without_sampling"), lines=lines)},
        pictures={"divergence": words.svg(drawn)},
    )


EXPERIMENT = Experiment(
    name=NAME,
    title="Rényi divergence and its changing point",
    re_runs='Figure "α-Rényi divergence under sampling"',
    rows=rows,
    compute=compute,
    report=report,
)
