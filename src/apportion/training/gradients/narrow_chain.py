"""A chain of small layers: both passes, written straight into the matrix of which `narrow` takes norms and sums."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from apportion.training.gradients.links import Floats, Link
from apportion.training.gradients.loss_gradient import loss_gradient_of_columns
from apportion.training.gradients.narrow import NarrowProducts, order_of, product
from apportion.training.gradients.registry import RuleDoesNotApply
from apportion.training.losses import PerExampleLoss


class NarrowChain:
    """All weights are to be trained, in one precision, and in the processor's memory."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._shapes = [tensor.shape for tensor in self._tensors()]
        self._dtype = links[0].layer.weight.dtype
        shapes = tuple([tuple(link.layer.weight.shape) for link in links])
        self._order = order_of(shapes, tuple([link.bias is not None for link in links]))
        self._parts = tuple([part for link in links for part in (link.weight, link.bias) if part is not None])

    def products(self, loss: PerExampleLoss, inputs: Tensor, targets: Tensor) -> NarrowProducts:
        """`inputs` (examples, width) are what the first link gets."""
        if inputs.dtype != self._dtype:
            raise RuleDoesNotApply("layers and data of different types")
        order, links, examples = self._order, self._links, inputs.shape[0]
        rows = order.empty(examples)
        rows[order.inputs[0], :examples] = inputs.detach().numpy().T
        rows[order.inputs[0], examples:] = 0
        weights, biases = self._parameters()
        output = rows[order.inputs[0]]
        with np.errstate(all="ignore"):  # as PyTorch does: what is not finite is found later
            for i, link in enumerate(links):
                last = i + 1 == len(links)
                output = product(weights[i], output, out=None if last else rows[order.inputs[i + 1]])
                bias = biases[i]
                if bias is not None:
                    output += bias
                if link.activation is not None:
                    link.activation.apply_to_array(output)
            gradient = rows[order.gradients[-1]]
            gradient[...] = loss_gradient_of_columns(loss, output, targets, self._dtype)
            for i in reversed(range(len(links))):
                activation = links[i].activation
                if activation is not None:
                    activation.pull_back_array(gradient, output)
                if i:
                    output = rows[order.inputs[i]]
                    gradient = product(weights[i].T, gradient, out=rows[order.gradients[i - 1]])
        return NarrowProducts(order, self._parts, rows, examples, inputs.device)

    def _tensors(self) -> list[Tensor]:
        """Every link's weight, and bias if it has one."""
        layers = [link.layer for link in self._links]
        return [tensor for layer in layers for tensor in (layer.weight, layer.bias) if tensor is not None]

    def _parameters(self) -> tuple[list[Floats], list[Floats | None]]:
        """Weights and biases (outwards, 1) in float64: copied in one go, because calls are the time."""
        tensors = self._tensors()
        if [tensor.shape for tensor in tensors] != self._shapes:
            raise RuleDoesNotApply("a parameter has another shape than before")
        flat = _flatten_dense_tensors(tensors).numpy().astype(np.float64)  # type: ignore[no-untyped-call]  # torch's stub
        weights: list[Floats] = []
        biases: list[Floats | None] = []
        start = 0
        for shape in self._shapes:
            end = start + shape.numel()
            if len(shape) == 2:
                weights.append(flat[start:end].reshape(shape))
                biases.append(None)
            else:
                biases[-1] = flat[start:end].reshape(-1, 1)
            start = end
        return weights, biases
