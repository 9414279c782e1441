"""What mixes examples is refused, with the replacement named; found by type and by experiment on random data."""

import copy
import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from apportion.errors import IncompatibleModel
from apportion.training.counting import evaluating
from apportion.training.gradients import trainable
from apportion.training.guard import state_of
from apportion.training.losses import PerExampleLoss

OptimizerFactory = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]

# What differs by more than this, relatively, was not caused by rounding.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_EXAMPLES = 5
_SEEDS = 3


def check_model(model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor) -> None:
    """Refuse a model or loss in which one example can change another's loss, naming every reason found.

    Only shapes and dtypes of `inputs` and `targets` are used: the experiment runs on random data.
    """
    reasons = [*_unsuitable_modules(model)]
    if not trainable(model):
        reasons.append("the model has no trainable parameter: all are frozen (requires_grad is False)")
    if not reasons:
        reasons += _found_by_experiment(model, loss, inputs, targets)
    if reasons:
        raise IncompatibleModel(reasons)


def make_optimizer(factory: OptimizerFactory, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The user's optimizer, checked to update exactly the model's trainable parameters, without closures."""
    parameters = trainable(model)
    optimizer = factory(list(parameters.values()))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise IncompatibleModel([f"optimizer must return a torch.optim.Optimizer, got {type(optimizer).__name__}"])
    reasons = []
    if isinstance(optimizer, torch.optim.LBFGS):
        reasons.append("LBFGS evaluates the loss several times per step (a closure); use SGD or Adam")
    elif _needs_closure(optimizer):
        reasons.append(f"{type(optimizer).__name__}.step needs a closure, which would see the loss without noise")
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    known = {id(parameter) for parameter in parameters.values()}
    if given - known:
        shapes = ", ".join(
            str(tuple(p.shape)) for group in optimizer.param_groups for p in group["params"] if id(p) not in known
        )
        reasons.append(
            f"the optimizer updates parameters that are not trainable parameters of this model (shapes {shapes:.200}): make "
            "it from the parameters that it is given"
        )
    reasons += [
        f"parameter {name} is not in the optimizer: freeze it with requires_grad_(False), or give it to the optimizer"
        for name, parameter in parameters.items()
        if id(parameter) not in given
    ]
    if reasons:
        raise IncompatibleModel(reasons)
    return optimizer


def in_words(optimizer: torch.optim.Optimizer) -> str:
    """Its class and settings, as a ledger or a certificate shows them."""
    settings = {k: v for k, v in sorted(optimizer.defaults.items()) if isinstance(v, int | float | str | tuple)}
    return f"{type(optimizer).__name__}({', '.join(f'{name}={value}' for name, value in settings.items())})"


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    taken = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in taken)


def _unsuitable_modules(model: torch.nn.Module) -> Iterator[str]:
    for name, value in state_of(model).items():
        if not isinstance(value, Tensor):
            yield f"{name} in the model's state_dict is no tensor ({type(value).__name__}), and only tensors are published"
    for name, module in model.named_modules():
        label = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            yield (
                f"{label} mixes the examples of a batch: replace it by torch.nn.GroupNorm "
                "(apportion.training.replace_batch_norm does so on a copy), or pin it with .eval() "
                "before training if its statistics come from public data"
            )


def _found_by_experiment(model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor) -> list[str]:
    """First on a float64 copy, where even weak mixing stands out of the rounding; if that fails, on the model itself."""
    try:
        return _experiment(copy.deepcopy(model).double(), loss, inputs, targets)
    except Exception:  # it cannot be copied, or insists on its own precision
        try:
            return _experiment(model, loss, inputs, targets)
        except IncompatibleModel as error:
            return list(error.reasons)
        except Exception as error:
            return [f"the model or loss fails on random data of the data's shape {tuple(inputs.shape[1:])}: {error}"]


def _experiment(model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor) -> list[str]:
    with isolated(model), torch.no_grad():
        examples, labels = random_examples(model, inputs, targets)
        return (
            _changing_buffers(model, examples)
            + _changing_values(model, examples)
            + _mixing(model, loss, examples, labels, random_examples(model, inputs, targets, seed=5)[0])
            + _remembering(model, loss, examples, labels)
        )


def _changing_buffers(model: torch.nn.Module, examples: Tensor) -> list[str]:
    before = {name: value.clone() for name, value in _buffers(model).items()}
    model(examples)
    changed = [n for n, value in _buffers(model).items() if n not in before or not torch.equal(value, before[n])]
    return [
        f"buffer {name} changes in the forward pass, outside the private path: make it constant" for name in changed
    ]


def _changing_values(model: torch.nn.Module, examples: Tensor) -> list[str]:
    """Not those that the first pass changes and the second does not, as a cache that is filled once."""
    model(examples)
    before = _plain_values(model)
    model(examples)
    changed = [name for name, value in _plain_values(model).items() if before.get(name) != value]
    return [
        f"{name} changes in every forward pass, and how many there are in a step depends on the number of records, which is "
        "private: count steps outside the model"
        for name in changed
    ]


def _plain_values(model: torch.nn.Module) -> dict[str, object]:
    """Numbers, texts and lengths among the attributes of all modules."""
    found: dict[str, object] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, bool | int | float | str):
                found[f"{path}.{name}" if path else name] = repr(value)  # NaN is itself then
            elif isinstance(value, Sized) and not isinstance(value, Tensor | torch.nn.Module):
                found[f"{path}.{name}" if path else name] = len(value)
    return found


def _buffers(model: torch.nn.Module) -> dict[str, Tensor]:
    """And what else is published but is no parameter."""
    return {name: value for name, value in state_of(model).items() if not isinstance(value, torch.nn.Parameter)}


def _mixing(
    model: torch.nn.Module, loss: PerExampleLoss, examples: Tensor, labels: Tensor, others: Tensor
) -> list[str]:
    """Change each example's input in turn, then its target, then leave one out: no other example's loss may move.

    Each under several seeds: a model that mixes at random may happen to leave an example alone under one of them.
    """
    found: set[str] = set()

    def losses(x: Tensor, y: Tensor, seed: int) -> Tensor:
        seed_everything(seed)  # the same dropout masks in every experiment
        return loss(model(x), y)

    for seed in range(_SEEDS):
        reference = losses(examples, labels, seed)
        allowed = _TOLERANCE.get(reference.dtype, 1e-2) * (float(reference.abs().max()) + 1e-12)

        def differs(values: Tensor, expected: Tensor, allowed: float = allowed) -> bool:
            return not float((values - expected).abs().max()) <= allowed

        if differs(losses(examples, labels, seed), reference):
            return ["the loss of the same examples differs from one evaluation to the next under the same random seeds"]
        for i in range(len(examples)):
            others_than_i = torch.arange(len(examples)) != i
            changed_input, changed_target = examples.clone(), labels.clone()
            changed_input[i], changed_target[i] = others[i], 1 - labels[i]
            if differs(losses(changed_input, labels, seed)[others_than_i], reference[others_than_i]):
                found.add("another example's input")
            if differs(losses(examples, changed_target, seed)[others_than_i], reference[others_than_i]):
                found.add("another example's target")
    if _depends_on_size(model, loss, examples, labels):
        found.add("the size of the batch")
    return [
        f"an example's loss depends on {what}: every example's loss must be a function of that example alone "
        "(no batch statistics, no mixup, no contrastive or batch-averaged losses)"
        for what in sorted(found)
    ]


def _depends_on_size(model: torch.nn.Module, loss: PerExampleLoss, examples: Tensor, labels: Tensor) -> bool:
    """In evaluation mode, because with dropout active a smaller batch would draw other masks."""
    with evaluating(model):
        if not is_repeatable(model, examples):
            return False
        together = loss(model(examples), labels)
        allowed = _TOLERANCE.get(together.dtype, 1e-2) * (float(together.abs().max()) + 1e-12)
        for part in (slice(0, 1), slice(1, 3), slice(1, len(examples))):
            if not float((loss(model(examples[part]), labels[part]) - together[part]).abs().max()) <= allowed:
                return True
        return False


def _remembering(model: torch.nn.Module, loss: PerExampleLoss, examples: Tensor, labels: Tensor) -> list[str]:
    """Whether a forward pass leaves a trace of its batch that later losses depend on."""
    try:
        copies = copy.deepcopy(model), copy.deepcopy(model)
    except Exception:  # cannot be copied: buffers and parameters were checked
        return []
    later = []
    for seed, one in enumerate(copies):
        seed_everything(0)
        one(examples if seed == 0 else -examples if examples.is_floating_point() else 1 - examples)
        seed_everything(1)
        later.append(loss(one(examples), labels))
    allowed = _TOLERANCE.get(later[0].dtype, 1e-2) * (float(later[0].abs().max()) + 1e-12)
    if float((later[0] - later[1]).abs().max()) <= allowed:
        return []
    return ["the model remembers earlier batches outside its parameters and buffers, and so outside the private path"]


def is_repeatable(model: torch.nn.Module, examples: Tensor) -> bool:
    """Whether the forward pass draws no random numbers."""
    outputs = []
    with torch.no_grad():
        for seed in (0, 1):
            seed_everything(seed)
            outputs.append(model(examples))
    return torch.equal(*outputs)


def random_examples(model: torch.nn.Module, inputs: Tensor, targets: Tensor, seed: int = 1) -> tuple[Tensor, Tensor]:
    """A few random examples of the data's shapes and types, in the model's precision."""
    examples = _random_like(inputs, model, seed)
    with torch.no_grad():
        return examples, _random_targets(targets, model(examples), seed + 100)


def seed_everything(seed: int) -> None:
    """Within `isolated` only: what a model may draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def _random_like(inputs: Tensor, model: torch.nn.Module, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (_EXAMPLES, *inputs.shape[1:])
    device, dtype = _place(model)
    if inputs.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
    return torch.randint(0, 2, shape, generator=generator).to(device, inputs.dtype)


def _random_targets(targets: Tensor, outputs: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (_EXAMPLES, *targets.shape[1:])
    if targets.is_floating_point():
        return torch.rand(shape, generator=generator, dtype=torch.float64).to(outputs.device, outputs.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(outputs.device, targets.dtype)


def _place(model: torch.nn.Module) -> tuple[torch.device, torch.dtype]:
    parameter = next(iter(trainable(model).values()))
    return parameter.device, parameter.dtype


@contextmanager
def isolated(model: torch.nn.Module) -> Iterator[None]:
    """Leave the global random states and the model's buffers as they were."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with random_states_restored():
        try:
            yield
        finally:
            for name, buffer in model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


@contextmanager
def random_states_restored() -> Iterator[None]:
    """Of what a model may draw from."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


@contextmanager
def unknown_seeds() -> Iterator[None]:
    """Whatever a model draws inside, as dropout does, comes of seeds that nobody knows; the states before come back.

    A step with n records draws so many random numbers that with one record less all others would get other ones. To
    whoever does not know the seed they are as good; whoever does would see all gradients change.
    """
    with random_states_restored():
        torch.seed()
        np.random.seed()
        random.seed()
        yield
