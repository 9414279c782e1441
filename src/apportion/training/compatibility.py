"""What mixes examples is refused, with the replacement named; found by type and by experiment on random data."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from apportion.errors import IncompatibleModel
from apportion.training.gradients import trainable
from apportion.training.losses import PerExampleLoss

OptimizerFactory = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]

# What differs by more than this, relatively, was not caused by rounding.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_EXAMPLES = 5


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
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    known = {id(parameter) for parameter in parameters.values()}
    if given - known:
        reasons.append("the optimizer updates parameters that are not trainable parameters of this model")
    reasons += [
        f"parameter {name} is not in the optimizer: freeze it with requires_grad_(False), or give it to the optimizer"
        for name, parameter in parameters.items()
        if id(parameter) not in given
    ]
    if reasons:
        raise IncompatibleModel(reasons)
    return optimizer


def _unsuitable_modules(model: torch.nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        label = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            yield (
                f"{label} mixes the examples of a batch: replace it by torch.nn.GroupNorm, or pin it with .eval() "
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
    with _isolated(model), torch.no_grad():
        return _changing_buffers(model, inputs) + _mixing(model, loss, inputs, targets)


def _changing_buffers(model: torch.nn.Module, inputs: Tensor) -> list[str]:
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(_random_like(inputs, model, seed=1))
    changed = [n for n, b in model.named_buffers() if n not in before or not torch.equal(b, before[n])]
    return [
        f"buffer {name} changes in the forward pass, outside the private path: make it constant" for name in changed
    ]


def _mixing(model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor) -> list[str]:
    """Change one example's input, then its target, then leave one out: no other example's loss may move."""
    examples, others = _random_like(inputs, model, seed=1), _random_like(inputs, model, seed=2)
    outputs = model(examples)
    labels = _random_targets(targets, outputs, seed=3)

    def losses(x: Tensor, y: Tensor, seed: int = 0) -> Tensor:
        torch.manual_seed(seed)  # the same dropout masks in every experiment
        return loss(model(x), y)

    reference = losses(examples, labels)
    changed_input, changed_target = examples.clone(), labels.clone()
    changed_input[0] = others[0]
    changed_target[0] = 1 - labels[0]
    experiments = {
        "another example's input": losses(changed_input, labels)[1:] - reference[1:],
        "another example's target": losses(examples, changed_target)[1:] - reference[1:],
    }
    random_forward = not torch.equal(losses(examples, labels, seed=1), reference)
    if not random_forward:  # with dropout active, a smaller batch would draw other masks
        experiments["the size of the batch"] = losses(examples[1:], labels[1:]) - reference[1:]
    scale = float(reference.abs().max()) + 1e-12
    tolerance = _TOLERANCE.get(reference.dtype, 1e-2)
    return [
        f"an example's loss depends on {what}: every example's loss must be a function of that example alone "
        "(no batch statistics, no mixup, no contrastive or batch-averaged losses)"
        for what, difference in experiments.items()
        if not float(difference.abs().max()) <= tolerance * scale
    ]


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
def _isolated(model: torch.nn.Module) -> Iterator[None]:
    """Leave the global random state and the model's buffers as they were."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng():
        try:
            yield
        finally:
            for name, buffer in model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])
