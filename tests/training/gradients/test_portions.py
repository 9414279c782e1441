"""A batch that goes through the layers in portions, because of what they note, gives the same sums."""

import pytest
import torch
from loop_comparison import assert_bounded, flat
from test_clipping_modes import per_layer
from test_sensitivity import MODELS, changes, linear_loss
from torch import nn

import apportion as ap
from apportion.training.gradients import clipped_sum_of_units, prepare, prepared
from apportion.training.gradients.prepared import Preparation

NOT_CHAINED = [kind for kind in MODELS if kind not in ("linear", "deep")]


@pytest.fixture
def portions(monkeypatch):
    """Of four examples; the list of how many there were in each."""
    seen: list[int] = []
    by_rules = Preparation._by_rules

    def counting(self, recipe, model, loss, inputs, targets, use):
        seen.append(len(inputs))
        return by_rules(self, recipe, model, loss, inputs, targets, use)

    monkeypatch.setattr(prepared, "NOTED", 1)
    monkeypatch.setattr(prepared, "LEAST", 4)
    monkeypatch.setattr(Preparation, "_by_rules", counting)
    return seen


def example(kind, examples, dtype=torch.float64):
    torch.manual_seed(1)
    make, shape = MODELS[kind]
    return make().to(dtype), torch.randn(examples, *shape, dtype=dtype), torch.randn(examples, dtype=dtype)


def in_one_go(model, inputs, targets, clip, clipping=ap.Flat()):  # noqa: B008 - a constant
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared, "LEAST", 10**6)
        return prepare(model, linear_loss)(inputs, targets, clip, clipping)


@pytest.mark.parametrize("mode", ["flat", "per-layer", "automatic"])
@pytest.mark.parametrize("kind", NOT_CHAINED)
def test_sums_and_norms_are_those_of_the_whole_batch(kind, mode, portions):
    model, inputs, targets = example(kind, 11)
    clipping = {"flat": ap.Flat(), "per-layer": per_layer(model), "automatic": ap.Automatic()}[mode]
    found = prepare(model, linear_loss)(inputs, targets, 0.7, clipping)
    assert portions == [4, 4, 3]
    expected = in_one_go(model, inputs, targets, 0.7, clipping)
    assert portions == [4, 4, 3, 11]
    assert (flat(found.sums) - flat(expected.sums)).norm() <= 1e-10 * flat(expected.sums).norm()
    assert torch.allclose(found.norms, expected.norms, rtol=1e-10)
    assert (found.bound, found.scales) == (expected.bound, expected.scales)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", NOT_CHAINED)
def test_one_example_moves_the_sum_by_at_most_the_bound(kind, dtype, portions):
    model, inputs, targets = example(kind, 9, dtype)
    assert_bounded(prepare(model, linear_loss), inputs, targets, 1.0, changes(dtype))


@pytest.mark.parametrize("kind", ["layer norm", "convolution", "attention", "recurrent"])
def test_units_that_a_portion_cuts_are_clipped_as_one(kind, portions):
    model, inputs, targets = example(kind, 13)
    sizes = [3, 6, 0, 4]
    found = clipped_sum_of_units(model, linear_loss, [(inputs, targets)], sizes, clip=0.3)
    assert portions == [4, 4, 4, 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared, "LEAST", 10**6)
        expected = clipped_sum_of_units(model, linear_loss, [(inputs, targets)], sizes, clip=0.3)
    assert (flat(found.sums) - flat(expected.sums)).norm() <= 1e-10 * flat(expected.sums).norm()


class ByValue(nn.Module):
    """Calls its second layer only if some example begins with a number above 10."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, inputs):
        outputs = self.norm(self.first(inputs))
        return self.second(outputs) if bool((inputs[:, 0] > 10).any()) else outputs


def test_a_portion_for_which_the_rules_do_not_apply_goes_the_slow_way_and_is_counted_once(portions):
    torch.manual_seed(1)
    model = ByValue().double()
    inputs, targets = torch.randn(11, 6, dtype=torch.float64), torch.randn(11, dtype=torch.float64)
    inputs[5, 0] = 20.0
    with pytest.warns(UserWarning, match="no example's loss depends on"):
        found = clipped_sum_of_units(model, linear_loss, [(inputs, targets)], [1] * 11, clip=0.7)
    assert portions == [4, 4, 3]
    each = [
        clipped_sum_of_units(model, linear_loss, [(inputs[i : i + 1], targets[i : i + 1])], [1], clip=0.7)
        for i in range(11)
    ]
    expected = sum(flat(one.sums) for one in each)
    assert (flat(found.sums) - expected).norm() <= 1e-10 * expected.norm()


def test_batches_are_split_by_what_layers_note_and_chains_are_not():
    recipe = prepared.Recipe(False, (), {}, frozenset(), (), False, prepared.NOTED // 100)
    inputs = torch.zeros(150, 2)
    assert [len(x) for x, _ in prepared._in_portions(inputs, inputs, recipe)] == [64, 64, 22]
    chain = prepared.Recipe(False, (), {}, frozenset(), (), True, prepared.NOTED // 100)
    assert [len(x) for x, _ in prepared._in_portions(inputs, inputs, chain)] == [150]
