"""What must not change while a run is open, except by its own noisy updates.

The start-up checks speak of the model as it was then. The guard sees to it that it stays that model: the same modes, the
same trainable parameters, and everything that is published but not trained (buffers, frozen parameters) as it was.
"""

import hashlib
from collections.abc import Collection
from weakref import WeakSet

import torch

from apportion.errors import IncompatibleModel, RunError
from apportion.training.gradients import trainable
from apportion.training.gradients.structure import Structure

_PIECE = 1 << 20  # values
_OPEN: "WeakSet[torch.nn.Module]" = WeakSet()
_TRAINED: "WeakSet[torch.nn.Module]" = WeakSet()
_TRAINED_WITHOUT_PRIVACY: "WeakSet[torch.nn.Module]" = WeakSet()


class Guard:
    """Made when a run is set up; asked before every step and before anything is released."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._modes = [(name, module, module.training) for name, module in model.named_modules()]
        self._modules = [module for _, module, _ in self._modes]
        self._training = [training for _, _, training in self._modes]
        self._structure, self._updated = Structure(model), self._parameters_of_optimizer()
        self._trainable = self._trained()
        self._still = self._not_trained()

    def _trained(self) -> dict[str, int]:
        return {name: id(parameter) for name, parameter in trainable(self._model).items()}

    def _parameters_of_optimizer(self) -> list[int]:
        return [id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]]

    def _not_trained(self) -> dict[str, bytes]:
        """A digest of everything that is published but not trained; a frozen backbone may be too large to copy."""
        learned = {id(parameter) for parameter in trainable(self._model).values()}
        return {name: _digest(value) for name, value in state_of(self._model).items() if id(value) not in learned}

    def accept(self, names: Collection[str]) -> None:
        """These have just been set to what a recorded component released: from now on they must stay so."""
        now = self._not_trained()
        self._still |= {name: now[name] for name in names}

    def before_step(self) -> None:
        """Refuse a step of a model that is no longer the one that was checked; nothing has been touched then."""
        if [module.training for module in self._modules] != self._training:
            raise IncompatibleModel(
                [
                    f"{name or 'the model'} ({type(module).__name__}) was put into "
                    f"{'training' if module.training else 'evaluation'} mode after the run was set up: what it does then "
                    "was not checked. Put back the mode it had, or set modes before the run"
                    for name, module, training in self._modes
                    if module.training != training
                ]
            )
        if self._parameters_of_optimizer() != self._updated or not self._has_the_same_parameters():
            raise IncompatibleModel(
                ["parameters were frozen, unfrozen or exchanged after the run was set up; do that before the run"]
            )

    def _has_the_same_parameters(self) -> bool:
        """Quickly if the whole model is the same; something that is not trained may have been exchanged, though."""
        return self._structure.fits(self._model) or self._trained() == self._trainable

    def before_release(self) -> None:
        """Refuse to let go of anything if what is not trained has changed: no noise was added to that."""
        now = self._not_trained()
        changed = sorted(name for name in {*now, *self._still} if now.get(name) != self._still.get(name))
        if changed:
            raise IncompatibleModel(
                [
                    f"{name} is not trained, yet it changed during the run, without noise: keep it constant"
                    for name in changed
                ]
            )


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, buffers, and what else is published with them: modules may add to their state (`get_extra_state`)."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers()), **model.state_dict(keep_vars=True)}


def _digest(tensor: torch.Tensor) -> bytes:
    digest = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    for piece in tensor.detach().reshape(-1).split(_PIECE):  # type: ignore[no-untyped-call]  # torch's stub
        digest.update(piece.contiguous().cpu().view(torch.uint8).numpy())
    return digest.digest()


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
