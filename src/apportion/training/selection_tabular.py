"""A private selection on a table, as the command line does it: settings in, run directory out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apportion import canonical, ledger, pipeline, selection_settings
from apportion.budget import Budget
from apportion.bundle.files import LEDGER
from apportion.components.selection_solver import Draft, Wish, solve_selection
from apportion.data import Dataset
from apportion.described import table_model
from apportion.errors import ApportionError, InvalidArgument, RunError
from apportion.plan import TrainingPlan
from apportion.schedules import Schedule
from apportion.selection_plan import SelectionPlan
from apportion.selection_settings import SelectionSettings
from apportion.settings import Settings
from apportion.training import tabular
from apportion.training.finished import FinishedRun
from apportion.training.selecting import select
from apportion.training.trials import Configuration, describe

ScheduleOf = Callable[[Settings], Schedule]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionJob:
    """Everything a selection needs, checked; nothing is written or spent yet."""

    settings: SelectionSettings
    plan: SelectionPlan
    configurations: tuple[Configuration, ...]
    train: Dataset
    holdout: NDArray[np.bool_] | None
    warnings: tuple[str, ...]


def prepare_selection(chosen: SelectionSettings, schedule_of: ScheduleOf, budget: Budget) -> SelectionJob:
    """Load the data as declared, and plan."""
    warnings: list[str] = []
    train, _, holdout = tabular.load_data(chosen.base, None, warnings)
    examples = chosen.base.examples
    if examples is None:
        examples = len(train)
        warnings.append(
            f"examples was not given: the number of records, {examples}, is treated as public, and the guarantee is "
            "zero-out (one record's contribution removed)"
        )
    else:
        warnings += tabular.far_from_declared(examples, len(train))
    configurations = _configurations(chosen)
    drafts = tuple(
        Draft(
            name=named.name,
            description=text,
            open=bool(schedule_of(named.settings).unknowns()) or named.settings.epochs is None,
            sampled=named.settings.batching == "poisson",
            plan=partial(_planned, named.settings, schedule_of(named.settings)),
        )
        for named, text in zip(chosen.candidates, describe(configurations), strict=True)
    )
    wish = Wish(
        budget=budget,
        examples=examples,
        adjacency="zero-out" if chosen.base.examples is None else "add-remove",
        drafts=drafts,
        score_share=chosen.number("score_share"),
        runs=chosen.law,
        sigma=chosen.number("score_sigma"),
        epsilon=chosen.number("epsilon"),
        retrain_share=chosen.number("retrain_share"),
    )
    if budget.stated_delta > 1 / examples:
        warnings.append(f"delta = {budget.stated_delta:g} exceeds 1/examples = {1 / examples:.2g}; use a smaller delta")
    return SelectionJob(
        settings=chosen,
        plan=solve_selection(wish),
        configurations=configurations,
        train=train,
        holdout=holdout,
        warnings=tuple(warnings),
    )


def _planned(chosen: Settings, schedule: Schedule, budget: Budget, examples: int) -> TrainingPlan:
    found = pipeline.plan_of(chosen, schedule, budget, examples)
    if not isinstance(found, TrainingPlan):
        raise InvalidArgument("noise that follows scores cannot be a candidate: its cost is not fixed beforehand")
    return found


def _configurations(chosen: SelectionSettings) -> tuple[Configuration, ...]:
    return tuple(
        Configuration(
            model=partial(_network, named.settings),
            optimizer=partial(_optimizer, named.settings),
            loss=tabular.LOSS,
            options=_options(named.settings),
        )
        for named in chosen.candidates
    )


def _network(chosen: Settings) -> torch.nn.Sequential:
    return tabular.network_of(table_model(chosen))


def _optimizer(chosen: Settings, parameters: Any) -> torch.optim.Optimizer:
    return tabular.optimizer_of(chosen)(parameters)


def _options(chosen: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {"max_physical_batch": chosen.max_physical_batch}
    scheduler = tabular.learning_rate_of(chosen)
    if scheduler is not None:
        options["scheduler"] = scheduler
    if chosen.average_weights is not None:
        options |= {"weights": "averaged", "averaging": chosen.average_weights}
    return options


def run_selection(
    job: SelectionJob, out: Path, *, processes: int, keep_private: bool, progress: bool, resume: bool = False
) -> FinishedRun:
    own = [{tabular.SETTINGS: canonical.pretty(named.settings.to_json()).encode()} for named in job.settings.candidates]
    table = table_model(job.settings.base)
    return select(
        job.configurations,
        (job.train.inputs, job.train.targets),
        job.plan,
        out=out,
        processes=processes,
        keep_private=keep_private,
        declared={
            "data": tabular.source_of(job.settings.base),
            "loss": tabular.LOSS.__name__,
            "pre-trained weights": "none",
            "validation data": "a part of the private records, paid for",
            **table.declared(),
        },
        keep=tabular.files_to_keep(selection_settings.FILE, job.settings.to_json(), job.holdout),
        keep_of_winner=own,
        progress=progress,
        resume=resume,
    )


def reload_selection(run: Path) -> SelectionJob | None:
    """The job of an interrupted selection, its plan read from its ledger; None if it is finished."""
    try:
        chosen = selection_settings.from_json(canonical.loads((run / selection_settings.FILE).read_bytes()))
        holdout = tabular.kept_holdout(run)
    except (OSError, ValueError, TypeError, KeyError, ApportionError) as error:
        raise RunError(f"{run} was not begun by apportion select, or it is damaged: {error}") from error
    recorded = ledger.parse_intact_part((run / LEDGER).read_bytes()) if (run / LEDGER).exists() else None
    if recorded is None:
        raise RunError(f"{run} holds no selection to resume (no {LEDGER}): nothing was spent there; start a new one")
    if recorded.released:
        return None
    assert isinstance(recorded.plan, SelectionPlan)
    train, _, _ = tabular.load_data(chosen.base, holdout, [])
    return SelectionJob(
        settings=chosen,
        plan=recorded.plan,
        configurations=_configurations(chosen),
        train=train,
        holdout=holdout,
        warnings=(),
    )
