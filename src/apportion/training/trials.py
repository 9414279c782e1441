"""Training and scoring the candidates of a selection, each in a directory of its own, several at a time.

Everything here is private: of all trials, one is released, and its directory may hold more than is. A trial counts once
its result is on disk; one that was interrupted before is forgotten and run afresh.
"""

import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion import durable
from apportion.components.release import rounded_normals
from apportion.components.selection import SCORED, noisy_counts
from apportion.errors import InvalidArgument, RunError
from apportion.plan import TrainingPlan
from apportion.randomness import RandomStream
from apportion.selection_plan import RepeatRuns, SelectionPlan
from apportion.training import grid, guard
from apportion.training.compatibility import OptimizerFactory, in_words
from apportion.training.counting import right_answers
from apportion.training.loop import fit

# What `fit` takes that uses no data, costs nothing and leaves the noise as it is.
OPTIONS = {"scheduler", "scheduler_every", "weights", "averaging", "max_physical_batch", "memory_limit"}
_POLL = 0.2  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How a candidate is trained beside its plan. `options` are further arguments of `fit` that use no data.

    With several processes all of it must be picklable: functions of a module, not lambdas.
    """

    model: Callable[[], torch.nn.Module]
    optimizer: OptimizerFactory
    loss: Callable[..., Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.options) - OPTIONS)
        if unknown:
            raise InvalidArgument(
                f"options of a candidate may be {', '.join(sorted(OPTIONS))}; got {', '.join(unknown)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """All trials of a selection: `drawn[i]` is the candidate of trial i, `parts` where each record fell."""

    directory: Path
    plan: SelectionPlan
    configurations: tuple[Configuration, ...]
    inputs: Tensor
    targets: Tensor
    drawn: tuple[int, ...]
    parts: NDArray[np.int64]

    def run(self, trial: int) -> None:
        """Train on the trial's part, score on the scored part, write the result down."""
        candidate = self.drawn[trial]
        shutil.rmtree(self.place(trial), ignore_errors=True)  # what an interruption left
        own = 0 if isinstance(self.plan.method, RepeatRuns) else candidate
        chosen = torch.from_numpy(np.flatnonzero(self.parts == own))
        data = (self.inputs[chosen], self.targets[chosen])
        model = train(self.configurations[candidate], data, self.plan.candidates[candidate].trial, self.place(trial))
        right, wrong = self._scored(model)
        durable.replace_file(self._result(trial), json.dumps({"right": right, "wrong": wrong}).encode())

    def _scored(self, model: torch.nn.Module) -> tuple[int, int]:
        """Counts on the scored part: noisy where the score is part of a repeated run, else for the mechanism only."""
        chosen = torch.from_numpy(np.flatnonzero(self.parts == SCORED))
        right, wrong = counts(model, self.inputs[chosen], self.targets[chosen])
        method = self.plan.method
        if not isinstance(method, RepeatRuns):
            return right, wrong
        normals = grid.whole_normals if self.plan.noise == "grid" else rounded_normals
        return noisy_counts(right, wrong, method.sigma, RandomStream(), normals)

    def place(self, trial: int) -> Path:
        return self.directory / f"{trial:06d}"

    def _result(self, trial: int) -> Path:
        return self.directory / f"{trial:06d}.json"

    @property
    def pending(self) -> tuple[int, ...]:
        return tuple(trial for trial in range(len(self.drawn)) if not self._result(trial).exists())

    @property
    def results(self) -> list[tuple[int, int]]:
        """(right, wrong) of every trial, once all are done."""
        try:
            found = [json.loads(self._result(trial).read_bytes()) for trial in range(len(self.drawn))]
            return [(int(result["right"]), int(result["wrong"])) for result in found]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"a result in {self.directory} is missing or damaged ({error}); remove it and resume"
            ) from error


def train(configuration: Configuration, data: Any, plan: TrainingPlan, out: Path, **more: Any) -> torch.nn.Module:
    """One private training, into a directory that is never published."""
    model = configuration.model()
    if guard.starting_point(model):
        raise RunError(
            "a candidate's model() gave a model that was trained before: each trial starts from public weights, so it must "
            "make a new one every time"
        )
    settings = {"progress": False, **configuration.options, **more}
    fit(model, data, plan, loss=configuration.loss, optimizer=configuration.optimizer, out=out, **settings)
    return model


def counts(model: torch.nn.Module, inputs: Tensor, targets: Tensor) -> tuple[int, int]:
    """How many records have their own class as the highest score, and how many have not.

    Guarantees: one record more adds one to one of the two, whatever it holds: a score that is no number counts as wrong.
    """
    if targets.is_floating_point() or targets.dim() != 1:
        raise InvalidArgument("candidates are compared by right answers: targets must be class numbers")
    right = right_answers(model, [(inputs, targets)])
    return right, len(targets) - right


def run_all(trials: Trials, processes: int, tick: Callable[[], None]) -> None:
    """Every trial that is not done yet, in so many processes; `tick` is called now and then, and after each trial here."""
    pending = trials.pending
    if processes == 1 or len(pending) < 2:
        for trial in pending:
            trials.run(trial)
            tick()
        return
    context = multiprocessing.get_context("spawn")  # a forked process would share the state of torch's threads
    todo, failures = context.Queue(), context.Queue()
    for item in (*pending, *[None] * processes):
        todo.put(item)
    workers = [
        context.Process(target=_work, args=(trials, todo, failures), daemon=True)
        for _ in range(min(processes, len(pending)))
    ]
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            _raise_failure(failures)
            time.sleep(_POLL)
            tick()
        _raise_failure(failures)
        if any(worker.exitcode for worker in workers):
            raise RunError(
                "a process that trained a candidate was killed; what was finished is kept: resume the selection"
            )
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
        for worker in workers:
            if worker.pid is not None:
                worker.join()


def _raise_failure(failures: Any) -> None:
    try:
        failure = failures.get_nowait()
    except Empty:
        return
    raise RunError(
        f"a candidate could not be trained ({failure}); nothing is released. Mend the cause and resume the selection"
    )


def _work(trials: Trials, todo: Any, failures: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    while (trial := todo.get()) is not None:
        try:
            trials.run(trial)
        except Exception as error:
            failures.put(f"{type(error).__name__}: {error}")
            return


def _end_with_parent() -> None:
    """A parent that was killed has let go of the directory: whoever resumes must find no worker left in it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def describe(configurations: Sequence[Configuration]) -> list[str]:
    """Model, loss and optimizer of each in one line, as a certificate shows it."""
    texts = []
    for configuration in configurations:
        model = configuration.model()
        optimizer = configuration.optimizer([p for p in model.parameters() if p.requires_grad])
        texts.append(f"{' '.join(repr(model).split())}; {in_words(optimizer)}"[:MOST_WORDS])
    return texts


MOST_WORDS = 2000
