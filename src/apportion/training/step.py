"""One step of DP-SGD, top to bottom: per-example gradients → clipping → noise → optimizer."""

from collections.abc import Callable

import torch
from torch import Tensor

from apportion.plan import Noise
from apportion.randomness import RandomStream
from apportion.training.clipping import ClippedSum
from apportion.training.gradients import clipped_sum, trainable
from apportion.training.noise import PrivateGradient, add_noise

__all__ = ["add_noise", "assign", "clipped_sum", "ordinary_step", "private_step", "update"]


def private_step(
    model: torch.nn.Module,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,  # (realised batch, …); may be empty: then the step is pure noise
    targets: Tensor,  # (realised batch, …)
    *,
    clip: float,
    sigma: float,
    nominal_batch_size: float,
    stream: RandomStream,
    noise: Noise = "float",
) -> ClippedSum:
    """Update the parameters with a noisy, clipped gradient. Returns the (private) clipped sum, for internal metrics.

    Guarantees: what reaches the parameters is one Gaussian release of multiplier σ and public constants. The divisor is
    the nominal batch size: dividing by the realised one would reveal it.
    """
    clipped = clipped_sum(model, loss, inputs, targets, clip=clip)
    update(model, optimizer, add_noise(clipped, sigma, stream, noise), nominal_batch_size)
    return clipped


def update(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, gradient: PrivateGradient, nominal_batch_size: float
) -> None:
    """Hand the private gradient to the optimizer as if it were the ordinary mean gradient.

    Gradients left behind by anybody else are dropped first: the optimizer must see nothing but this one.
    """
    optimizer.zero_grad(set_to_none=True)
    assign(model, gradient, nominal_batch_size)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def assign(model: torch.nn.Module, gradient: PrivateGradient, nominal_batch_size: float) -> None:
    for name, parameter in trainable(model).items():
        parameter.grad = (gradient.sums[name] / nominal_batch_size).to(parameter.dtype)


def ordinary_step(
    model: torch.nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    *,
    nominal_batch_size: float,
) -> None:
    """The baseline without privacy: neither clipping nor noise. Its cost is infinite."""
    optimizer.zero_grad(set_to_none=True)
    if len(inputs):
        (loss(model(inputs), targets).sum() / nominal_batch_size).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
