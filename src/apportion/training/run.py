"""A run in progress: the plan's slots, one epoch after the other, each recorded before its first step."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from apportion import by_epoch
from apportion.adaptive import Plan
from apportion.bundle.files import LEDGER
from apportion.errors import BatchMisused, BudgetExhausted, RunError
from apportion.plan import NonPrivatePlan, Slot
from apportion.randomness import RandomStream
from apportion.training import guard
from apportion.training.checkpoint import Checkpoint
from apportion.training.compatibility import OptimizerFactory, unknown_seeds
from apportion.training.export import weights_file
from apportion.training.finished import FinishedRun
from apportion.training.metrics import EpochMetrics, score
from apportion.training.ready import make_ready
from apportion.training.records import Part, Units
from apportion.training.run_directory import RunDirectory
from apportion.training.sources import Data
from apportion.training.step import ordinary_step, step_in_parts
from apportion.training.tokens import Batch, Epoch
from apportion.training.watching import Callback, EpochReport, Logger, Watchers, report_of


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
        workers: int = 0,
        max_physical_batch: int | None = None,
        memory_limit: int | None = None,
        compile: bool = False,
        callbacks: Iterable[Callback] = (),
        loggers: Iterable[Logger] = (),
        seeded_for_research_only: int | None = None,
        resume: bool = False,
        unit: Any = None,
        **steering: Any,
    ) -> None:
        """Everything that can be refused is refused here, before the run directory exists.

        What is not explained here is as in `fit`; `steering` is `validation`, `stop`, `scheduler`, `scheduler_every`,
        `weights` and `averaging`.
        """
        self._ready = make_ready(
            model,
            data,
            plan,
            optimizer=optimizer,
            loss=loss,
            holdout=holdout,
            declared=declared or {},
            workers=workers,
            max_physical_batch=max_physical_batch,
            memory_limit=memory_limit,
            compile=compile,
            unit=unit,
            steering=steering,
        )
        self.directory = Path(out)
        self._watchers = Watchers(callbacks, loggers)
        self._steering, self._guard = self._ready.steering, self._ready.guard
        self._keep = dict(keep or {})
        self._seed = seeded_for_research_only
        RandomStream(self._seed)  # refuses a seed that is no whole number before anything is written
        self._resume = resume
        self._seeds = ExitStack()
        self._current: Batch | None = None
        self._epoch: Epoch | None = None
        self._metrics = EpochMetrics()
        self.completed = 0
        self.pause_requested: Callable[[], bool] = lambda: False
        self._check_directory()

    @property
    def model(self) -> torch.nn.Module:
        return self._ready.model

    @property
    def plan(self) -> Plan:
        return self._ready.plan

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._ready.optimizer

    @property
    def physical_batch(self) -> int:
        """The most examples that are worked on at the same time."""
        return self._ready.at_once

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
        guard.open_model(self.model)
        try:
            self._run = self._reopen() if self._resume else self._create()
        except BaseException:
            guard.close_model(self.model, private=not isinstance(self.plan, NonPrivatePlan))
            raise
        try:
            if self._seed is None and not isinstance(self.plan, NonPrivatePlan):
                self._seeds.enter_context(unknown_seeds())
            if self._run.saved is not None:
                self._restore(self._run.saved)
            self._stream = self._run.new_stream(self._seed)
            self._ledger = self._run.ledger
            self._watchers.open(self.directory)
            self._ready.preparation.run(self._ready.records, self._run, self._stream)
            self._guard.accept(self._ready.preparation.names)
            if self._run.saved is not None and self._run.saved.slot == self._ledger.used_slots - 1:
                self._steering.record_missing(self._run.saved, self._ledger, self._stream)
        except BaseException:
            self._close()
            raise
        return self

    def _close(self) -> None:
        self._current = self._epoch = None  # what is stepped from now on is refused
        self._seeds.close()
        guard.close_model(self.model, private=not isinstance(self.plan, NonPrivatePlan))
        self._run.close()
        self._watchers.close()

    def _create(self) -> RunDirectory:
        return RunDirectory.create(
            self.directory,
            self.plan,
            randomness="secure" if self._seed is None else "seeded-for-research-only",
            declared=self._ready.declared,
            keep=self._keep,
        )

    def _reopen(self) -> RunDirectory:
        return RunDirectory.reopen(
            self.directory, self.plan, seeded=self._seed is not None, declared=self._ready.declared
        )

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
            self._epoch = Epoch(slot, self._batches)
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
        private: dict[str, Any] = {"seconds": seconds, **self._metrics.take()}
        if self._ready.holdout is not None:
            private["holdout"] = score(self.model, self._ready.loss, self._ready.holdout, self._ready.at_once)
        self._run.add_metrics({"epoch": slot.index, "sigma": slot.sigma, **private})
        try:
            scored = self._steering.record(self.completed, self._ledger, self._stream)
        except BudgetExhausted:
            return False
        if scored and self._steering.follow(self._ledger.scores):
            self._run.save(self._checkpoint(slot))
        self._watchers.epoch_over(self._report(slot), private)
        return True

    def _report(self, slot: Slot) -> EpochReport:
        scores = self._ledger.scores
        return report_of(
            self.model,
            self.optimizer,
            index=slot.index,
            completed=self.completed,
            sigma=slot.sigma,
            score=scores[-1] if scores else None,
        )

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
        for batch in self._drawn(epoch):
            self._require_current(epoch)
            self._expire()
            self._current = batch
            yield batch
        self._require_current(epoch)
        self._expire()

    def _drawn(self, epoch: Epoch) -> Iterator[Batch]:
        ready, batching = self._ready, self.plan.batching.at(epoch.index)
        if ready.persons is None:
            drawn = list(batching.draw(len(ready.records), self._stream))  # at once: some sources read ahead
            for parts in ready.records.epoch(drawn, ready.at_once):
                yield Batch(parts)
        else:
            for parts, units in ready.persons.epoch(ready.records, batching, ready.at_once, self._stream):
                yield Batch(parts, units)

    def _require_current(self, epoch: Epoch) -> None:
        if epoch is not self._epoch:
            raise BatchMisused(f"epoch {epoch.index} is over: its batches cannot be used any more")

    def _expire(self) -> None:
        """A batch left unstepped becomes a noise-only step: its examples add nothing, the step still happens."""
        if self._current is not None:
            units, self._current = self._current.units, None
            self._step([self._ready.records.like], None if units is None else units.none())

    def step(self, batch: Batch) -> None:
        """Use up the batch: clip, add noise, update the parameters."""
        if batch is not self._current or batch.used or self._epoch is None:
            raise BatchMisused(
                "this batch was stepped already, is not the latest one, or belongs to an epoch that is over"
            )
        self._current = None
        self._step(batch.take(), batch.units)

    def _step(self, parts: Iterable[Part], units: Units | None) -> None:
        assert self._epoch is not None
        self._guard.before_step()
        ready, index = self._ready, self._epoch.index
        size = self.plan.batching.at(index).nominal_batch_size(self.plan.examples)
        if isinstance(self.plan, NonPrivatePlan):
            ordinary_step(ready.model, ready.loss, ready.optimizer, parts, nominal_batch_size=size)
        else:
            clip = by_epoch.at(self.plan.clip, index)
            clipped = step_in_parts(
                ready.model,
                ready.loss,
                ready.optimizer,
                parts,
                units=units,
                clip=clip,
                clipping=self.plan.clipping,
                sigma=self._epoch.charged,
                nominal_batch_size=size,
                stream=self._stream,
                noise=self.plan.noise,
            )
            self._metrics.add(clipped, clip)
        self._steering.step_over()

    @property
    def finished(self) -> FinishedRun:
        return FinishedRun(self.directory)
