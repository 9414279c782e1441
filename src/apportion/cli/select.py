"""`apportion select`: one of several configurations, chosen privately."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from apportion import selection_settings
from apportion.certificate import ADJACENCY_IN_WORDS, certify
from apportion.cli import options as o
from apportion.cli import output
from apportion.components.selection import expected_runs, quantile
from apportion.errors import InvalidArgument, RunError
from apportion.events import PoissonLaw
from apportion.ledger import read as read_ledger
from apportion.plan import TrainingPlan, rho_of
from apportion.schedules import Schedule
from apportion.selection_plan import RepeatRuns, SelectionPlan
from apportion.settings import Settings


def select(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file as for train, with a [select] section.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory to create; it must not exist.", show_default=False)
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the selection in this directory instead.", show_default=False)
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="How many candidates are trained at a time (default: one per processor).", show_default=False
        ),
    ] = None,
    keep_private: Annotated[
        bool, typer.Option("--keep-private", help="Keep the losing models and their number in the run directory.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the candidates and the whole cost; spend and write nothing.")
    ] = False,
    as_json: o.JsonOption = False,
) -> None:
    """Choose one of several configurations privately, and release the model that it trained.

    The whole cost is shown first, and refused if it exceeds the budget. kind = "repeat" trains a secret, random number of
    times and keeps the best by a noisy score; kind = "split" trains each candidate on its own part of the records and
    chooses by the exponential mechanism. See examples/selection.toml.
    """
    workers = processes or os.cpu_count() or 1
    if resume is not None:
        o.refuse_beside_resume(config, out, dry_run)
        _resume(resume, workers, keep_private, as_json)
        return
    if config is None:
        raise InvalidArgument("name the configuration: apportion select CONFIG.toml --out DIR")
    if out is None and not dry_run:
        raise InvalidArgument("--out DIR is missing: where the run directory shall be (or --dry-run)")
    if out is not None and (out.exists() or out.is_symlink()):
        raise RunError(f"{out} exists already; nothing is ever overwritten, choose another --out")
    chosen = selection_settings.load(config)
    budget = o.budget_of(chosen.base.rho, chosen.base.epsilon, chosen.base.delta)
    job = _tabular().prepare_selection(chosen, _schedule_of, budget)
    for warning in job.warnings:
        output.warn(warning)
    if dry_run and as_json:
        output.print_json(as_data(job.plan))
        return
    show(job.plan, output.out if dry_run else output.messages)
    if dry_run:
        return
    assert out is not None
    with _resumable(out):
        _tabular().run_selection(job, out, processes=workers, keep_private=keep_private, progress=not as_json)
    _show_finished(out, as_json)


def _resume(run: Path, processes: int, keep_private: bool, as_json: bool) -> None:
    tabular = _tabular()
    job = tabular.reload_selection(run)
    if job is None:
        output.note(f"{run} is finished already; publish it with: apportion publish {run} --to DIR")
        if not keep_private:
            from apportion.training.selecting import forget_losers

            forget_losers(run)
    else:
        options = {"processes": processes, "keep_private": keep_private, "progress": not as_json}
        with _resumable(run):
            tabular.run_selection(job, run, resume=True, **options)
    _show_finished(run, as_json)


@contextmanager
def _resumable(run: Path) -> Iterator[None]:
    """Say, upon Ctrl-C, how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        output.complain(f"interrupted; the whole cost is on record. Continue with: apportion select --resume {run}")
        raise typer.Exit(130) from None


def _tabular() -> Any:
    try:
        from apportion.training import selection_tabular
    except ImportError as error:
        raise RunError(f"training needs PyTorch: pip install 'apportion[train]' ({error})") from error
    return selection_tabular


def _schedule_of(chosen: Settings) -> Schedule:
    o.batching_of(chosen.batching, chosen.batches, chosen.rate)
    return o.schedule_of(chosen.schedule, chosen.sigma0, chosen.decay, chosen.period, chosen.sigma_end)


def as_data(plan: SelectionPlan) -> dict[str, Any]:
    """What is known before the first record is looked at."""
    return {
        "method": plan.method.to_json(),
        "budget": plan.budget.to_json(),
        "epsilon": plan.guarantee.epsilon,
        "delta": plan.delta,
        "adjacency": plan.adjacency,
        "accountant": plan.guarantee.accountant,
        "score_share": plan.score_share,
        "expected_trainings": _expected(plan),
        "candidates": [
            {
                "name": candidate.name,
                "trial": _training_data(candidate.trial),
                "retraining": None if candidate.retraining is None else _training_data(candidate.retraining),
            }
            for candidate in plan.candidates
        ],
    }


def _training_data(training: TrainingPlan) -> dict[str, Any]:
    return {
        "epochs": training.epochs,
        "rho": training.rho,
        "sigma_first": training.sigmas[0],
        "sigma_last": training.sigmas[-1],
    }


def _expected(plan: SelectionPlan) -> float:
    return expected_runs(plan.method.runs) if isinstance(plan.method, RepeatRuns) else float(len(plan.candidates))


def show(plan: SelectionPlan, console: Any) -> None:
    """The candidates, what each step costs, and the whole in words."""
    from rich.table import Table

    table = Table(box=None)
    for heading in ("candidate", "epochs", "σ", "ρ of a training", *(["σ again", "ρ again"] if plan.retrains else [])):
        table.add_column(heading, justify="left" if heading == "candidate" else "right")
    for candidate in plan.candidates:
        again = [] if candidate.retraining is None else _cells(candidate.retraining)
        table.add_row(candidate.name, str(candidate.trial.epochs), *_cells(candidate.trial), *again)
    console.print(table)
    for line in cost_in_words(plan):
        console.print(line, markup=False, soft_wrap=True)


def _cells(training: TrainingPlan) -> list[str]:
    return [f"{training.sigmas[0]:.4g} … {training.sigmas[-1]:.4g}", f"{training.rho:.5f}"]


def cost_in_words(plan: SelectionPlan) -> list[str]:
    share = f"about {plan.score_share:.3g} of the records"
    if isinstance(plan.method, RepeatRuns):
        law = plan.method.runs
        how = (
            f"The best of a secret number of trainings, {expected_runs(law):.3g} on average and at most "
            f"{quantile(law, 0.99)} in 99 of 100 selections, by counts of right and wrong answers with noise "
            f"{plan.method.sigma:.4g} on {share}."
        )
        if isinstance(law, PoissonLaw):
            how += f" With probability {math.exp(-law.mean):.2g} there is none, and then nothing to release."
    else:
        choice = rho_of(plan.slots[0].event, plan.adjacency)
        how = (
            f"Each candidate is trained on its own part of the records; the exponential mechanism with ε = "
            f"{plan.method.epsilon:.4g} chooses by errors on {share}. Choosing spends ρ = {choice:.5f}, unamplified"
            + (", training the winner again on everything comes on top." if plan.retrains else ".")
        )
    words = ADJACENCY_IN_WORDS[plan.adjacency].format(unit="example")
    whole = (
        f"The whole selection costs (ε, δ) = ({plan.guarantee.epsilon:.5g}, {plan.delta:g}) by {plan.guarantee.accountant} "
        f"accounting, where {words}; the budget is {plan.budget}."
    )
    return [how, whole]


def _show_finished(run: Path, as_json: bool) -> None:
    recorded = read_ledger(run / "ledger.jsonl")
    certificate = certify(recorded)
    selection = certificate.to_json()["selection"]
    name = selection["candidates"][selection["chosen"]]
    if as_json:
        facts = {"epsilon": certificate.epsilon, "delta": certificate.delta, "adjacency": certificate.adjacency}
        output.print_json({"run": str(run), "name": name, **facts, **selection})
        return
    output.out.print(f"chosen: {name}", markup=False, soft_wrap=True)
    if selection["score"] is not None:
        right, wrong = selection["score"]["right"], selection["score"]["wrong"]
        output.out.print(f"its noisy score: {right} right, {wrong} wrong (the best of several: optimistic)")
    output.out.print(f"(ε, δ) = ({certificate.epsilon:g}, {certificate.delta:g}), {certificate.adjacency}")
    output.out.print(f"next: apportion publish {run} --to DIR", soft_wrap=True)
