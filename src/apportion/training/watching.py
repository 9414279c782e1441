"""Those who watch a run: callbacks, which are told public values, and loggers, which write numbers down.

What a callback is told may be told to anyone: it is fixed beforehand, was paid for, or comes from public data. Training
loss, gradient norms, scores on private records and clock times (which depend on how many records a batch got) are not
among it. They are written to the run directory, and to loggers that keep what they write inside it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from apportion.errors import InvalidArgument

TENSORBOARD = "tensorboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """Public: the epoch's slot, how many are completed, its noise, the learning rate after it, the latest score if any.

    `weights()` gives a copy of the model's state, which is covered by the guarantee after every epoch.
    """

    index: int
    completed: int
    sigma: float
    learning_rate: float
    score: float | None
    weights: Callable[[], dict[str, Tensor]]

    def numbers(self) -> dict[str, float]:
        known = {"sigma": self.sigma, "learning_rate": self.learning_rate}
        return known if self.score is None else {**known, "score": self.score}


Callback = Callable[[EpochReport], object]


@runtime_checkable
class Logger(Protocol):
    """Where an epoch's numbers go.

    `keeps_to_run_directory` says that nothing it is told leaves that directory. Only then is it told private metrics
    (named `private/…`) besides the public values.
    """

    keeps_to_run_directory: bool

    def open(self, run_directory: Path) -> None: ...
    def log(self, epoch: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """For `tensorboard --logdir`. By default in the run directory, with the private metrics; elsewhere without them."""

    def __init__(self, directory: str | Path | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InvalidArgument("TensorBoard needs its package: pip install 'apportion[tensorboard]'") from error
        self._make: Any = SummaryWriter
        self._directory = directory
        self._writer: Any = None
        self.keeps_to_run_directory = directory is None

    def open(self, run_directory: Path) -> None:
        self._writer = self._make(log_dir=str(self._directory or run_directory / TENSORBOARD))

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Outside the run directory the epoch stands for the clock: how long it took depends on the private records."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch, walltime=None if self.keeps_to_run_directory else float(epoch))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Watchers:
    """All that watch one run."""

    def __init__(self, callbacks: Iterable[Callback] = (), loggers: Iterable[Logger] = ()) -> None:
        self._callbacks, self._loggers = tuple(callbacks), tuple(loggers)
        for callback in self._callbacks:
            if not callable(callback):
                raise InvalidArgument(f"a callback must be callable with an EpochReport, got {callback!r:.80}")
        for logger in self._loggers:
            if not isinstance(logger, Logger):
                raise InvalidArgument(
                    f"a logger must have keeps_to_run_directory, open, log and close, got {type(logger).__name__}"
                )

    def open(self, run_directory: Path) -> None:
        for logger in self._loggers:
            logger.open(run_directory)

    def epoch_over(self, report: EpochReport, private: Mapping[str, Any]) -> None:
        public = report.numbers()
        everything = {**public, **_flat(private, "private/")}
        for logger in self._loggers:
            logger.log(report.index, everything if logger.keeps_to_run_directory else public)
        for callback in self._callbacks:
            callback(report)

    def close(self) -> None:
        for logger in self._loggers:
            logger.close()


def report_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, **public: Any) -> EpochReport:
    def weights() -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in model.state_dict().items()}

    return EpochReport(learning_rate=float(optimizer.param_groups[0]["lr"]), weights=weights, **public)


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Numbers by path; what is no number is left out."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            found[f"{prefix}{name}"] = float(value)
    return found
