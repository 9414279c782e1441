"""A run: the plan's slots, one epoch after the other, each recorded before its first step.

`fit` is the loop in one call. With `start` the loop is the user's own:

    with start(model, data, plan, optimizer=…, loss=…, out=…) as run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)

It ends by itself when the plan's epochs are done; leaving the `with` block releases the weights.
"""

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, Unpack

import torch
from torch import Tensor

from apportion import ledger
from apportion._version import VERSION
from apportion.adaptive import Plan
from apportion.bundle.files import LEDGER
from apportion.certificate import Certificate, certify
from apportion.errors import BatchMisused, BudgetExhausted, RunError
from apportion.plan import NonPrivatePlan, Slot
from apportion.public import PaidLooks, Public
from apportion.randomness import RandomStream
from apportion.training import compatibility, guard
from apportion.training.checkpoint import Checkpoint
from apportion.training.compatibility import OptimizerFactory
from apportion.training.export import weights_file
from apportion.training.guard import Guard
from apportion.training.interruption import PauseOnInterrupt
from apportion.training.losses import per_example
from apportion.training.metrics import EpochMetrics, score
from apportion.training.progress import Progress, Silent, Watcher
from apportion.training.publishing import PublishOptions, publish
from apportion.training.run_directory import RunDirectory
from apportion.training.self_test import self_test
from apportion.training.steering import EarlyStop, SchedulerFactory, Steering, Weights
from apportion.training.step import ordinary_step, private_step
from apportion.training.tensors import Data, PrivateData


class FinishedRun:
    """A run directory whose weights are released."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def certificate(self, delta: float | None = None) -> Certificate:
        return certify(ledger.read(self.directory / LEDGER), delta)

    def publish(self, to: str | Path, **options: Unpack[PublishOptions]) -> Certificate:
        """Write the bundle; the options are those of `apportion.training.publishing.publish`."""
        return publish(self.directory, Path(to), **options)


class Batch:
    """A one-use token for one step. What it holds is private, and cannot be exchanged."""

    __slots__ = ("_inputs", "_targets", "_used")

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs, self._targets, self._used = inputs, targets, False

    @property
    def inputs(self) -> Tensor:
        return self._inputs

    @property
    def targets(self) -> Tensor:
        return self._targets


class Epoch:
    """One slot of the plan in use: iterate over it once."""

    def __init__(self, run: "Run", slot: Slot) -> None:
        self._slot = slot
        self._run = run
        self._started = False

    @property
    def index(self) -> int:
        return self._slot.index

    @property
    def sigma(self) -> float:
        return self._slot.sigma

    def __iter__(self) -> Iterator[Batch]:
        if self._started:
            raise BatchMisused(f"epoch {self.index} was iterated already: an epoch runs once")
        self._started = True
        return self._run._batches(self)


class Run:
    """A run in progress. Use as a context manager; see the module's docstring."""

    def __init__(
        self,
        model: torch.nn.Module,
        data: Data,
        plan: Plan,
        *,
        optimizer: OptimizerFactory,
        loss: Callable[..., Tensor],
        out: str | Path,
        holdout: Data | None = None,
        declared: Mapping[str, str] | None = None,
        keep: Mapping[str, bytes] | None = None,
        seeded_for_research_only: int | None = None,
        resume: bool = False,
        **steering: Any,
    ) -> None:
        """Everything that can be refused is refused here, before the run directory exists.

        `steering` is `validation`, `stop`, `scheduler`, `weights` and `averaging`, as in `fit`.
        """
        self._model = model
        self._plan = plan
        self.directory = Path(out)
        self._loss = per_example(loss)
        self._data = PrivateData.of(data, model)
        self._holdout = None if holdout is None else PrivateData.of(holdout, model)
        plan.batching.check_length(len(self._data), plan.examples)
        compatibility.check_model(model, self._loss, self._data.inputs, self._data.targets)
        self.optimizer = compatibility.make_optimizer(optimizer, model)
        if not isinstance(plan, NonPrivatePlan):
            self_test(model, self._loss, self.optimizer, self._data.inputs, self._data.targets, plan.noise)
        self._steering = Steering(model, self._loss, self.optimizer, plan, **steering)
        self._guard = Guard(model, self.optimizer)
        self._declared = {
            **_declarations(model, loss, self.optimizer),
            **guard.starting_point(model),
            **self._steering.declarations(),
            **(declared or {}),
        }
        self._keep = dict(keep or {})
        self._seed = seeded_for_research_only
        RandomStream(self._seed)  # refuses a seed that is no whole number before anything is written
        self._resume = resume
        self._current: Batch | None = None
        self._epoch: Epoch | None = None
        self._metrics = EpochMetrics()
        self.completed = 0
        self.pause_requested: Callable[[], bool] = lambda: False
        self._check_directory()

    @property
    def model(self) -> torch.nn.Module:
        return self._model

    @property
    def plan(self) -> Plan:
        return self._plan

    def __reduce__(self) -> NoReturn:
        """Neither copied nor pickled: two of them could step one batch twice."""
        raise RunError("a run cannot be copied")

    def _check_directory(self) -> None:
        if not self._resume and (self.directory.exists() or self.directory.is_symlink()):
            raise RunError(f"{self.directory} exists already; choose another directory, or resume the run in it")
        if self._resume and not (self.directory / LEDGER).exists():
            raise RunError(
                f"{self.directory} holds no run to resume (no {LEDGER}): nothing was spent there, start a new run"
            )

    def __enter__(self) -> Self:
        guard.open_model(self._model)
        try:
            self._run = self._reopen() if self._resume else self._create()
        except BaseException:
            guard.close_model(self._model, private=not isinstance(self._plan, NonPrivatePlan))
            raise
        try:
            if self._run.saved is not None:
                self._restore(self._run.saved)
            self._stream = self._run.new_stream(self._seed)
            self._ledger = self._run.ledger
            if self._run.saved is not None and self._run.saved.slot == self._ledger.used_slots - 1:
                self._steering.record_missing(self._run.saved, self._ledger, self._stream)
        except BaseException:
            self._close()
            raise
        return self

    def _close(self) -> None:
        self._current = self._epoch = None  # what is stepped from now on is refused
        guard.close_model(self._model, private=not isinstance(self._plan, NonPrivatePlan))
        self._run.close()

    def _create(self) -> RunDirectory:
        return RunDirectory.create(
            self.directory,
            self.plan,
            randomness="secure" if self._seed is None else "seeded-for-research-only",
            declared=self._declared,
            keep=self._keep,
        )

    def _reopen(self) -> RunDirectory:
        return RunDirectory.reopen(self.directory, self.plan, seeded=self._seed is not None, declared=self._declared)

    def _restore(self, saved: Checkpoint) -> None:
        try:
            self.model.load_state_dict(saved.model)
            self.optimizer.load_state_dict(saved.optimizer)
            self._steering.restore(saved)
        except (RuntimeError, ValueError, KeyError) as error:
            raise RunError(
                f"the checkpoint in {self.directory} is of another model or optimizer; resume with those of its start "
                f"({error})"
            ) from error
        self.completed = saved.completed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._guard.before_release()
                self._steering.choose_weights()
                self._run.release(weights_file(self.model))
        finally:
            self._close()

    def __iter__(self) -> Iterator[Epoch]:
        """Epochs until the plan's number is completed, or what it allows is used up, interruptions included."""
        while not self._done():
            if self.pause_requested():
                raise KeyboardInterrupt
            self._current = None  # a batch left behind by the epoch before is void
            started = time.monotonic()
            slot = self._ledger.take_slot()  # record, then release: on disk before the first noisy step
            self._epoch = Epoch(self, slot)
            yield self._epoch
            self._epoch = None
            self.completed += 1
            if not self._finish(slot, time.monotonic() - started):
                break

    def _done(self) -> bool:
        completed = self.plan.epochs is not None and self.completed >= self.plan.epochs
        return completed or self._ledger.next_slot() is None or self._steering.stops(self._ledger.scores)

    def _finish(self, slot: Slot, seconds: float) -> bool:
        """Save the epoch's result, then score it; False if there is nothing left to pay for the look with."""
        self._guard.before_release()
        self._steering.epoch_over()
        self._run.save(self._checkpoint(slot))
        line: dict[str, Any] = {"epoch": slot.index, "sigma": slot.sigma, "seconds": seconds, **self._metrics.take()}
        if self._holdout is not None:
            line["holdout"] = score(self.model, self._loss, self._holdout)
        self._run.add_metrics(line)
        try:
            scored = self._steering.record(self.completed, self._ledger, self._stream)
        except BudgetExhausted:
            return False
        if scored and self._steering.follow(self._ledger.scores):
            self._run.save(self._checkpoint(slot))
        return True

    def _checkpoint(self, slot: Slot) -> Checkpoint:
        return Checkpoint(
            run=self._ledger.run,
            completed=self.completed,
            slot=slot.index,
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            **self._steering.state(),
        )

    def _batches(self, epoch: Epoch) -> Iterator[Batch]:
        for indices in self.plan.batching.draw(len(self._data), self._stream):
            self._require_current(epoch)
            self._expire()
            self._current = self._data.batch(indices, Batch)
            yield self._current
        self._require_current(epoch)
        self._expire()

    def _require_current(self, epoch: Epoch) -> None:
        if epoch is not self._epoch:
            raise BatchMisused(f"epoch {epoch.index} is over: its batches cannot be used any more")

    def _expire(self) -> None:
        """A batch left unstepped becomes a noise-only step: its examples add nothing, the step still happens."""
        if self._current is not None:
            skipped, self._current = self._current, None
            self._step(skipped.inputs[:0], skipped.targets[:0])

    def step(self, batch: Batch) -> None:
        """Use up the batch: clip, add noise, update the parameters."""
        if batch is not self._current or batch._used or self._epoch is None:
            raise BatchMisused(
                "this batch was stepped already, is not the latest one, or belongs to an epoch that is over"
            )
        batch._used, self._current = True, None
        self._step(batch.inputs, batch.targets)

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        assert self._epoch is not None
        self._guard.before_step()
        constants = {"nominal_batch_size": self.plan.nominal_batch_size}
        if isinstance(self.plan, NonPrivatePlan):
            ordinary_step(self.model, self._loss, self.optimizer, inputs, targets, **constants)
            return
        clipped = private_step(
            self.model,
            self._loss,
            self.optimizer,
            inputs,
            targets,
            clip=self.plan.clip,
            sigma=self._epoch.sigma,
            stream=self._stream,
            noise=self.plan.noise,
            **constants,
        )
        self._steering.step_over()
        self._metrics.add(clipped.norms, self.plan.clip)

    @property
    def finished(self) -> FinishedRun:
        return FinishedRun(self.directory)


start = Run


def fit(
    model: torch.nn.Module,
    data: Data,
    plan: Plan,
    *,
    loss: Callable[..., Tensor],
    optimizer: OptimizerFactory,
    out: str | Path,
    holdout: Data | None = None,
    validation: Public | PaidLooks | None = None,
    stop: EarlyStop | None = None,
    scheduler: SchedulerFactory | None = None,
    weights: Weights = "last",
    averaging: float | None = None,
    declared: Mapping[str, str] | None = None,
    keep: Mapping[str, bytes] | None = None,
    progress: bool = True,
    seeded_for_research_only: int | None = None,
    resume: bool = False,
) -> FinishedRun:
    """Train `model` in place as `plan` says, record every epoch in the run directory `out`, and release the weights.

    `data` is (inputs, targets); `holdout`, if given, is scored after every epoch into the private metrics file and
    nowhere else. `keep` are further private files to put into the run directory. `progress` shows a bar.

    What may steer the run: `validation`, Public((inputs, targets)), scored after every epoch into the ledger; `stop`, an
    `EarlyStop` by those scores; `scheduler`, which makes a learning rate scheduler of the optimizer; and `weights`, the
    "last" ones, the "averaged" ones (exponentially over the steps, `averaging` being the decay), or the "better" of both
    by the validation score. Nothing of this lowers the guarantee, which is that of the whole plan.

    Ctrl-C finishes the epoch, saves and raises KeyboardInterrupt; `resume=True` continues the run.
    """
    run = Run(
        model,
        data,
        plan,
        optimizer=optimizer,
        loss=loss,
        out=out,
        holdout=holdout,
        validation=validation,
        stop=stop,
        scheduler=scheduler,
        weights=weights,
        averaging=averaging,
        declared=declared,
        keep=keep,
        seeded_for_research_only=seeded_for_research_only,
        resume=resume,
    )
    watcher: Watcher = Progress(plan) if progress else Silent()
    with run, watcher, PauseOnInterrupt() as pause:
        run.pause_requested = lambda: pause.requested
        for epoch in run:
            watcher.epoch(epoch.index, epoch.sigma)
            for batch in epoch:
                run.step(batch)
                watcher.step()
    return run.finished


def _declarations(
    model: torch.nn.Module, loss: Callable[..., Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, str]:
    """Public facts about how the run was set up; none is computed from the data."""
    settings = {
        k: v for k, v in optimizer.defaults.items() if isinstance(v, int | float | str | tuple) and v is not None
    }
    return {
        "model": " ".join(repr(model).split())[:2000],
        "loss": getattr(loss, "__name__", type(loss).__name__),
        "software": f"apportion {VERSION}, torch {torch.__version__}, Python {platform.python_version()}",
        "optimizer": f"{type(optimizer).__name__}({', '.join(f'{k}={v}' for k, v in sorted(settings.items()))})",
    }
