"""`apportion train`: a private run on a table."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from apportion import settings_file
from apportion.adaptive import AdaptivePlan
from apportion.bundle.files import LEDGER
from apportion.cli import adaptive, output, pipeline, prospects
from apportion.cli import options as o
from apportion.cli import plan as plan_verb
from apportion.cli import train_options as t
from apportion.cli.status import describe
from apportion.errors import InvalidArgument, RunError
from apportion.ledger import read as read_ledger
from apportion.scores import scores
from apportion.settings import Settings


def train(
    config: t.ConfigOption = None,
    out: t.OutOption = None,
    resume: t.ResumeOption = None,
    dry_run: t.DryRunOption = False,
    dataset: t.DatasetOption = None,
    data_dir: t.DataDirOption = None,
    data: t.DataOption = None,
    stream_to: t.StreamToOption = None,
    target: t.TargetOption = None,
    classes: t.ClassesOption = None,
    ranges: t.RangesOption = None,
    ignore: t.IgnoreOption = None,
    holdout: t.HoldoutOption = None,
    examples: t.ExamplesOption = None,
    rho: o.RhoOption = None,
    epsilon: o.EpsilonOption = None,
    delta: o.DeltaOption = None,
    batching: t.BatchingOption = None,
    batches: o.BatchesOption = None,
    rate: o.RateOption = None,
    schedule: t.ScheduleOption = None,
    sigma0: o.Sigma0Option = None,
    decay: o.DecayOption = None,
    period: o.PeriodOption = None,
    sigma_end: o.SigmaEndOption = None,
    threshold: o.ThresholdOption = None,
    average: o.AverageOption = None,
    every: o.EveryOption = None,
    floor: o.FloorOption = None,
    order: o.OrderOption = None,
    public_validation: t.PublicValidationOption = None,
    pay_per_look: t.PayPerLookOption = None,
    epochs: o.EpochsOption = None,
    spare_epochs: t.SpareEpochsOption = None,
    clip: t.ClipOption = None,
    clipping: o.ClippingOption = None,
    layer_noise: o.LayerNoiseOption = None,
    unit: t.UnitOption = None,
    records_per_unit: t.RecordsPerUnitOption = None,
    unit_gradient: t.UnitGradientOption = None,
    noise: t.NoiseOption = None,
    hidden: t.HiddenOption = None,
    activation: t.ActivationOption = None,
    optimizer: t.OptimizerOption = None,
    lr: t.LrOption = None,
    lr_end: t.LrEndOption = None,
    lr_epochs: t.LrEpochsOption = None,
    momentum: t.MomentumOption = None,
    average_weights: t.AverageWeightsOption = None,
    max_physical_batch: t.MaxPhysicalBatchOption = None,
    seeded_for_research_only: t.SeededForResearchOnlyOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Train a classifier on a table within a privacy budget.

    On the built-in data:  apportion train --dataset wisconsin --epsilon 2 --delta 1e-5 --batches 4 --out runs/first

    On your own:  apportion train --data patients.csv --target ill --classes no,yes --range age=0:120 --range dose=0:50
    --epsilon 2 --delta 1e-5 --batches 20 --out runs/patients
    """
    given = t.given_settings(locals())
    if resume is not None:
        o.refuse_beside_resume(config, out, dry_run, given)
        _resume(resume, seeded_for_research_only, as_json)
        return
    chosen = settings_file.load(config, given)
    if out is None and not dry_run:
        raise InvalidArgument("--out DIR is missing: where the run directory shall be (or --dry-run)")
    if out is not None and (out.exists() or out.is_symlink()):
        raise RunError(f"{out} exists already; nothing is ever overwritten, choose another --out")
    job = _job(chosen)
    for warning in job.warnings:
        output.warn(warning)
    if dry_run:
        _show_rehearsal(job, as_json)
        return
    assert out is not None
    tabular = _tabular()
    if not as_json:
        pipeline.show(job.plan)
    output.note(_guarantee_in_words(job.plan))
    with _resumable(out):
        tabular.train_job(job, out, progress=not as_json, seeded_for_research_only=seeded_for_research_only)
    _show_finished(out, as_json)


@contextmanager
def _resumable(run: Path) -> Iterator[None]:
    """Say, upon Ctrl-C, how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        output.complain(f"interrupted; what was spent is on record. Continue with: apportion train --resume {run}")
        raise typer.Exit(130) from None


def _tabular() -> Any:
    try:
        from apportion.training import tabular
    except ImportError as error:
        raise RunError(f"training needs PyTorch: pip install 'apportion[train]' ({error})") from error
    return tabular


def _job(chosen: Settings, holdout: Any = None) -> Any:
    noise = o.schedule_of_settings(chosen)
    o.batching_of(chosen.batching, chosen.batches, chosen.rate)
    budget = o.budget_of(chosen.rho, chosen.epsilon, chosen.delta)
    return _tabular().prepare_job(chosen, noise, budget, holdout)


def _resume(run: Path, seed: int | None, as_json: bool) -> None:
    if describe(run)["finished"]:
        _evaluate_if_pending(run)
        output.note(f"{run} is finished already; publish it with: apportion publish {run} --to DIR")
        _show_finished(run, as_json)
        return
    tabular = _tabular()
    chosen, holdout = tabular.load_settings(run)
    job = _job(chosen, holdout)
    with _resumable(run):
        tabular.train_job(job, run, progress=not as_json, seeded_for_research_only=seed, resume=True)
    _show_finished(run, as_json)


def _evaluate_if_pending(run: Path) -> None:
    """A run that was killed after its release may still owe the evaluation that its plan pays for."""
    if describe(run)["pending"]:
        tabular = _tabular()
        chosen, holdout = tabular.load_settings(run)
        tabular.evaluate_as_planned(_job(chosen, holdout), tabular.FinishedRun(run))


def _is_adaptive(plan: Any) -> bool:
    return isinstance(plan, AdaptivePlan)


def _guarantee_in_words(plan: Any) -> str:
    return adaptive.guarantee_in_words(plan) if _is_adaptive(plan) else plan_verb.guarantee_in_words(plan)


def _show_rehearsal(job: Any, as_json: bool) -> None:
    rows = [(found.change, found.signal, found.seconds) for found in _tabular().rehearse(job)]
    seconds = rows[0][2]
    if as_json:
        plan = adaptive.as_data(job.plan) if _is_adaptive(job.plan) else plan_verb.as_data(job.plan, None)
        signal = {**prospects.as_data(rows), "compatible": True, "seconds": seconds}
        output.print_json({**plan, **pipeline.as_data(job.plan), **signal})
        return
    pipeline.show(job.plan)
    adaptive.show(job.plan) if _is_adaptive(job.plan) else plan_verb.show(job.plan, None)
    prospects.show(rows)
    output.out.print(f"Training takes about {prospects.in_words(seconds)} on this machine. Nothing was spent.")


def _show_finished(run: Path, as_json: bool) -> None:
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    internal = json.loads(lines[-1]).get("holdout") if lines else None
    if as_json:
        output.print_json({**describe(run), "internal": internal})
        return
    state = describe(run)
    for evaluation in read_ledger(run / LEDGER).evaluations:
        found = ", ".join(f"{name} = {score}" for name, score in scores(evaluation.to_json()).items())
        words = f"{found} (± one standard error, noise included)" if found else "drowned in noise"
        output.out.print(f"private evaluation: {words}", soft_wrap=True)
    used = f"{state['slots_used']} of {state['slots']} slots" if state["slots"] else f"{state['slots_used']} epochs"
    output.out.print(f"trained: (ε, δ) = ({state['epsilon']:g}, {state['delta']:g}), {state['adjacency']}; {used} used")
    if internal and "accuracy" in internal:
        output.out.print(
            f"held-out accuracy {internal['accuracy']:.3f} (internal: computed without noise, do not publish)"
        )
    output.out.print(f"next: apportion publish {run} --to DIR")
