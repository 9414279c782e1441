"""A run: the plan's slots, one epoch after the other, each recorded before its first step.

`fit` is the loop in one call. With `start` the loop is the user's own:

    with start(model, data, plan, optimizer=…, loss=…, out=…) as run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)

It ends by itself when the plan's epochs are done; leaving the `with` block releases the weights.
"""

import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import torch
from torch import Tensor

from apportion import canonical, durable, ledger
from apportion._version import VERSION
from apportion.bundle.files import LEDGER, PLAN, WEIGHTS
from apportion.certificate import Certificate, certify
from apportion.errors import BatchMisused, RunError
from apportion.ledger import LedgerWriter
from apportion.plan import NonPrivatePlan, Plan, Slot
from apportion.randomness import RandomStream
from apportion.training import checkpoint, compatibility
from apportion.training.compatibility import OptimizerFactory
from apportion.training.export import weights_file
from apportion.training.losses import per_example
from apportion.training.metrics import EpochMetrics, score
from apportion.training.progress import Progress, Silent, Watcher
from apportion.training.publishing import PublishOptions, publish
from apportion.training.step import ordinary_step, private_step
from apportion.training.tensors import Data, PrivateData

METRICS = "metrics.jsonl"
LOCK = "lock"
CHECKPOINT = Path("checkpoints") / "latest.pt"


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
    """A one-use token for one step. What it holds is private."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets


class Epoch:
    """One slot of the plan in use: iterate over it once."""

    def __init__(self, run: "Run", slot: Slot) -> None:
        self.index = slot.index
        self.sigma = slot.sigma
        self._run = run
        self._started = False

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
    ) -> None:
        """Everything that can be refused is refused here, before the run directory exists."""
        self.model = model
        self.plan = plan
        self.directory = Path(out)
        self._loss = per_example(loss)
        self._data = PrivateData.of(data, model)
        self._holdout = None if holdout is None else PrivateData.of(holdout, model)
        plan.batching.check_length(len(self._data), plan.examples)
        compatibility.check_model(model, self._loss, self._data.inputs, self._data.targets)
        self.optimizer = compatibility.make_optimizer(optimizer, model)
        self._declared = {**_declarations(model, loss, self.optimizer), **(declared or {})}
        self._keep = dict(keep or {})
        self._seed = seeded_for_research_only
        RandomStream(self._seed)  # refuses a seed that is no whole number before anything is written
        self._resume = resume
        self._current: Batch | None = None
        self._epoch: Epoch | None = None
        self._metrics = EpochMetrics()
        self.completed = 0
        self._check_directory()

    def _check_directory(self) -> None:
        if not self._resume and (self.directory.exists() or self.directory.is_symlink()):
            raise RunError(f"{self.directory} exists already; choose another directory, or resume the run in it")
        if self._resume and not (self.directory / LEDGER).exists():
            raise RunError(f"{self.directory} holds no run to resume (no {LEDGER})")

    def __enter__(self) -> Self:
        if not self._resume:
            self.directory.mkdir(parents=True)
        with ExitStack() as held:  # let go of lock and ledger if the run cannot begin
            held.enter_context(durable.lock(self.directory / LOCK))
            self._ledger = held.enter_context(self._reopen() if self._resume else self._create())
            self._stream = RandomStream(self._seed, start=self._ledger.used_slots)
            self._held = held.pop_all()
        return self

    def _create(self) -> LedgerWriter:
        plan_text = canonical.pretty(self.plan.to_json()).encode()
        for name, content in {**self._keep, PLAN: plan_text}.items():
            durable.replace_file(self.directory / name, content)
        return LedgerWriter.create(
            self.directory / LEDGER,
            the_plan=self.plan,
            randomness="secure" if self._seed is None else "seeded-for-research-only",
            declared=self._declared,
        )

    def _reopen(self) -> LedgerWriter:
        """Check everything before the ledger is touched."""
        recorded = ledger.parse_whole_lines((self.directory / LEDGER).read_bytes())
        if recorded.plan.to_json() != self.plan.to_json():
            raise RunError(f"{self.directory} was begun with another plan; resume it with its own ({PLAN})")
        if recorded.released:
            raise RunError(f"{self.directory} is finished: its weights are released")
        if recorded.randomness == "secure" and self._seed is not None:
            raise RunError("a run begun with secure randomness cannot be resumed with a seed")
        saved = checkpoint.load(self.directory / CHECKPOINT, recorded.run)
        if saved is not None:
            self.model.load_state_dict(saved.model)
            self.optimizer.load_state_dict(saved.optimizer)
            self.completed = saved.completed
        return LedgerWriter.reopen(self.directory / LEDGER)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._release()
        finally:
            self._held.close()

    def __iter__(self) -> Iterator[Epoch]:
        """Epochs until the plan's number is completed, or its slots are used up by interruptions."""
        while self.completed < self.plan.epochs and self._ledger.used_slots < len(self.plan.slots):
            self._current = None  # a batch left behind by the epoch before is void
            started = time.monotonic()
            slot = self._ledger.take_slot()  # record, then release: on disk before the first noisy step
            self._epoch = Epoch(self, slot)
            yield self._epoch
            self._epoch = None
            self.completed += 1
            self._save(slot, time.monotonic() - started)

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
        if batch is not self._current or self._epoch is None:
            raise BatchMisused(
                "this batch was stepped already, is not the latest one, or belongs to an epoch that is over"
            )
        self._current = None
        self._step(batch.inputs, batch.targets)

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        assert self._epoch is not None
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
            **constants,
        )
        self._metrics.add(clipped.norms, self.plan.clip)

    def _save(self, slot: Slot, seconds: float) -> None:
        checkpoint.save(
            self.directory / CHECKPOINT,
            checkpoint.Checkpoint(
                run=self._ledger.run,
                completed=self.completed,
                model=self.model.state_dict(),
                optimizer=self.optimizer.state_dict(),
            ),
        )
        line: dict[str, Any] = {"epoch": slot.index, "sigma": slot.sigma, "seconds": seconds, **self._metrics.take()}
        if self._holdout is not None:
            line["holdout"] = score(self.model, self._loss, self._holdout)
        with open(self.directory / METRICS, "a") as file:
            file.write(json.dumps(line) + "\n")

    def _release(self) -> None:
        weights = weights_file(self.model)
        durable.replace_file(self.directory / WEIGHTS, weights)
        self._ledger.append_release(canonical.sha256(weights))

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
    declared: Mapping[str, str] | None = None,
    keep: Mapping[str, bytes] | None = None,
    progress: bool = True,
    seeded_for_research_only: int | None = None,
    resume: bool = False,
) -> FinishedRun:
    """Train `model` in place as `plan` says, record every epoch in the run directory `out`, and release the weights.

    `data` is (inputs, targets); `holdout`, if given, is scored after every epoch into the private metrics file and
    nowhere else. `keep` are further private files to put into the run directory. `progress` shows a bar.
    """
    run = Run(
        model,
        data,
        plan,
        optimizer=optimizer,
        loss=loss,
        out=out,
        holdout=holdout,
        declared=declared,
        keep=keep,
        seeded_for_research_only=seeded_for_research_only,
        resume=resume,
    )
    watcher: Watcher = Progress(plan) if progress else Silent()
    with run, watcher:
        for epoch in run:
            watcher.epoch(epoch.index)
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
