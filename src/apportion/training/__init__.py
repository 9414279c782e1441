"""Private training with PyTorch. The only part of the package that imports torch."""

from apportion.public import PaidLooks, Public
from apportion.training.loop import Batch, Epoch, FinishedRun, Run, fit, start
from apportion.training.steering import EarlyStop

__all__ = ["Batch", "EarlyStop", "Epoch", "FinishedRun", "PaidLooks", "Public", "Run", "fit", "start"]
