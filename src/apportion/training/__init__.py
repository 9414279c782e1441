"""Private training with PyTorch. The only part of the package that imports torch."""

from apportion.public import PaidLooks, Public
from apportion.training.finished import FinishedRun
from apportion.training.frozen import ClassWeighted, Projection, Standardise
from apportion.training.group_norm import Replaced, replace_batch_norm
from apportion.training.layers import count_layers
from apportion.training.learning_rate import LinearThenConstant
from apportion.training.loop import fit, start
from apportion.training.rehearsal import Prospect, rehearse
from apportion.training.run import Run
from apportion.training.selecting import select
from apportion.training.steering import EarlyStop
from apportion.training.tokens import Batch, Epoch
from apportion.training.trials import Configuration
from apportion.training.watching import EpochReport, Logger, TensorBoard

__all__ = [
    "Batch",
    "ClassWeighted",
    "Configuration",
    "EarlyStop",
    "Epoch",
    "EpochReport",
    "FinishedRun",
    "LinearThenConstant",
    "Logger",
    "PaidLooks",
    "Projection",
    "Prospect",
    "Public",
    "Replaced",
    "Run",
    "Standardise",
    "TensorBoard",
    "count_layers",
    "fit",
    "rehearse",
    "replace_batch_norm",
    "select",
    "start",
]
