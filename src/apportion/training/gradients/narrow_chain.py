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
    """All parameters are to be trained, in one precision, and in the processor's memory."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._shapes = [tensor.shape for tensor in self._parameters()]
        self._dtype = links[0].layer.weight.dtype
        shapes = tuple([tuple(link.layer.weight.shape) for link in links])
        self._order = order_of(shapes, tuple([link.bias is not None for link in links]))
        self._parts = tuple([part for link in links for part in (link.weight, link.bias) if part is not None])

    def products(self, loss: PerExampleLoss, inputs: Tensor, targets: Tensor) -> NarrowProducts:
        """`inputs` (examples, width) are what the first link gets."""
        if inputs.dtype != self._dtype:
            raise RuleDoesNotApply("layers and data of different types")
        order, links, examples = self._order, self._links, inputs.shape[0]
        layers, weights, rows = order.layers, self._weights(), order.empty(examples)
        rows[layers[0].inputs, :examples] = inputs.detach().numpy().T
        rows[layers[0].inputs, examples:] = 0
        with np.errstate(all="ignore"):  # as PyTorch does: what is not finite is found later
            for i, link in enumerate(links):
                out = rows[layers[i + 1].inputs] if i + 1 < len(links) else None
                output = product(weights[i], rows[layers[i].with_one], out=out)
                if link.activation is not None:
                    link.activation.apply_to_array(output)
            gradient = rows[layers[-1].gradients]
            loss_gradient_of_columns(loss, output, targets, self._dtype, out=gradient)
            for i in reversed(range(len(links))):
                activation = links[i].activation
                if activation is not None:
                    activation.pull_back_array(gradient, output)
                if i:
                    output, out = rows[layers[i].inputs], rows[layers[i - 1].gradients]
                    gradient = product(weights[i][:, : len(output)].T, gradient, out=out)
        return NarrowProducts(order, self._parts, rows, examples, self._dtype, inputs.device)

    def _parameters(self) -> list[Tensor]:
        """Every link's weight, and bias if it has one."""
        layers = [link.layer for link in self._links]
        return [tensor for layer in layers for tensor in (layer.weight, layer.bias) if tensor is not None]

    def _weights(self) -> list[Floats]:
        """(outwards, inwards and one for the bias), in float64: copied in one go, because calls are the time."""
        tensors = self._parameters()
        if [tensor.shape for tensor in tensors] != self._shapes:
            raise RuleDoesNotApply("a parameter has another shape than before")
        flat = _flatten_dense_tensors(tensors).numpy()  # type: ignore[no-untyped-call]  # torch's stub
        return self._order.matrices(flat[self._order.sources].astype(np.float64))
