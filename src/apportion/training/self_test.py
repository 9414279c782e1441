"""The start-up self-test: on random data, that clipping and noise reach every parameter of this very model.

It runs the functions that a private step runs, on the model and optimizer of the run, and puts everything back. It never
calls a user's own `step`: what has side effects may happen only in an epoch that is on record.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from scipy.special import chdtr, chdtrc
from torch import Tensor

from apportion.clipping import FLAT, Clipping, PerLayer
from apportion.errors import IncompatibleModel
from apportion.plan import Noise
from apportion.randomness import RandomStream
from apportion.training import compatibility, step
from apportion.training.clipping import ClippedSum, clip_factors, stability_of
from apportion.training.gradients import trainable
from apportion.training.layers import Layer, layers_of
from apportion.training.losses import PerExampleLoss
from apportion.units import EXAMPLE, Person, Unit

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-2}  # of the clipping norm; a missing layer is off by much more
_SIGMA = 3.0
_FALSE_ALARM = 1e-12
_DRAWS: dict[Noise, int] = {"float": 1, "grid": 3}  # on a grid, noise is exactly 0 once in 2^25 times


def self_test(
    model: torch.nn.Module,
    loss: PerExampleLoss,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    noise: Noise = "float",
    clipping: Clipping = FLAT,
    unit: Unit = EXAMPLE,
) -> None:
    """Refuse, with the parameter's name, a run in which the private path misses a parameter or is by-passed.

    Only shapes and dtypes of `inputs` and `targets` are used.
    """
    reasons = _sharing_memory(model)
    with compatibility.isolated(model), _undisturbed(model, optimizer):
        examples, labels = compatibility.random_examples(model, inputs, targets)
        reasons += _untracked(model, loss, examples, labels)
        if not reasons:
            clipped, problems = _clipping(model, loss, examples, labels, clipping, unit)
            reasons += problems + _noise(clipped, noise)
        if not reasons:
            reasons += _update(model, optimizer, clipped)
    if reasons:
        raise IncompatibleModel(reasons)


def _sharing_memory(model: torch.nn.Module) -> list[str]:
    owners: dict[int, str] = {}
    reasons = []
    for name, parameter in model.named_parameters():
        if parameter.numel() and (first := owners.setdefault(parameter.data_ptr(), name)) != name:
            reasons.append(
                f"parameters {first} and {name} share memory without being one Parameter, so that each is updated by the "
                "other's gradient: tie them by assigning the same Parameter to both"
            )
    return reasons


def _untracked(model: torch.nn.Module, loss: PerExampleLoss, examples: Tensor, labels: Tensor) -> list[str]:
    """Leaves of the loss that require a gradient but are no trainable parameters of the model."""
    known = {id(parameter) for parameter in trainable(model).values()}
    pending, seen = [loss(model(examples), labels).sum().grad_fn], set()
    reasons = []
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            reasons.append(
                f"{_place_of(leaf, model)} of shape {tuple(leaf.shape)} takes part in the loss but is not a registered "
                "parameter of the model: register it (torch.nn.Parameter, ModuleList), or detach it"
            )
        pending += [following for following, _ in node.next_functions]
    return reasons


def _place_of(leaf: Tensor, model: torch.nn.Module) -> str:
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("_") and attribute in ("_parameters", "_modules", "_buffers"):
                continue
            if any(found is leaf for found in _tensors(value)):
                return f"{name + '.' if name else ''}{attribute} ({type(module).__name__})"
    return "a tensor outside the model"


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _clipping(
    model: torch.nn.Module, loss: PerExampleLoss, examples: Tensor, labels: Tensor, clipping: Clipping, unit: Unit
) -> tuple[ClippedSum, list[str]]:
    """The clipped sum of a step against one ordinary backward pass per example."""
    _switch_off_dropout(model)
    repeatable = compatibility.is_repeatable(model, examples)
    gradients = [_gradient(model, loss, examples[i : i + 1], labels[i : i + 1]) for i in range(len(examples))]
    clip = max(float(_norms(gradients, trainable(model)).median()), 1e-6)
    before = {name: tensor.detach().clone() for name, tensor in _all_state(model)}
    if isinstance(unit, Person):
        clipped = step.clipped_sum_of_units(
            model, loss, [(examples, labels)], [1] * len(examples), clip=clip, clipping=clipping
        )
    else:
        clipped = step.clipped_sum(model, loss, examples, labels, clip=clip, clipping=clipping)
    reasons = [
        f"{name} changes while gradients are computed, outside the private path"
        for name, tensor in _all_state(model)
        if not torch.equal(tensor, before[name])
    ]
    for layer in _layers(model, clipping, clip):
        factors = clip_factors(_norms(gradients, layer.parameters), layer.clip, stability_of(clipping))
        for name in layer.parameters:
            if name not in clipped.sums:
                reasons.append(
                    f"parameter {name} is not reached by clipping: its gradient is missing from the clipped sum"
                )
            elif repeatable:
                expected = sum(float(f) * one[name].double() for f, one in zip(factors, gradients, strict=True))
                error = float((clipped.sums[name].cpu() - torch.as_tensor(expected).cpu()).norm())
                if not error <= _TOLERANCE.get(gradients[0][name].dtype, 0.1) * layer.clip * len(examples):
                    reasons.append(
                        f"parameter {name} is not clipped as it should be: its sum is off by {error / layer.clip:.3g} clips"
                    )
    return clipped, reasons


def _layers(model: torch.nn.Module, clipping: Clipping, clip: float) -> tuple[Layer, ...]:
    names = tuple(trainable(model))
    if isinstance(clipping, PerLayer):
        return layers_of(names, clipping, clip)
    return (Layer(label="(model)", parameters=names, clip=clip),)


def _norms(gradients: Sequence[Mapping[str, Tensor]], names: Iterable[str]) -> Tensor:
    names = tuple(names)
    squares = [sum(float((one[name].double() ** 2).sum()) for name in names) for one in gradients]
    return torch.tensor(squares, dtype=torch.float64).sqrt()


def _gradient(model: torch.nn.Module, loss: PerExampleLoss, example: Tensor, label: Tensor) -> dict[str, Tensor]:
    parameters = trainable(model)
    value = loss(model(example), label).sum()
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(parameters.items(), found, strict=True)}


def _noise(clipped: ClippedSum, kind: Noise) -> list[str]:
    """Every coordinate moved, and by the right amount: a false alarm has a chance below 1e-12."""
    draws = [step.add_noise(clipped, _SIGMA, RandomStream(), kind) for _ in range(_DRAWS[kind])]
    reasons, squares, count = [], 0.0, 0
    for name, total in clipped.sums.items():
        noises = torch.stack([(draw.sums[name].double() - total.double()).cpu() for draw in draws])
        noise = noises[0] / (_SIGMA * clipped.scale(name))
        if bool((noises == 0).all(0).any()):
            reasons.append(f"parameter {name} is not reached by noise: parts of its sum are released as they are")
        squares, count = squares + float((noise**2).sum()), count + noise.numel()
    if not reasons and min(chdtr(count, squares), chdtrc(count, squares)) < _FALSE_ALARM:
        reasons.append(f"the noise has {math.sqrt(squares / count):.3g} times the standard deviation that is certified")
    return reasons


def _update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, clipped: ClippedSum) -> list[str]:
    """An update moves what is trainable and nothing else. Known only of torch's own optimizers and what extends them."""
    plain_step = _torch_step(optimizer)
    if plain_step is None:
        return []
    before = {name: tensor.detach().clone() for name, tensor in _all_state(model)}
    step.assign(model, step.add_noise(clipped, _SIGMA, RandomStream()))
    missing = [name for name, parameter in trainable(model).items() if parameter.grad is None]
    reasons = [f"parameter {name} is not reached by the private gradient" for name in missing]
    plain_step(optimizer)
    moving = {id(p) for group in optimizer.param_groups if group.get("lr", 1) for p in group["params"]}
    parameters = trainable(model)
    for name, tensor in _all_state(model):
        moved = not torch.equal(tensor, before[name])
        if moved and name not in parameters:
            reasons.append(f"{name} is updated by the optimizer although it is not a trainable parameter")
        if (
            not moved
            and name in parameters
            and name not in missing
            and id(parameters[name]) in moving
            and tensor.numel()
        ):
            reasons.append(f"parameter {name} is not updated by the optimizer: noise and gradient do not reach it")
    return reasons


def _torch_step(optimizer: torch.optim.Optimizer) -> Any:
    """The `step` of the torch class that this optimizer is, or extends."""
    for cls in type(optimizer).__mro__:
        if cls.__module__.startswith("torch.optim.") and cls is not torch.optim.Optimizer and "step" in vars(cls):
            return vars(cls)["step"]
    return None


def _all_state(model: torch.nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _switch_off_dropout(model: torch.nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.training = False


@contextmanager
def _undisturbed(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Put back parameters, gradients, modes and the optimizer's state; keep its hooks from seeing any of this."""
    values = {name: tensor.detach().clone() for name, tensor in _all_state(model)}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    modes = [(module, module.training) for module in model.modules()]
    state = {parameter: copy.deepcopy(entry) for parameter, entry in optimizer.state.items()}
    settings = [{k: copy.deepcopy(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    hooks = {name: vars(optimizer).get(name) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")}
    vars(optimizer).update({name: OrderedDict() for name in hooks})
    try:
        yield
    finally:
        vars(optimizer).update(hooks)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, kept in zip(optimizer.param_groups, settings, strict=True):
            group.update(kept)
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for name, tensor in _all_state(model):
                tensor.copy_(values[name])
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
