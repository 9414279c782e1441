"""`apportion report`: the page of one run, and the page that compares several."""

import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apportion import durable
from apportion._version import VERSION
from apportion.accounting.interpretation import FALSE_POSITIVE_RATES
from apportion.bundle.files import MANIFEST
from apportion.bundle.pictures import FALSE_POSITIVES, TRUE_POSITIVES, attacker_curves
from apportion.drawing import Series, chart
from apportion.errors import InvalidArgument, RunError
from apportion.report import page
from apportion.report.look import Look, event_counts, look

PAGE = "report.html"
_INTERNAL = "Internal: computed from private data without noise. Do not publish this page; publish the bundle."


def write_report(run: Path, to: Path | None = None) -> Path:
    """The page of one run, into its own (private) directory unless said otherwise."""
    if to is None and (run / MANIFEST).exists():
        raise RunError(f"{run} is a bundle, which a page in it would spoil: draw the run directory, or say --out FILE")
    target = to or run / PAGE
    durable.replace_file(target, one_run(look(run)).encode())
    return target


def write_comparison(runs: Sequence[Path], to: Path) -> Path:
    if len(runs) < 2:
        raise InvalidArgument("a comparison needs at least two runs")
    durable.replace_file(to, several_runs([look(run) for run in runs]).encode())
    return to


def one_run(seen: Look) -> str:
    sections = [page.heading(seen.name, _state(seen)), page.paragraph(_INTERNAL, "internal")]
    if seen.private:
        sections += [_guarantee(seen), _noise(seen), _accountants(seen), _attacker(seen)]
    else:
        sections.append(page.paragraph("This run is NOT PRIVATE: it was trained with neither clipping nor noise."))
    sections += [_accuracy([seen]), _plan(seen), _environment(seen)]
    return page.page(f"{seen.name}: run report", sections)


def several_runs(seen: Sequence[Look]) -> str:
    head = ("run", "ε", "δ", "batching", "schedule", "slots", "accuracy (internal)", "loss (internal)")
    noise = _chart([_line(s, s.sigmas, steps=True) for s in seen], "Noise per epoch", "noise multiplier σ")
    spent = _chart([_line(s, s.rho) for s in seen], "Budget spent", "ρ, unamplified")
    sections = [
        page.heading("Comparison of runs", ", ".join(s.name for s in seen)),
        page.paragraph(_INTERNAL, "internal"),
        page.section("Summary", page.table(head, [_summary(s) for s in seen])),
        page.section("Noise and budget", page.figures((noise, "As planned."), (spent, "Running sum over the slots."))),
        _accuracy(seen),
    ]
    return page.page("Comparison of runs", sections)


def _summary(seen: Look) -> tuple[str, ...]:
    epsilon, delta = "not private", "–"
    if seen.private:
        epsilon, delta = f"{seen.guarantee.epsilon:.4g}", f"{seen.guarantee.delta:g}"
    scores = (_last(seen, "holdout", "accuracy"), _last(seen, "holdout", "loss"))
    batching = str(seen.ledger.plan.to_json()["batching"]["kind"])
    return (seen.name, epsilon, delta, batching, _schedule(seen), str(len(seen.sigmas)), *scores)


def _state(seen: Look) -> str:
    state = "finished" if seen.ledger.released else "not finished"
    return f"run {seen.ledger.run[:8]}: {state}, {seen.ledger.used_slots} of {len(seen.sigmas)} slots used"


def _guarantee(seen: Look) -> str:
    found, plan = seen.guarantee, seen.ledger.plan
    boxes = [
        ("ε, proven", f"{found.epsilon:.4g}"),
        ("δ", f"{found.delta:g}"),
        ("neighbours", found.adjacency),
        ("by accountant", found.accountant),
        ("unamplified ρ", f"{seen.rho[-1]:.4g}"),
        ("declared examples", f"{plan.examples:,}"),
    ]
    return page.section("Guarantee of the whole plan", page.facts(boxes))


def _noise(seen: Look) -> str:
    noise = _chart([_line(seen, seen.sigmas, steps=True)], "Noise per epoch", "noise multiplier σ")
    budget = [_line(seen, seen.rho, label="spent")]
    limit = seen.ledger.plan.budget.rho  # type: ignore[union-attr]  # a private plan
    if limit is not None:
        budget.append(Series(label="budget", points=[(0.0, limit), (float(len(seen.rho) - 1), limit)]))
    return page.section(
        "Noise and budget",
        page.figures(
            (noise, f"{_schedule(seen)} schedule, as planned; {seen.ledger.used_slots} slots used."),
            (_chart(budget, "Budget spent", "ρ, unamplified"), "Running sum over the slots, without amplification."),
        ),
    )


def _accountants(seen: Look) -> str:
    names = [guarantee.accountant for guarantee in seen.guarantees[-1][1]]
    series = [
        Series(
            label=name, points=[(float(n), g.epsilon) for n, gs in seen.guarantees for g in gs if g.accountant == name]
        )
        for name in names
    ]
    rows = [(g.accountant, f"{g.epsilon:.5g}", g.status) for g in seen.guarantees[-1][1]]
    drawn = _chart(series, "ε after so many epochs", "ε", "epochs")
    listed = page.table(("accountant", "ε of the whole plan", "status"), rows)
    return page.section(
        "ε by accountant", page.beside(page.figure(drawn, "The lowest proven curve is the claim."), listed)
    )


def _attacker(seen: Look) -> str:
    assert seen.profile is not None
    rows = [(f"{rate:.1%}", f"{seen.profile.true_positive_rate(rate):.3%}") for rate in FALSE_POSITIVE_RATES]
    drawn = chart(attacker_curves(seen.profile), title="Trade-off", x=FALSE_POSITIVES, y=TRUE_POSITIVES)
    caption = f"Bound on any test whether one example was in the data, from {seen.profile.source}."
    return page.section(
        "What an attacker can reach",
        page.beside(page.figure(drawn, caption), page.table(("wrongly accused", "recognised, at most"), rows)),
    )


def _accuracy(seen: Sequence[Look]) -> str:
    drawn = [
        (_metric(seen, ("holdout", "accuracy"), "Held-out accuracy"), "Internal: without noise."),
        (_metric(seen, ("holdout", "loss"), "Held-out loss"), "Internal: without noise."),
        (_metric(seen, ("gradient_norm_median",), "Median gradient norm"), "Internal: before clipping."),
        (_metric(seen, ("clipped_share",), "Share of gradients clipped"), "Internal."),
    ]
    found = page.figures(*drawn)
    return page.section("Accuracy, loss and gradients (internal)", found or page.paragraph("None recorded."))


def _metric(seen: Sequence[Look], path: tuple[str, ...], title: str) -> str:
    series = [Series(label=s.name, points=s.metric(*path)) for s in seen if s.metric(*path)]
    return chart(series, title=title, x="epoch", y=title.lower(), from_zero=path[-1] != "accuracy") if series else ""


def _plan(seen: Look) -> str:
    rows = [(name, _text(value)) for name, value in sorted(seen.ledger.plan.to_json().items())]
    recorded = [(f"recorded: {kind}", str(count)) for kind, count in sorted(event_counts(seen.ledger).items())]
    return page.section("Plan", page.table(("field", "value"), [*rows, *recorded]))


def _environment(seen: Look) -> str:
    rows = [*sorted(seen.ledger.declared.items()), ("randomness", seen.ledger.randomness)]
    rows += [("report made by", f"apportion {VERSION}, Python {sys.version.split()[0]}, {platform.platform()}")]
    return page.section("Declared, and environment", page.table(("field", "value"), rows))


def _line(seen: Look, values: Sequence[float], *, label: str | None = None, steps: bool = False) -> Series:
    return Series(label=label or seen.name, points=[(float(i), v) for i, v in enumerate(values)], steps=steps)


def _chart(series: Sequence[Series], title: str, y: str, x: str = "epoch") -> str:
    return chart(series, title=title, x=x, y=y)


def _schedule(seen: Look) -> str:
    return str(seen.ledger.plan.to_json().get("schedule", {}).get("kind", "no noise"))


def _last(seen: Look, *path: str) -> str:
    points = seen.metric(*path)
    return f"{points[-1][1]:.4g}" if points else "–"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return "; ".join(map(_text, value)) or "–"
    return "–" if value is None else str(value)
