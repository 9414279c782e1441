"""Models that do unusual things with ordinary layers."""

import warnings

import pytest
import torch
from loop_comparison import assert_matches_loop, fingerprint, flat, loop, used_rules
from test_rules import data, squared
from torch import nn
from torch.utils.checkpoint import checkpoint

from apportion.training.gradients import clipped_sum, per_example_gradients, prepare
from apportion.training.gradients.per_example import one_after_the_other


class Twice(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        return self.layer(torch.tanh(self.layer(inputs)))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 4), (4,)),
        (nn.Linear(4, 4), (3, 4)),
        (nn.LayerNorm(4), (3, 4)),
        (nn.Conv2d(2, 2, 3, padding=1), (2, 4, 4)),
        (nn.Conv2d(2, 2, 3, padding=1, groups=2), (2, 4, 4)),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False)), (4,)),
        (nn.PReLU(init=0.3), (4,)),
    ],
)
def test_a_layer_called_twice(layer, shape):
    assert_matches_loop(Twice(layer), squared, *data(5, *shape))


class TwoNames(nn.Module):
    """One module under two names, as in a list of layers of which one has a name of its own."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.all = nn.ModuleList([nn.Linear(4, 4), layer])

    def forward(self, inputs):
        return self.all[1](torch.tanh(self.all[0](inputs)))


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.LayerNorm(4), nn.PReLU(init=0.3)], ids=str)
def test_a_module_with_two_names_keeps_its_values(layer):
    model = TwoNames(layer)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert_matches_loop(model, squared, *data(5, 4))
    per_example_gradients(model, squared, *data(5, 4))
    one_after_the_other(model, squared, *data(5, 4))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


class Tied(nn.Module):
    def __init__(self, as_layer):
        super().__init__()
        self.words = nn.Embedding(7, 5)
        self.middle = nn.Linear(5, 5)
        self.as_layer = as_layer
        if as_layer:
            self.head = nn.Linear(5, 7)
            self.head.weight = self.words.weight

    def forward(self, ids):
        hidden = torch.tanh(self.middle(self.words(ids)))
        return self.head(hidden) if self.as_layer else nn.functional.linear(hidden, self.words.weight)


@pytest.mark.parametrize("as_layer", [True, False])
def test_tied_weights(as_layer):
    ids = torch.randint(0, 7, (5, 4), generator=torch.Generator().manual_seed(1))
    assert_matches_loop(Tied(as_layer), squared, ids, data(5)[1], rules=as_layer)


@pytest.mark.parametrize("activation", [nn.ELU(inplace=True), nn.SiLU(inplace=True)])
def test_in_place_activations(activation):
    model = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 6), activation, nn.Linear(6, 2))
    assert_matches_loop(model, squared, *data(5, 4))


class InPlaceOnInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs):
        hidden = torch.tanh(self.first(inputs))
        out = self.second(hidden)
        hidden.mul_(2)
        return out


def test_an_input_modified_in_place_is_never_used_silently():
    """Ordinary training refuses such a model; here the copy that the fallback makes is the true one."""
    model = InPlaceOnInput().double()
    prepared = prepare(model, squared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError):
            prepared(*data(5, 4), 1.0)
    assert not used_rules(prepared)


def test_non_contiguous_inputs():
    inputs, targets = data(6, 5, 8)
    model = nn.Sequential(nn.Conv1d(5, 3, 3), nn.Tanh(), nn.Linear(6, 2))
    assert_matches_loop(model, squared, data(5, 8, 6)[0].permute(2, 0, 1), targets)
    assert_matches_loop(nn.Linear(5, 3), squared, inputs.transpose(1, 2), targets)
    assert_matches_loop(nn.Linear(8, 3), squared, inputs[:, ::2, :], targets)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.first, self.inner, self.head = nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 5), nn.Tanh()), nn.Linear(5, 2)

    def forward(self, inputs):
        hidden = torch.tanh(self.first(inputs))
        return self.head(checkpoint(self.inner, hidden, use_reentrant=self.reentrant))


class CheckpointedFromTheStart(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh()), nn.Linear(5, 2)

    def forward(self, inputs):
        return self.head(checkpoint(self.inner, inputs, use_reentrant=False))


def test_checkpoint():
    assert_matches_loop(Checkpointed(False), squared, *data(5, 4))
    assert_matches_loop(CheckpointedFromTheStart(), squared, *data(5, 4))


def test_reentrant_checkpoint_by_the_fallback():
    model, (inputs, targets) = Checkpointed(True).double(), data(5, 4)
    plain = Checkpointed(False).double()
    plain.load_state_dict(model.state_dict())
    expected, _ = loop(plain, squared, inputs, targets, 0.5)
    result = clipped_sum(model, squared, inputs, targets, clip=0.5)
    assert (flat(result.sums) - flat(expected)).norm() <= 1e-10 * flat(expected).norm()


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2).double()

    def forward(self, inputs):
        return self.second(torch.tanh(self.first(inputs.float())).double())


def test_mixed_dtypes():
    model, (inputs, targets) = Mixed(), data(8, 4)
    expected, norms = loop(model, squared, inputs, targets, 0.3)
    prepared = prepare(model, squared)
    result = prepared(inputs, targets, 0.3)
    assert used_rules(prepared)
    assert torch.allclose(result.norms, norms, rtol=1e-5)
    assert (flat(result.sums) - flat(expected)).norm() <= 1e-4 * flat(expected).norm()
    assert result.bound == 0.3 * (1 + 1e-5)


def test_autocast_takes_norms_and_sums_in_float32():
    model, (inputs, targets) = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3)), data(16, 20)
    inputs, targets = inputs.float(), targets.float()
    expected, norms = loop(model, squared, inputs, targets, 0.3)
    prepared = prepare(model, squared)
    with torch.autocast("cpu", torch.bfloat16):
        result = prepared(inputs, targets, 0.3)
    assert used_rules(prepared)
    assert all(value.dtype in (torch.float32, torch.float64) for value in result.sums.values())
    assert torch.allclose(result.norms, norms, rtol=0.05)
    assert (flat(result.sums) - flat(expected)).norm() <= 0.05 * flat(expected).norm()
    with torch.autocast("cpu", torch.bfloat16):
        alone = prepared(inputs[:8], targets[:8], 1e-3).sums
        more = prepared(inputs[:9], targets[:9], 1e-3).sums
    assert (flat(more) - flat(alone)).norm() <= 1e-3 * (1 + 1e-5)


def test_active_dropout_is_the_same_in_norm_and_sum():
    """With the example's mask unknown, what can be checked is that one clipped example has exactly the clipping norm."""
    model = nn.Sequential(nn.Linear(4, 60), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(60, 2)).double()
    inputs, targets = data(2, 4)
    prepared = prepare(model, squared)
    prepared(inputs, targets, 1e-3)
    assert used_rules(prepared)
    inputs[1] = torch.nan  # leaves one example
    result = prepared(inputs, targets, 1e-3)
    assert flat(result.sums).norm() == pytest.approx(1e-3, rel=1e-9)


class ViewsImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv2d(2, 3, 3), nn.Linear(48, 2)

    def forward(self, inputs):
        return self.head(torch.tanh(self.first(inputs)).view(len(inputs), -1))


def test_images_are_held_channels_last_unless_the_model_objects():
    inputs, targets = data(5, 2, 6, 6)
    prepared = assert_matches_loop(ViewsImages(), squared, inputs, targets)
    assert [recipe.channels_last for recipe in prepared.recipes.values()] == [False]
    layers = nn.Conv2d(2, 3, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    prepared = assert_matches_loop(nn.Sequential(*layers), squared, inputs, targets)
    assert [recipe.channels_last for recipe in prepared.recipes.values()] == [True]


class Flattens(nn.Module):
    """Examples × positions in one axis, examples outermost: allowed; positions outermost: beyond the rules."""

    def __init__(self, examples_first):
        super().__init__()
        self.layer, self.examples_first = nn.Linear(4, 3), examples_first

    def forward(self, inputs):
        batch, length, _ = inputs.shape
        x = inputs if self.examples_first else inputs.transpose(0, 1)
        out = torch.tanh(self.layer(x.reshape(-1, 4)))
        return out.reshape(batch, length, 3) if self.examples_first else out.reshape(length, batch, 3).transpose(0, 1)


@pytest.mark.parametrize("length", [2, 5, 6])
@pytest.mark.parametrize("examples_first", [True, False])
def test_positions_folded_into_the_batch(examples_first, length):
    assert_matches_loop(Flattens(examples_first), squared, *data(6, length, 4), rules=examples_first)


class Positions(nn.Module):
    def __init__(self, leading):
        super().__init__()
        self.words, self.positions, self.head = nn.Embedding(9, 4), nn.Embedding(5, 4), nn.Linear(4, 2)
        self.leading = leading

    def forward(self, ids):
        where = torch.arange(5)[None] if self.leading else torch.arange(5)
        return self.head(torch.tanh(self.words(ids) + self.positions(where)))


@pytest.mark.parametrize("leading", [True, False])
@pytest.mark.parametrize("batch", [2, 5, 6])
def test_positions_shared_by_all_examples(leading, batch):
    ids = torch.randint(0, 9, (batch, 5), generator=torch.Generator().manual_seed(1))
    assert_matches_loop(Positions(leading), squared, ids, data(batch)[1])


class SecondAxis(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.LayerNorm(3)

    def forward(self, inputs):
        return self.norm(torch.tanh(self.layer(inputs.transpose(0, 1)))).transpose(0, 1)


@pytest.mark.parametrize("length", [2, 3, 5, 6])
def test_examples_on_the_second_axis(length):
    """Also when there are as many positions as examples, so that shapes alone cannot tell."""
    assert_matches_loop(SecondAxis(), squared, *data(6, length, 4))


class RandomInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, inputs):
        return nn.functional.dropout(inputs * self.scale, 0.5, self.training)


def test_a_layer_that_draws_random_numbers_is_not_run_again():
    prepared = prepare(nn.Sequential(RandomInside(), nn.Linear(4, 40), nn.Tanh()).double(), squared)
    prepared(*data(5, 4), 1.0)
    assert not used_rules(prepared)


def test_frozen_parts_are_left_alone_and_cost_nothing():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    prepared = assert_matches_loop(model, squared, *data(5, 4))
    assert "0" not in prepared.sites
    assert not model[0].weight.requires_grad


class LowRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs):
        return self.frozen(inputs) + self.up(self.down(inputs))


def test_adapters():
    assert_matches_loop(nn.Sequential(LowRank(), nn.Tanh(), LowRank()), squared, *data(5, 3, 6))


def test_parameters_without_gradient_are_reported_once():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, inputs):
            return self.used(inputs)

    prepared = prepare(Unused().double(), squared)
    with pytest.warns(UserWarning, match=r"unused\.weight, unused\.bias"):
        result = prepared(*data(5, 4), 1.0)
    assert not result.sums["unused.weight"].any()
    prepared(*data(5, 4), 1.0)


@pytest.mark.parametrize("batch", [0, 1])
def test_tiny_batches(batch):
    model, (inputs, targets) = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double(), data(5, 4)
    prepared = prepare(model, squared)
    before = prepared(inputs[:batch], targets[:batch], 0.1)
    prepared(inputs, targets, 0.1)
    after = prepared(inputs[:batch], targets[:batch], 0.1)
    expected, _ = loop(model, squared, inputs[:batch], targets[:batch], 0.1)
    for result in (before, after):
        assert (flat(result.sums) - flat(expected)).norm() <= 1e-12
        assert result.norms.shape == (batch,)
        assert result.bound == 0.1 * (1 + 1e-12)


class Explodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.error = nn.Linear(4, 3), None

    def forward(self, inputs):
        out = self.layer(inputs)
        if self.error is not None:
            raise self.error
        return out


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no")])
def test_an_interrupted_pass_leaves_the_model_as_it_was(error):
    model = Explodes().double()
    prepared = prepare(model, squared)
    inputs, targets = data(5, 4)
    prepared(inputs, targets, 1.0)
    before = fingerprint(model)
    model.error = error
    with pytest.raises(type(error)):
        prepared(inputs, targets, 1.0)
    assert fingerprint(model) == before
    prepared.recipes.clear()
    with pytest.raises(type(error)):
        prepared(inputs, targets, 1.0)
    assert fingerprint(model) == before


def test_hooks_and_gradients_of_the_user_stay():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    seen = []
    model[0].register_forward_hook(lambda module, args, out: (seen.append(1), out * 2)[1])
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    inputs, targets = data(5, 4)
    squared(model(inputs), targets).sum().backward()
    gradient = model[0].weight.grad.clone()
    prepared = prepare(model, squared)
    result = prepared(inputs, targets, 0.5)
    expected, _ = loop(model, squared, inputs, targets, 0.5)
    assert used_rules(prepared)
    assert (flat(result.sums) - flat(expected)).norm() <= 1e-10 * flat(expected).norm()
    assert torch.equal(model[0].weight.grad, gradient)


def test_global_random_numbers_are_not_consumed_by_the_proof():
    model, (inputs, targets) = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double(), data(5, 4)
    torch.manual_seed(3)
    clipped_sum(model, squared, inputs, targets, clip=1.0)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), drawn)
