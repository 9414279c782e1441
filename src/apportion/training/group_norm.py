"""BatchNorm mixes the examples of a batch and is refused; GroupNorm does its work within each example."""

import copy
from dataclasses import dataclass

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from apportion import _checks
from apportion.errors import IncompatibleModel

# Channels in a group, at least: a group of one value would be normalised to nothing.
_FEWEST = 2
_FEWEST_WITHOUT_POSITIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A copy of a model with its BatchNorm layers replaced, and what was done, layer by layer. Print it to see."""

    model: torch.nn.Module
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.changes) or "nothing to replace: the model has no BatchNorm"


def replace_batch_norm(model: torch.nn.Module, *, groups: int = 32) -> Replaced:
    """A copy of `model` with GroupNorm in place of BatchNorm, at most `groups` groups each; `model` stays as it is.

    Scale and offset are kept, running statistics dropped, so a pre-trained model needs some training to get used to it.
    The names of the remaining parameters do not change.
    """
    most = _checks.count("groups", groups)
    _refuse_lazy(model)
    made: dict[_BatchNorm, torch.nn.GroupNorm] = {}
    changes: list[str] = []
    copied = copy.deepcopy(model)
    if isinstance(copied, _BatchNorm):
        copied = _replacement("the model", copied, most, changes)
    for name, parent in list(copied.named_modules()):
        for key, child in list(parent._modules.items()):
            if isinstance(child, _BatchNorm):
                if child not in made:
                    made[child] = _replacement(f"{name}.{key}" if name else key, child, most, changes)
                parent._modules[key] = made[child]
    return Replaced(model=copied, changes=tuple(changes))


def _refuse_lazy(model: torch.nn.Module) -> None:
    reasons = [
        f"{name or 'the model'} ({type(module).__name__}) does not know its channels yet: run the model once"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params()  # type: ignore[misc]
    ]
    if reasons:
        raise IncompatibleModel(reasons)


def _replacement(name: str, old: _BatchNorm, most: int, changes: list[str]) -> torch.nn.GroupNorm:
    channels = old.num_features
    fewest = _FEWEST_WITHOUT_POSITIONS if isinstance(old, torch.nn.BatchNorm1d) else _FEWEST
    count = max(d for d in range(1, most + 1) if channels % d == 0 and (d == 1 or channels // d >= fewest))
    new = torch.nn.GroupNorm(count, channels, eps=old.eps, affine=old.affine)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    new.train(old.training)
    kept = "scale and offset kept" if old.affine else "without scale and offset, as before"
    statistics = "" if old.running_mean is None else "; running statistics dropped"
    changes.append(f"{name}: {type(old).__name__}({channels}) → GroupNorm({count}, {channels}), {kept}{statistics}")
    return new
