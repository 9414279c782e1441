"""The gradient of a loss at the model's output is autograd's, also where autograd is not asked."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from apportion.errors import DataError
from apportion.training.gradients.loss_gradient import loss_gradient, loss_gradient_of_columns
from apportion.training.losses import CrossEntropy, per_example


def by_autograd(loss, output, targets):
    output = output.clone().requires_grad_()
    return torch.autograd.grad(per_example(loss)(output, targets).sum(), output)[0]


def of_columns(output, targets, loss=cross_entropy):
    """With more columns than examples."""
    columns = np.concatenate([output.numpy().T.astype(np.float64), np.ones((output.shape[1], 3))], axis=1)
    before = columns.copy()
    found = np.full_like(columns, np.nan)
    loss_gradient_of_columns(per_example(loss), columns, targets, output.dtype, out=found)
    assert np.array_equal(columns, before)
    return torch.from_numpy(np.ascontiguousarray(found[:, : len(output)].T))


def outputs(examples, classes, dtype=torch.float64):
    return 5 * torch.randn(examples, classes, dtype=dtype, generator=torch.Generator().manual_seed(examples))


def labels(examples, classes):
    return torch.randint(0, classes, (examples,), generator=torch.Generator().manual_seed(classes))


LOSSES = {
    "cross-entropy": (cross_entropy, labels),
    "probabilities": (cross_entropy, lambda examples, classes: outputs(examples, classes).softmax(1)),
    "ignored": (
        cross_entropy,
        lambda examples, classes: labels(examples, classes).index_fill(0, torch.tensor([0]), -100),
    ),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), labels),
    "weighted": (nn.CrossEntropyLoss(weight=torch.arange(1.0, 4.0, dtype=torch.float64)), labels),
    "own": (lambda o, t: (o - one_hot(t, o.shape[1])).square().sum(1), labels),
}


@pytest.mark.parametrize("examples", [1, 8])
@pytest.mark.parametrize(("loss", "make"), LOSSES.values(), ids=LOSSES)
def test_rows_and_columns_agree_with_autograd(loss, make, examples):
    output, targets = outputs(examples, 3), make(examples, 3)
    expected = by_autograd(loss, output, targets)
    assert torch.allclose(loss_gradient(per_example(loss), output.clone(), targets), expected, rtol=1e-12, atol=1e-15)
    assert torch.allclose(of_columns(output, targets, loss), expected, rtol=1e-12, atol=1e-15)


def test_in_float32_cross_entropy_has_autograds_gradient_but_for_roundings():
    output, targets = outputs(100, 7, torch.float32), labels(100, 7)
    expected = by_autograd(cross_entropy, output.double(), targets)
    for found in (loss_gradient(per_example(cross_entropy), output.clone(), targets), of_columns(output, targets)):
        assert (found - expected).abs().max() < 2e-7


def test_extreme_outputs_have_finite_gradients():
    output, targets = torch.tensor([[1e30, -1e30, 0.0], [0.0, 0.0, -3e38]]), torch.tensor([1, 2])
    for found in (
        loss_gradient(per_example(cross_entropy), output.clone(), targets),
        of_columns(output, targets),
    ):
        assert torch.equal(found.float(), torch.tensor([[1.0, -1.0, 0.0], [0.5, 0.5, -1.0]]))


@pytest.mark.parametrize("label", [3, -1, 10**9])
def test_a_label_out_of_range_is_refused_without_being_shown(label):
    output, targets = outputs(4, 3), torch.tensor([0, 1, label, 2])
    for find in (
        lambda: loss_gradient(per_example(cross_entropy), output.clone(), targets),
        lambda: of_columns(output, targets),
    ):
        with pytest.raises(DataError, match="out of the range") as refused:
            find()
        assert str(label) not in str(refused.value)


def test_an_ignored_label_changes_nothing_for_the_others():
    output, targets = 100 * outputs(50, 3, torch.float32), labels(50, 3)
    ignoring = targets.clone()
    ignoring[7] = -100
    for find in (
        lambda t: loss_gradient(per_example(cross_entropy), output.clone(), t),
        lambda t: of_columns(output, t),
    ):
        plain, found = find(targets), find(ignoring)
        assert torch.equal(found[7], torch.zeros(3, dtype=found.dtype))
        others = torch.arange(50) != 7
        assert torch.equal(found[others], plain[others])


def test_only_the_function_itself_is_known():
    assert isinstance(per_example(cross_entropy), CrossEntropy)
    assert isinstance(per_example(per_example(cross_entropy)), CrossEntropy)
    for other in (nn.CrossEntropyLoss(), lambda o, t: cross_entropy(o, t, reduction="none")):
        assert not isinstance(per_example(other), CrossEntropy)
