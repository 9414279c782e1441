"""Averaged weights: post-processing of what was paid for, so they cost nothing."""

import torch
from torch import Tensor

from apportion import _checks
from apportion.training.gradients import trainable


class WeightAverage:
    """An exponential moving average of the parameters over the steps.

    The weights before the first step count less and less from the start: after t steps, the old average keeps
    min(decay, (1 + t)/(10 + t)), as in De et al. 2022 (arXiv 2204.13650), so that a decay close to 1 does not keep the
    random weights of the beginning in a short run.
    """

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self.decay = _checks.probability("averaging", decay)
        self.steps = 0
        self._model = model
        self.averages = self._current()

    def _current(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in trainable(self._model).items()}

    def add(self) -> None:
        """After a step."""
        self.steps += 1
        kept = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, parameter in trainable(self._model).items():
            self.averages[name].lerp_(parameter.detach(), 1 - kept)

    def load(self, averages: dict[str, Tensor], steps: int) -> None:
        self.steps = steps
        for name, average in self.averages.items():
            average.copy_(averages[name])

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's parameters with their averages."""
        for name, parameter in trainable(self._model).items():
            kept = parameter.detach().clone()
            parameter.copy_(self.averages[name])
            self.averages[name] = kept
