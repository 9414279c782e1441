"""One step of DP-SGD, top to bottom: per-example gradients → clipping → noise → optimizer."""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce

import torch
from torch import Tensor

from apportion.clipping import FLAT, Clipping
from apportion.plan import Noise
from apportion.randomness import RandomStream
from apportion.training.clipping import ClippedSum
from apportion.training.end_to_end import EndToEnd
from apportion.training.gradients import clipped_sum, clipped_sum_of_units, preparation_of, trainable
from apportion.training.gradients.prepared import Preparation
from apportion.training.gradients.summation import coarsest
from apportion.training.noise import PrivateGradient, add_noise
from apportion.training.records import Part, Units

__all__ = [
    "add_noise",
    "assign",
    "clipped_sum",
    "clipped_sum_of_units",
    "ordinary_step",
    "private_step",
    "step_in_parts",
    "update",
]


def private_step(
    model: torch.nn.Module,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,  # (realised batch, …); may be empty: then the step is pure noise
    targets: Tensor,  # (realised batch, …)
    *,
    clip: float,
    clipping: Clipping = FLAT,
    sigma: float,
    nominal_batch_size: float,
    stream: RandomStream,
    noise: Noise = "float",
) -> ClippedSum:
    """Update the parameters with a noisy, clipped gradient. Returns the (private) norms, for internal metrics."""
    return step_in_parts(
        model,
        loss,
        optimizer,
        [(inputs, targets)],
        clip=clip,
        clipping=clipping,
        sigma=sigma,
        nominal_batch_size=nominal_batch_size,
        stream=stream,
        noise=noise,
    )


def step_in_parts(
    model: torch.nn.Module,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    parts: Iterable[Part],  # of one batch, at least one; each may be empty
    *,
    units: Units | None = None,  # which records are whose; None: each is a unit by itself
    clip: float,
    clipping: Clipping = FLAT,
    sigma: float,
    nominal_batch_size: float,
    stream: RandomStream,
    noise: Noise = "float",
) -> ClippedSum:
    """One step on a batch that comes in parts: units are clipped one by one, noise is added once, to the whole sum.

    Guarantees: what reaches the parameters is one Gaussian release of multiplier σ, the charged one (see
    `apportion.clipping`), and public constants, however the batch was split. The divisor is the nominal batch size:
    dividing by the realised one would reveal it, and so would a bound that grew with it.
    The sums are used up; what is returned has the norms alone.
    """
    preparation = preparation_of(model)
    if units is None:
        clipped = _sum_over_parts(preparation, model, loss, parts, clip, clipping)
    else:
        clipped = clipped_sum_of_units(
            model, loss, parts, units.sizes, clip=clip, clipping=clipping, averaged=units.averaged
        )
    parameters = preparation.parameters
    dtypes = {parameter.dtype for parameter in parameters.values()}
    clipped = clipped.for_batches_of(nominal_batch_size, coarsest(dtypes))
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    gradient = add_noise(clipped, sigma, stream, noise, divisor=nominal_batch_size, dtype=dtype, overwrite=True)
    _update(parameters, optimizer, gradient)
    return clipped.without_sums()


def sum_over_parts(
    model: torch.nn.Module,
    loss: Callable[..., Tensor],
    parts: Iterable[Part],
    *,
    clip: float,
    clipping: Clipping = FLAT,
) -> ClippedSum:
    return _sum_over_parts(preparation_of(model), model, loss, parts, clip, clipping)


def _sum_over_parts(
    preparation: Preparation,
    model: torch.nn.Module,
    loss: Callable[..., Tensor],
    parts: Iterable[Part],
    clip: float,
    clipping: Clipping,
) -> ClippedSum:
    sums = (preparation.clipped_sum(model, loss, inputs, targets, clip, clipping) for inputs, targets in parts)
    return reduce(ClippedSum.plus, sums)  # of at least one part: an empty batch is one empty part


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, gradient: PrivateGradient) -> None:
    """Hand the private gradient to the optimizer as if it were the ordinary mean gradient.

    Gradients left behind by anybody else are dropped first: the optimizer must see nothing but this one.
    """
    _update(trainable(model), optimizer, gradient)


def _update(
    parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, gradient: PrivateGradient
) -> None:
    _drop_gradients(optimizer)
    _assign(parameters, gradient)
    optimizer.step()
    _drop_gradients(optimizer)


def _drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def assign(model: torch.nn.Module, gradient: PrivateGradient) -> None:
    _assign(trainable(model), gradient)


def _assign(parameters: Mapping[str, torch.nn.Parameter], gradient: PrivateGradient) -> None:
    means = gradient.sums.views if isinstance(gradient.sums, EndToEnd) else gradient.sums
    for name, parameter in parameters.items():
        mean = means[name]
        parameter.grad = mean if mean.dtype == parameter.dtype else mean.to(parameter.dtype)


def ordinary_step(
    model: torch.nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    parts: Iterable[Part],
    *,
    nominal_batch_size: float,
) -> None:
    """The baseline without privacy: neither clipping nor noise. Its cost is infinite."""
    optimizer.zero_grad(set_to_none=True)
    for inputs, targets in parts:
        if len(inputs):
            (loss(model(inputs), targets).sum() / nominal_batch_size).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
