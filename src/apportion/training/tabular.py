"""Training a small network on a table, as the command line does: settings in, run directory out."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apportion import canonical, ledger, pipeline, settings
from apportion.adaptive import AdaptivePlan
from apportion.budget import Budget
from apportion.bundle.files import LEDGER
from apportion.bundle.model import TableModel
from apportion.data import Dataset, Declared, StreamedTable, prepare, read_table
from apportion.data.dataset import draw_holdout, draw_holdout_of_persons
from apportion.data.named import NAMED
from apportion.data.streaming import stream_divided
from apportion.data.table import persons_of
from apportion.described import table_model
from apportion.errors import ApportionError, InvalidArgument, RunError
from apportion.plan import TrainingPlan
from apportion.public import PaidLooks, Public
from apportion.randomness import RandomStream
from apportion.schedules import Schedule, ValidationDecay
from apportion.settings import Settings
from apportion.training import compatibility, rehearsal
from apportion.training.finished import FinishedRun
from apportion.training.frozen import ClassWeighted, Projection, Standardise
from apportion.training.learning_rate import LinearThenConstant
from apportion.training.loop import fit
from apportion.training.rehearsal import Prospect
from apportion.training.sources import Data

SETTINGS = settings.FILE
HOLDOUT = "holdout.npy"
LOSS = torch.nn.functional.cross_entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything a run needs, checked; nothing is written or spent yet."""

    settings: Settings
    plan: TrainingPlan | AdaptivePlan
    train: Dataset | StreamedTable
    test: Dataset | StreamedTable | None
    holdout: NDArray[np.bool_] | None
    validation: Public | PaidLooks | None
    warnings: tuple[str, ...]


def prepare_job(
    chosen: Settings,
    schedule: Schedule | ValidationDecay,
    budget: Budget,
    holdout: NDArray[np.bool_] | None = None,
) -> Job:
    """Load the data as declared and solve the plan. `holdout` is given when a run is resumed, drawn otherwise."""
    warnings: list[str] = []
    train, test, holdout = _load(chosen, holdout, warnings)
    examples = chosen.examples
    if examples is None:
        examples, one = train.units, "record" if chosen.unit is None else "person"
        warnings.append(
            f"--examples was not given: the number of training {one}s, {examples}, is treated as public, and the "
            f"guarantee is zero-out (one {one}'s contribution removed)"
        )
    else:
        warnings += far_from_declared(examples, train.units)
    found = pipeline.plan_of(chosen, schedule, budget, examples)
    if found.delta > 1 / examples:
        warnings.append(
            f"delta = {found.delta:g} exceeds 1/examples = {1 / examples:.2g}: such a guarantee may allow publishing a "
            "random record; use a smaller delta"
        )
    if chosen.has("evaluation") and not len(test):
        warnings.append("no record was held out: the evaluation cannot run, but the plan pays for it")
    return Job(
        settings=chosen,
        plan=found,
        train=train,
        test=test if len(test) else None,
        holdout=holdout,
        validation=_validation(chosen, test, examples, warnings),
        warnings=tuple(warnings),
    )


def far_from_declared(examples: int, found: int) -> list[str]:
    """A word to whoever holds the data. The true number is private: it is not said, and this is for the screen alone."""
    if examples <= 2 * found and found <= 2 * examples:
        return []
    than, steps = ("more than twice", "short") if found < examples else ("less than half", "long")
    return [
        f"--examples {examples} is {than} the number there is to train on. Sums are divided by the declared number, so "
        f"steps will be too {steps}; the guarantee holds all the same (keep this to yourself: the true number is private)"
    ]


def _load(
    chosen: Settings, holdout: NDArray[np.bool_] | None, warnings: list[str]
) -> tuple[Dataset | StreamedTable, Dataset | StreamedTable, NDArray[np.bool_] | None]:
    """(train, test, which records are held out)."""
    return load_data(chosen, holdout, warnings) if chosen.stream_to is None else _stream(chosen, holdout, warnings)


def _stream(
    chosen: Settings, holdout: NDArray[np.bool_] | None, warnings: list[str]
) -> tuple[StreamedTable, StreamedTable, NDArray[np.bool_]]:
    assert chosen.data is not None
    assert chosen.target is not None
    coins, drawn, seen = RandomStream(), [np.empty(0, np.bool_)], 0

    def divide(records: int) -> NDArray[np.bool_]:
        nonlocal seen
        seen += records
        if holdout is None:
            drawn.append(draw_holdout(records, chosen.holdout, coins))
            return drawn[-1]
        part = holdout[seen - records : seen]
        return np.concatenate([part, np.zeros(records - len(part), np.bool_)])  # too many are refused below

    declared = _declared_columns(chosen, chosen.target, chosen.classes, chosen.ranges)
    train, test = stream_divided(chosen.data, declared, divide, scratch=chosen.stream_to)
    kept = np.concatenate(drawn) if holdout is None else holdout
    if len(kept) != seen:
        raise RunError(f"the data has {seen} records, but {len(kept)} when the run began")
    if train.clipped:
        warnings.append(f"{train.clipped} values lie outside their declared range and were clipped to it")
    return train, test, kept


def _pair(data: Dataset | StreamedTable) -> Data:
    return data if isinstance(data, StreamedTable) else (data.inputs, data.targets)


def load_data(
    chosen: Settings, holdout: NDArray[np.bool_] | None, warnings: list[str]
) -> tuple[Dataset, Dataset, NDArray[np.bool_] | None]:
    """(train, test, which records are held out)."""
    if chosen.dataset is not None:
        directory = None if chosen.data_dir is None else Path(chosen.data_dir)
        return *NAMED[chosen.dataset].load(directory), holdout
    if chosen.stream_to is not None:
        raise InvalidArgument("stream_to belongs to apportion train: everything else needs the table in memory")
    assert chosen.data is not None
    assert chosen.target is not None
    table = read_table(Path(chosen.data))
    everything, clipped = prepare(table, _declared_columns(chosen, chosen.target, chosen.classes, chosen.ranges))
    if chosen.unit is not None:
        everything = replace(everything, persons=persons_of(table, chosen.unit))
    if clipped:
        warnings.append(f"{clipped} values lie outside their declared range and were clipped to it")
    if holdout is None and everything.persons is not None:
        holdout = draw_holdout_of_persons(everything.persons, chosen.holdout, RandomStream())
    if holdout is None:
        holdout = draw_holdout(len(everything), chosen.holdout, RandomStream())
    if len(holdout) != len(everything):
        raise RunError(f"the data has {len(everything)} records, but {len(holdout)} when the run began")
    return everything.select(~holdout), everything.select(holdout), holdout


def _declared_columns(
    chosen: Settings, target: str, classes: tuple[str, ...], ranges: Mapping[str, tuple[float, float]]
) -> Declared:
    """The column that names persons is no feature."""
    persons = () if chosen.unit is None else (chosen.unit,)
    return Declared(target=target, classes=classes, ranges=ranges, ignore=(*chosen.ignore, *persons))


def _validation(
    chosen: Settings, test: Dataset | StreamedTable, examples: int, warnings: list[str]
) -> Public | PaidLooks | None:
    """What steers an adaptive run. A look at held-out records is divided by a number made of public ones."""
    if chosen.pay_per_look is not None:
        share = chosen.holdout
        declared = len(test) if chosen.dataset is not None else max(1, round(examples * share / (1 - share)))
        assert isinstance(test, Dataset)
        return PaidLooks(data=(test.inputs, test.targets), sigma=chosen.pay_per_look, examples=declared)
    if chosen.public_validation is None:
        return None
    if chosen.public_validation == settings.TEST_PART:
        assert isinstance(test, Dataset)
        return Public((test.inputs, test.targets))
    table = table_model(chosen)
    declared_table = _declared_columns(chosen, table.target, table.classes, table.ranges)
    scored, clipped = prepare(read_table(Path(chosen.public_validation)), declared_table)
    if clipped:
        warnings.append(f"{clipped} values of the validation data lie outside their range and were clipped to it")
    return Public((scored.inputs, scored.targets))


def network(job: Job) -> torch.nn.Sequential:
    return network_of(table_model(job.settings))


def network_of(table: TableModel) -> torch.nn.Sequential:
    """A multilayer perceptron from the features to the classes, after what the pipeline prepares."""
    activation = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[table.activation]
    layers: list[torch.nn.Module] = []
    if table.projection is not None:
        layers.append(Projection(len(table.ranges), table.projection))
    if table.standardised:
        layers.append(Standardise(table.widths[0]))
    for before, after in pairwise(table.widths):
        layers += [torch.nn.Linear(before, after), activation()]
    return torch.nn.Sequential(*layers[:-1])


def loss_of(chosen: Settings) -> Callable[..., torch.Tensor]:
    return ClassWeighted(LOSS, len(table_model(chosen).classes)) if chosen.has("class_weights") else LOSS


def optimizer_of(chosen: Settings) -> compatibility.OptimizerFactory:
    if chosen.optimizer == "adam":
        if chosen.momentum:
            raise InvalidArgument("momentum belongs to sgd; adam has its own")
        return lambda parameters: torch.optim.Adam(parameters, lr=chosen.lr)
    return lambda parameters: torch.optim.SGD(parameters, lr=chosen.lr, momentum=chosen.momentum)


def learning_rate_of(chosen: Settings) -> LinearThenConstant | None:
    if chosen.lr_end is None or chosen.lr_epochs is None:
        return None
    return LinearThenConstant(end=chosen.lr_end, over=chosen.lr_epochs)


def train_job(
    job: Job, out: Path, *, progress: bool, seeded_for_research_only: int | None = None, resume: bool = False
) -> FinishedRun:
    run = fit(
        network(job),
        _pair(job.train),
        job.plan,
        loss=loss_of(job.settings),
        optimizer=optimizer_of(job.settings),
        scheduler=learning_rate_of(job.settings),
        weights="last" if job.settings.average_weights is None else "averaged",
        averaging=job.settings.average_weights,
        max_physical_batch=job.settings.max_physical_batch,
        unit=None if isinstance(job.train, StreamedTable) else job.train.persons,
        out=out,
        holdout=None if job.test is None else _pair(job.test),
        validation=job.validation,
        declared=_declared(job),
        keep=files_to_keep(SETTINGS, job.settings.to_json(), job.holdout),
        progress=progress,
        seeded_for_research_only=seeded_for_research_only,
        resume=resume,
    )
    evaluate_as_planned(job, run)
    return run


def files_to_keep(name: str, chosen: Mapping[str, Any], holdout: NDArray[np.bool_] | None) -> dict[str, bytes]:
    """What a resumed run needs to read its data again: the settings, under this name, and which records are held out."""
    kept = {name: canonical.pretty(chosen).encode()}
    if holdout is not None:
        buffer = io.BytesIO()
        np.save(buffer, holdout)
        kept[HOLDOUT] = buffer.getvalue()
    return kept


def kept_holdout(run: Path) -> NDArray[np.bool_] | None:
    return np.load(run / HOLDOUT, allow_pickle=False) if (run / HOLDOUT).exists() else None


def evaluate_as_planned(job: Job, run: FinishedRun) -> None:
    """The plan's evaluation on the held-out records, if there is one that has not run."""
    recorded = ledger.read(run.directory / LEDGER)
    if recorded.pending_events and job.test is not None:
        run.evaluate(network(job), _pair(job.test))


def load_settings(run: Path) -> tuple[Settings, NDArray[np.bool_] | None]:
    """What `train_job` kept in a run directory, to resume it."""
    try:
        chosen = settings.from_json(canonical.loads((run / SETTINGS).read_bytes()))
        holdout = kept_holdout(run)
    except (OSError, ValueError, TypeError, KeyError, ApportionError) as error:
        raise RunError(f"{run} was not begun by apportion train, or its {SETTINGS} is damaged: {error}") from error
    return chosen, holdout


def rebuilt(run: Path) -> tuple[torch.nn.Sequential, Callable[[], Data]]:
    """The network of a run, without its weights, and a function that loads its held-out records."""
    chosen, holdout = load_settings(run)

    def held_out() -> Data:
        _, test, _ = _load(chosen, holdout, [])
        return _pair(test)

    return network_of(table_model(chosen)), held_out


def rehearse(job: Job) -> tuple[Prospect, ...]:
    """The plan as it is, and what would change it. Nothing is written or spent."""
    data = _pair(job.train)
    loss, optimizer = loss_of(job.settings), optimizer_of(job.settings)
    return rehearsal.rehearse(network(job), data, job.plan, loss=loss, optimizer=optimizer)


def _scored_data(job: Job) -> str:
    if job.validation is None:
        return "none"
    if isinstance(job.validation, PaidLooks):
        return "held-out records, each look paid for"
    return "declared public by the publisher"


def source_of(chosen: Settings) -> str:
    return "own table" if chosen.dataset is None else NAMED[chosen.dataset].source


def _declared(job: Job) -> dict[str, str]:
    return {
        "data": source_of(job.settings),
        "pre-trained weights": "none",
        "validation data": _scored_data(job),
        **table_model(job.settings).declared(),
    }
