"""A plain sequence of linear layers, run without autograd, gives what the model itself gives."""

import gc
import weakref

import pytest
import torch
from loop_comparison import assert_matches_loop, flat, loop, used_rules
from test_rules import data, squared
from torch import nn
from torch.nn.functional import cross_entropy

from apportion.training import gradients
from apportion.training.gradients import clipped_sum, prepare, prepared
from apportion.training.gradients.chain import Chain, find_chain
from apportion.training.gradients.sites import find_sites


def chained(prepared) -> bool:
    return all(recipe.chained for recipe in prepared.recipes.values())


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    return model


def frozen(*names):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 5), nn.Linear(5, 3))
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


twice = nn.Linear(4, 4)
CHAINS = {
    "activations": nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3)),
    "nested": nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Sequential(nn.Sequential(nn.Linear(6, 2)))),
    "ends in an activation": nn.Sequential(nn.Linear(4, 6), nn.Identity(), nn.Tanh()),
    "no biases": nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False)),
    "without activations": nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2)),
    "wide": nn.Sequential(nn.Linear(4, 200), nn.Tanh(), nn.Linear(200, 3)),
    "one layer": nn.Linear(4, 3),
    "a layer called twice": nn.Sequential(twice, nn.Tanh(), twice),
    "tied weights": tied(),
    "first layer frozen": frozen("0.weight", "0.bias"),
    "middle layer frozen": frozen("2.weight", "2.bias"),
    "last layer frozen": frozen("3.weight", "3.bias"),
    "some frozen": frozen("0.weight", "2.bias"),
    "something else first": nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), nn.ELU(), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("model", CHAINS.values(), ids=CHAINS)
def test_a_chain_matches_the_loop(model, batch):
    assert chained(assert_matches_loop(model, squared, *data(batch, 4)))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_chain_with_an_empty_layer_matches_the_loop():
    model = nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 3))
    assert chained(assert_matches_loop(model, squared, *data(5, 4)))


def test_what_is_flattened_first_is_a_chain():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2))
    assert chained(assert_matches_loop(model, squared, *data(5, 3, 4)))


class Own(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


class OwnSequence(nn.Sequential):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


NO_CHAINS = {
    "a layer of one's own": nn.Sequential(nn.Linear(4, 4), Own(4, 2)),
    "a sequence of one's own": OwnSequence(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
    "inside a sequence": nn.Sequential(nn.Linear(4, 4), OwnSequence(nn.Linear(4, 2))),
    "another layer": nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
    "two activations": nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sigmoid(), nn.Linear(4, 2)),
    "another activation": nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.Linear(4, 2)),
}


@pytest.mark.parametrize("model", NO_CHAINS.values(), ids=NO_CHAINS)
def test_what_is_no_chain_is_run_as_it_is(model):
    assert find_chain(model, find_sites(model)) is None
    assert_matches_loop(model, squared, *data(5, 4))


def test_layers_on_sequences_are_run_as_they_are():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    assert not chained(assert_matches_loop(model, squared, *data(5, 3, 4)))


def twofold(module, *arguments):
    return 2 * arguments[-1]


def changes():
    def forward_hook(model):
        return model[0].register_forward_hook(twofold)

    def hook_before(model):
        return model.register_forward_pre_hook(lambda module, arguments: (2 * arguments[0],))

    def hook_on_an_activation(model):
        return model[1].register_forward_hook(twofold)

    def hook_on_all(model):
        return nn.modules.module.register_module_forward_hook(lambda m, args, out: 2 * out if m is model[1] else None)

    def another_forward(model):
        plain = model[1].forward
        model[1].forward = lambda inputs: 2 * plain(inputs)

    return forward_hook, hook_before, hook_on_an_activation, hook_on_all, another_forward


@pytest.mark.parametrize("change", changes())
@pytest.mark.parametrize("proved_before", [True, False])
def test_hooks_and_forwards_of_the_user_are_honoured_from_when_they_are_there(change, proved_before):
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    inputs, targets = data(5, 4)
    prepared = prepare(model, squared)
    if proved_before:
        prepared(inputs, targets, 0.5)
        assert chained(prepared)
    handle = change(model)
    try:
        result = prepared(inputs, targets, 0.5)
        expected, norms = loop(model, squared, inputs, targets, 0.5)
    finally:
        if handle is not None:
            handle.remove()
    assert used_rules(prepared)
    assert torch.allclose(result.norms, norms, rtol=1e-10)
    assert (flat(result.sums) - flat(expected)).norm() <= 1e-10 * flat(expected).norm()


def test_a_loss_that_overwrites_the_output_is_never_used_silently():
    def overwriting(outputs, targets):
        return outputs.sub_(targets[:, None]).square().sum(1)

    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    assert not chained(assert_matches_loop(model, overwriting, *data(5, 4)))


def test_with_a_relu_the_chain_and_the_model_agree_exactly(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 90), nn.ReLU(), nn.Linear(90, 90), nn.ReLU(inplace=True), nn.Linear(90, 3))
    x, y = torch.randn(50, 4), torch.randn(50)
    found = prepare(model, squared)(x, y, 0.3)
    monkeypatch.setattr(Chain, "is_plain", lambda self: False)
    expected = prepare(model, squared)(x, y, 0.3)
    assert torch.equal(found.norms, expected.norms)
    assert torch.equal(flat(found.sums), flat(expected.sums))


def test_a_narrow_chain_with_relus_agrees_with_the_model_in_float32(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(inplace=True), nn.Linear(20, 3))
    x, y = torch.randn(50, 4), torch.randint(0, 3, (50,))
    found = prepare(model, cross_entropy)(x, y, 0.3)
    monkeypatch.setattr(Chain, "is_plain", lambda self: False)
    expected = prepare(model, cross_entropy)(x, y, 0.3)
    assert torch.allclose(found.norms, expected.norms, rtol=1e-6)
    assert (flat(found.sums) - flat(expected.sums)).norm() <= 1e-6 * flat(expected.sums).norm()


def test_an_example_that_is_not_finite_adds_nothing_and_warns_of_nothing(recwarn):
    for activation in (nn.ReLU(), nn.Tanh(), nn.Sigmoid()):
        model = nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 3)).double()
        x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(0, 3, (6,))
        expected = prepare(model, cross_entropy)(x[3:], y[3:], 0.3)
        x[0], x[1], x[2] = float("nan"), float("inf"), -1e308
        found = prepare(model, cross_entropy)(x, y, 0.3)
        assert torch.isfinite(flat(found.sums)).all()
        more = (flat(found.sums) - flat(expected.sums)).norm()
        assert more <= 0.3 * (1 + 1e-12)  # of -1e308, which saturates; nothing of the others
    assert not [str(one.message) for one in recwarn]


def test_data_in_another_precision_than_the_model_is_refused_as_the_model_refuses_it():
    model, (inputs, targets) = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), data(5, 4)
    prepared = prepare(model, squared)
    prepared(inputs.float(), targets, 0.5)
    assert chained(prepared)
    with pytest.raises(RuntimeError, match="dtype"):
        prepared(inputs.double(), targets, 0.5)


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU())])
def test_what_is_known_about_a_model_is_found_once_and_goes_with_the_model(monkeypatch, make):
    proofs, prove = [], prepared.prove
    monkeypatch.setattr(prepared, "prove", lambda *arguments: (proofs.append(1), prove(*arguments))[1])
    gc.collect()
    model, before = make().double(), len(gradients._PREPARATIONS)
    for _ in range(3):
        clipped_sum(model, squared, *data(5, 4), clip=1.0)
    assert len(proofs) == 1
    assert len(gradients._PREPARATIONS) == before + 1
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert len(gradients._PREPARATIONS) == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_converted_after_its_first_batch_is_clipped_in_float32(dtype):
    model, stream = nn.Sequential(nn.Linear(20, 5)), torch.Generator().manual_seed(1)
    inputs, targets = 5 * torch.randn(40, 20, generator=stream), torch.randint(0, 5, (40,), generator=stream)
    clipped_sum(model, cross_entropy, inputs, targets, clip=0.01)
    model.to(dtype)
    for one in range(40):
        found = clipped_sum(model, cross_entropy, inputs[one : one + 1].to(dtype), targets[one : one + 1], clip=0.01)
        length = torch.cat([total.double().flatten() for total in found.sums.values()]).norm()
        assert 0.0099 <= length <= 0.01 * (1 + 1e-5)


def test_a_layer_that_became_another_one_is_run_as_it_is():
    class Doubled(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    assert_matches_loop(model, squared, *data(5, 4))
    model[2].__class__ = Doubled
    assert_matches_loop(model, squared, *data(5, 4))


def test_an_activation_with_parameters_of_its_own_is_no_chain():
    activation = nn.Tanh()
    activation.register_parameter("unused", nn.Parameter(torch.zeros(1)))
    assert find_chain(nn.Sequential(activation, nn.Linear(4, 2)), find_sites(nn.Sequential(activation))) is None
