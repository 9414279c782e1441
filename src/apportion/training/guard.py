"""What must not change while a run is open, except by its own noisy updates.

The start-up checks speak of the model as it was then. The guard sees to it that it stays that model: the same modes, the
same trainable parameters, and everything that is published but not trained (buffers, frozen parameters) as it was.
"""

from weakref import WeakSet

import torch

from apportion.errors import IncompatibleModel, RunError
from apportion.training.gradients import trainable

_OPEN: "WeakSet[torch.nn.Module]" = WeakSet()
_TRAINED: "WeakSet[torch.nn.Module]" = WeakSet()
_TRAINED_WITHOUT_PRIVACY: "WeakSet[torch.nn.Module]" = WeakSet()


class Guard:
    """Made when a run is set up; asked before every step and before anything is released."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._modes = [(name, module, module.training) for name, module in model.named_modules()]
        self._trainable = self._trained()
        still = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._still = {name: value.detach().clone() for name, value in still.items() if name not in trainable(model)}

    def _trained(self) -> tuple[tuple[str, int], ...]:
        updated = [id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]]
        return (*((name, id(p)) for name, p in trainable(self._model).items()), *(("optimizer", i) for i in updated))

    def before_step(self) -> None:
        """Refuse a step of a model that is no longer the one that was checked; nothing has been touched then."""
        for name, module, training in self._modes:
            if module.training != training:
                mode = "training" if module.training else "evaluation"
                raise IncompatibleModel(
                    [
                        f"{name or 'the model'} ({type(module).__name__}) was put into {mode} mode after the run was set "
                        "up: what it does then was not checked. Put back the mode it had, or set modes before the run"
                    ]
                )
        if self._trained() != self._trainable:
            raise IncompatibleModel(
                ["parameters were frozen, unfrozen or exchanged after the run was set up; do that before the run"]
            )

    def before_release(self) -> None:
        """Refuse to let go of anything if what is not trained has changed: no noise was added to that."""
        now = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        known = set(self._still) | set(trainable(self._model))
        reasons = [f"{name} appeared after the run was set up" for name in now if name not in known]
        for name, before in self._still.items():
            if name not in now or now[name].shape != before.shape or not _same(now[name].detach(), before):
                reasons.append(f"{name} is not trained, yet it changed during the run, without noise: keep it constant")
        if reasons:
            raise IncompatibleModel(reasons)


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal, NaN being equal to itself."""
    equal = first == second
    return bool((equal | ((first != first) & (second != second))).all())


def open_model(model: torch.nn.Module) -> None:
    if model in _OPEN:
        raise RunError("this model is being trained by another open run: two runs on one model cover neither")
    _OPEN.add(model)


def close_model(model: torch.nn.Module, *, private: bool) -> None:
    _OPEN.discard(model)
    (_TRAINED if private else _TRAINED_WITHOUT_PRIVACY).add(model)


def starting_point(model: torch.nn.Module) -> dict[str, str]:
    """What the ledger must declare about the weights that a run begins with."""
    if model in _TRAINED_WITHOUT_PRIVACY:
        return {
            "starting point": "weights trained WITHOUT PRIVACY in the same process; whatever that saw is not covered"
        }
    if model in _TRAINED:
        return {"starting point": "weights of an earlier private run in the same process, whose cost comes on top"}
    return {}
