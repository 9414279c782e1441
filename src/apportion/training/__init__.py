"""Private training with PyTorch. The only part of the package that imports torch."""

from apportion.training.loop import Batch, Epoch, FinishedRun, Run, fit, start

__all__ = ["Batch", "Epoch", "FinishedRun", "Run", "fit", "start"]
