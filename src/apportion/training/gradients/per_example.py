"""Per-example gradients by `torch.func`: right for every model, the oracle of all faster rules and their last fallback."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from apportion.clipping import Clipping
from apportion.training.clipping import ClippedSum, PerExampleGradients, clip_and_sum
from apportion.training.losses import PerExampleLoss

# At most this many numbers of per-example gradients are held at once.
HELD = 2**24


@contextmanager
def slow_is_known() -> Iterator[None]:
    """Without the warnings of vmap about operations that it has to take apart: whoever falls back here knows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        yield


def trainable(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that training may change, each once (tied weights under their first name)."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def places(model: torch.nn.Module) -> dict[str, str]:
    """Each place in the model where a parameter or buffer stands, once → the name of what stands there."""
    names = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    found = {}
    for path, module in model.named_modules():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            name = None if tensor is None else names.get(id(tensor))
            if name is not None:
                found[f"{path}.{key}" if path else key] = name
    return found


def in_every_place(model: torch.nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of parameters and buffers, by the name of each place in the model where they stand, for `functional_call`.

    Each place once: a module that stands under two names would not get its own values back. So with tie_weights=False.
    """
    return {place: values[name] for place, name in places(model).items() if name in values}


def vectorised(model: torch.nn.Module, loss: PerExampleLoss) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
    """(values of the trainable parameters, inputs, targets) → gradients and losses, one backward pass per example."""
    where = places(model)

    def loss_of_one(values: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        standing = {place: values[name] for place, name in where.items() if name in values}
        outputs = functional_call(model, standing, (example.unsqueeze(0),), tie_weights=False)
        return loss(outputs, target.unsqueeze(0)).squeeze(0)

    made: Callable[..., tuple[dict[str, Tensor], Tensor]]
    made = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    return made


def per_example_gradients(
    model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor
) -> PerExampleGradients:
    """One backward pass per example, vectorised. Each example is a batch of one, so nothing can mix examples."""
    parameters = {name: parameter.detach() for name, parameter in trainable(model).items()}
    if len(inputs) == 0:
        return PerExampleGradients(gradients={name: p.new_zeros((0, *p.shape)) for name, p in parameters.items()})
    return PerExampleGradients(gradients=vectorised(model, loss)(parameters, inputs, targets)[0])


class _LossAndBackward(torch.nn.Module):
    """The backward pass inside `forward`, so that `functional_call` keeps the given values in place throughout:
    checkpointed segments read the parameters again during the backward pass."""

    def __init__(self, model: torch.nn.Module, loss: PerExampleLoss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, inputs: Tensor, targets: Tensor) -> None:
        value = self.loss(self.model(inputs), targets).sum()
        if value.requires_grad:
            torch.autograd.backward(value)


def one_after_the_other(
    model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor
) -> PerExampleGradients:
    """The same by an ordinary backward pass for each example, for models that cannot be vectorised."""
    rows: list[dict[str, Tensor]] = []
    for i in range(len(inputs)):
        values = {name: parameter.detach().clone().requires_grad_() for name, parameter in trainable(model).items()}
        with torch.enable_grad():
            inside = {f"model.{name}": value for name, value in in_every_place(model, values).items()}
            one = (inputs[i : i + 1], targets[i : i + 1])
            functional_call(_LossAndBackward(model, loss), inside, one, tie_weights=False)
        rows.append({name: torch.zeros_like(v) if v.grad is None else v.grad for name, v in values.items()})
    return PerExampleGradients(gradients={name: torch.stack([row[name] for row in rows]) for name in rows[0]})


def gradients_by_examples(
    model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor
) -> PerExampleGradients:
    """Vectorised where that is possible."""
    try:
        with slow_is_known():
            return per_example_gradients(model, loss, inputs, targets)
    except (RuntimeError, NotImplementedError):
        # Recurrent kernels, reentrant checkpoints and control flow on values, for example, have no vectorised form.
        return one_after_the_other(model, loss, inputs, targets)


def clipped_sum_by_examples(
    model: torch.nn.Module, loss: PerExampleLoss, inputs: Tensor, targets: Tensor, clip: float, clipping: Clipping
) -> ClippedSum:
    """The oracle's clipped sum, a few examples at a time so that memory stays bounded."""
    entries = sum(parameter.numel() for parameter in trainable(model).values())
    at_once = max(1, HELD // max(1, entries))
    portions = [slice(start, start + at_once) for start in range(0, max(1, len(inputs)), at_once)]
    return reduce(
        ClippedSum.plus,
        (
            clip_and_sum(gradients_by_examples(model, loss, inputs[rows], targets[rows]), clip, clipping)
            for rows in portions
        ),
    )
