"""The loop in one call, and the loop of one's own.

`fit` trains, records and releases. With `start` the loop is the user's:

    with start(model, data, plan, optimizer=…, loss=…, out=…) as run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)

It ends by itself when the plan's epochs are done; leaving the `with` block releases the weights.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apportion.adaptive import Plan
from apportion.public import PaidLooks, Public
from apportion.training.compatibility import OptimizerFactory
from apportion.training.finished import FinishedRun
from apportion.training.interruption import PauseOnInterrupt
from apportion.training.learning_rate import SchedulerEvery, SchedulerFactory
from apportion.training.progress import Progress, Silent, Watcher
from apportion.training.run import Run
from apportion.training.sources import Data
from apportion.training.steering import EarlyStop, Weights
from apportion.training.watching import Callback, Logger

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
    scheduler_every: SchedulerEvery = "epoch",
    weights: Weights = "last",
    averaging: float | None = None,
    declared: Mapping[str, str] | None = None,
    keep: Mapping[str, bytes] | None = None,
    workers: int = 0,
    max_physical_batch: int | None = None,
    memory_limit: int | None = None,
    compile: bool = False,
    callbacks: Iterable[Callback] = (),
    loggers: Iterable[Logger] = (),
    progress: bool = True,
    seeded_for_research_only: int | None = None,
    resume: bool = False,
    unit: Any = None,
) -> FinishedRun:
    """Train `model` in place as `plan` says, record every epoch in the run directory `out`, and release the weights.

    `data` is (inputs, targets) as tensors or arrays (a `numpy.memmap` stays on disk), a map-style data set of pairs, read
    by `workers` processes, or a table of `apportion.data.stream_table`; so may be `holdout`, which, if given, is scored
    after every epoch into the private metrics file and nowhere else. `keep` are further private files to put into the run
    directory. `progress` shows a bar. `callbacks` are called after every epoch with an `EpochReport`, which is public;
    `loggers` are told the same, and the private metrics too if they keep to the run directory.

    What may steer the run: `validation`, Public((inputs, targets)), scored after every epoch into the ledger; `stop`, an
    `EarlyStop` by those scores; `scheduler`, which makes a learning rate scheduler of the optimizer, stepped after every
    epoch or step as `scheduler_every` says; and `weights`, the "last" ones, the "averaged" ones (exponentially over the
    steps, `averaging` being the decay), or the "better" of both by the validation score. Nothing of this lowers the
    guarantee, which is that of the whole plan.

    A batch may be larger than memory: at most `max_physical_batch` examples are worked on at once, which changes nothing
    but rounding. If none is given, as many as `memory_limit` bytes hold; by default a quarter of the memory there is.
    `compile=True` has PyTorch compile the gradients of a small model, which takes some seconds and a C++ compiler; plain
    sequences of linear layers are quicker as they are, and stay so.

    If the plan protects persons (`unit=Person()`), `unit` says whose each record is: one id per record.

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
        scheduler_every=scheduler_every,
        weights=weights,
        averaging=averaging,
        declared=declared,
        keep=keep,
        workers=workers,
        max_physical_batch=max_physical_batch,
        memory_limit=memory_limit,
        compile=compile,
        callbacks=callbacks,
        loggers=loggers,
        seeded_for_research_only=seeded_for_research_only,
        resume=resume,
        unit=unit,
    )
    watcher: Watcher = Progress(plan) if progress else Silent()
    with watcher, run, PauseOnInterrupt() as pause:  # components before training may take a while: watched, too
        run.pause_requested = lambda: pause.requested
        for epoch in run:
            watcher.epoch(epoch.index, epoch.sigma)
            for batch in epoch:
                run.step(batch)
                watcher.step()
    return run.finished
