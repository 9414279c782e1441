"""Small linear layers handled side by side give what each gives by itself."""

import itertools

import pytest
import torch
from loop_comparison import assert_bounded, assert_matches_loop, flat, used_rules
from test_sensitivity import changes, linear_loss
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from apportion.training.gradients import narrow, prepare
from apportion.training.gradients.narrow import NarrowProducts, side_by_side
from apportion.training.gradients.outer import VectorProducts
from apportion.training.gradients.pieces import Part
from apportion.training.losses import per_example


def mlp(biases=(True, True, True)):
    torch.manual_seed(0)
    sizes = (4, 7, 5, 3)
    layers = [nn.Linear(sizes[i], sizes[i + 1], bias=bias) for i, bias in enumerate(biases)]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


@pytest.fixture
def joined(monkeypatch):
    """How many layers were joined, call by call."""
    found = []
    made = narrow.NarrowProducts.__init__

    def noting(self, order, *rest):
        found.append(len(order.layers))
        made(self, order, *rest)

    monkeypatch.setattr(NarrowProducts, "__init__", noting)
    return found


@pytest.mark.parametrize("batch", [1, 2, 9])
@pytest.mark.parametrize("biases", [(True, True, True), (True, False, True), (False, False, False)])
def test_layers_side_by_side_match_the_loop(joined, biases, batch):
    x, y = torch.randn(batch, 4, dtype=torch.float64), torch.randint(0, 3, (batch,))
    assert_matches_loop(mlp(biases), lambda o, t: cross_entropy(o, t, reduction="none"), x, y)
    assert joined
    assert set(joined) == {3}


@pytest.mark.parametrize("frozen", ["0.weight", "2.bias", "4.weight"])
def test_frozen_parameters_are_left_out(joined, frozen):
    model = mlp()
    model.get_parameter(frozen).requires_grad_(False)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(0, 3, (6,))
    assert_matches_loop(model, lambda o, t: cross_entropy(o, t, reduction="none"), x, y)
    assert joined


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 50.0])
def test_one_example_moves_the_joined_sum_by_at_most_the_clipping_norm(joined, dtype, clip):
    torch.manual_seed(1)
    inputs, targets = torch.randn(9, 4, dtype=dtype), torch.rand(9, dtype=dtype) + 0.5
    inputs[3] = inputs[4]
    assert_bounded(prepare(mlp().to(dtype), linear_loss), inputs, targets, clip, changes(dtype))
    assert joined


@pytest.mark.parametrize("sizes", [(9, 10, 20, 10, 2), (3, 4, 2), (32, 64, 64, 10), (100, 32, 8)])
def test_roundings_of_a_full_batch_stay_within_the_bound(sizes):
    """All examples alike and cut, so that every partial sum is as long as can be: what one more moves is still one."""
    torch.manual_seed(2)
    layers = [layer for i in range(len(sizes) - 1) for layer in (nn.Linear(sizes[i], sizes[i + 1]), nn.Tanh())]
    prepared = prepare(nn.Sequential(*layers[:-1]), linear_loss)
    inputs, targets = torch.randn(1, sizes[0]).repeat(268, 1), torch.full((268,), 50.0)
    for count in (64, 200, 206, 207, 248, 249, 250, 256, 257, 268):
        more, fewer = (flat(prepared(inputs[:n], targets[:n], 0.01).sums) for n in (count, count - 1))
        assert (more - fewer).norm() <= 0.01 * (1 + 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 64), (10, 9), (20, 10), (30, 16), (13, 101)])
def test_products_are_the_same_at_every_place_and_for_every_number_of_examples(shape, dtype):
    assert narrow.places_are_alike(shape, bias=True)
    assert narrow.places_are_alike(shape, bias=False)
    layer = nn.Linear(shape[1], shape[0]).to(dtype)
    model = nn.Sequential(layer, nn.Linear(shape[0], 2).to(dtype))
    example = torch.randn(1, shape[1], dtype=dtype)
    expected = None
    for count in (1, 2, 3, 15, 16, 17, 31, 64, 100, 193, 560, 1500):
        pieces = prepare(model, cross_entropy)._preparation.chain.pieces(
            per_example(cross_entropy), example.repeat(count, 1), torch.zeros(count, dtype=torch.int64)
        )
        rows = pieces[0]._rows[:, :count]
        expected = rows[:, :1] if expected is None else expected
        assert (rows == expected).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_a_relu_is_at_its_edge_one_example_less_moves_the_sum_by_one(dtype):
    """The unit's input cancels to a few units of rounding: whichever side of zero it is on, it must be so for all."""
    for seed in range(4):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 1), nn.ReLU(), nn.Linear(1, 2)).to(dtype)
        example = torch.randn(64, dtype=dtype)
        with torch.no_grad():
            example[-1] = -(model[0].weight[0, :-1] @ example[:-1] + model[0].bias[0]) / model[0].weight[0, -1]
        prepared = prepare(model, cross_entropy)
        inputs, targets = example.repeat(210, 1), torch.zeros(210, dtype=torch.int64)
        sums = [flat(prepared(inputs[:n], targets[:n], 0.01).sums) for n in range(1, 211)]
        assert used_rules(prepared)
        for fewer, more in itertools.pairwise(sums):
            assert (more - fewer).norm() <= 0.01 * (1 + 1e-5)


@pytest.mark.parametrize("smooth", [functional.softplus, torch.sigmoid])
def test_where_a_loss_of_ones_own_is_at_its_edge_one_example_less_moves_the_sum_by_one(smooth):
    """Alone and in company PyTorch computes these by other instructions. The edge is put where that matters."""
    candidates = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    together, alone = smooth(candidates), torch.cat([smooth(one[None]) for one in candidates[:3000]])
    differing = (together[:3000] != alone).nonzero().flatten()
    for i in differing[:3].tolist():
        edge = min(float(together[i]), float(alone[i]))
        model = nn.Sequential(nn.Linear(1, 1, bias=False))
        nn.init.ones_(model[0].weight)
        prepared = prepare(model, lambda o, t, edge=edge: torch.relu(smooth(o[:, 0]) - edge) * t)
        inputs, targets = candidates[i].repeat(40, 1), torch.full((40,), 1e3)
        sums = [flat(prepared(inputs[:n], targets[:n], 1.0).sums) for n in range(1, 41)]
        for fewer, more in itertools.pairwise(sums):
            assert (more - fewer).norm() <= 1 + 1e-5


def test_joined_and_separate_layers_agree(monkeypatch):
    x, y = torch.randn(50, 4), torch.randint(0, 3, (50,))
    model = mlp()
    together = prepare(model, cross_entropy)(x, y, 0.3)
    monkeypatch.setattr(narrow, "LARGEST_PRODUCT", 0)
    apart = prepare(model, cross_entropy)(x, y, 0.3)
    assert torch.allclose(together.norms, apart.norms, rtol=1e-6)
    assert (flat(together.sums) - flat(apart.sums)).norm() <= 1e-6 * flat(apart.sums).norm()


@pytest.mark.parametrize("recorded", [False, True])
def test_blocks_of_examples_add_up(monkeypatch, recorded):
    x, y = torch.randn(50, 4, dtype=torch.float64), torch.randint(0, 3, (50,))
    model = nn.Sequential(mlp(), nn.Softmax(1) if recorded else nn.Identity())
    monkeypatch.setattr(narrow, "BLOCK", 7)
    monkeypatch.setattr(narrow, "ALONE", 28 * 16)  # so that products are taken 16 columns at a time
    assert_matches_loop(model, lambda o, t: cross_entropy(o, t, reduction="none"), x, y)


def test_layers_taken_apart_are_what_they_were():
    layers = [
        VectorProducts(Part("b", torch.Size((5, 4))), None, torch.randn(6, 4), torch.randn(6, 5)),
        VectorProducts(
            Part("a", torch.Size((4, 3))), Part("c", torch.Size((4,))), torch.randn(6, 3), torch.randn(6, 4)
        ),
    ]
    [joined] = side_by_side(layers)
    for before, after in zip(layers[::-1], joined.apart(), strict=True):
        assert before.parts == after.parts
        assert torch.equal(before.inputs, after.inputs)
        assert torch.equal(before.gradient, after.gradient)


def test_large_layers_and_single_ones_are_not_joined():
    def layer(examples, inwards, outwards, dtype=torch.float32):
        weight = Part(f"{inwards}-{outwards}", torch.Size((outwards, inwards)))
        inputs, gradient = torch.randn(examples, inwards, dtype=dtype), torch.randn(examples, outwards, dtype=dtype)
        return VectorProducts(weight, None, inputs, gradient)

    small, other, wide, wider = layer(10, 3, 4), layer(10, 4, 5), layer(10, 90, 90), layer(10, 4, 129)
    assert side_by_side([small]) == [small]
    assert side_by_side([small, wider]) == [small, wider]
    assert side_by_side([small, wide]) == [small, wide]
    assert side_by_side([small, layer(10, 4, 5, torch.float64)])[0] is small
    assert [type(piece) for piece in side_by_side([wider, small, other])] == [VectorProducts, NarrowProducts]
    assert side_by_side([]) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squares_that_vanish_are_made_up_for(dtype):
    """A tiny input next to an enormous gradient, and the other way round: the norm is never below the true one."""
    tiny, enormous = (1e-23, 1e14) if dtype == torch.float32 else (1e-165, 1e144)

    def layer(name, of_inputs, of_gradient):
        inputs, gradient = torch.full((2, 3), of_inputs, dtype=dtype), torch.full((2, 4), of_gradient, dtype=dtype)
        return VectorProducts(Part(name, torch.Size((4, 3))), None, inputs, gradient)

    [joined] = side_by_side([layer("a", tiny, enormous), layer("b", enormous, tiny)])
    true = (2 * 12) ** 0.5 * tiny * enormous
    assert bool((joined.norms()[0][0] >= true * (1 - 1e-6)).all())


def test_rows_that_are_left_out_do_not_spread(joined):
    """An example whose gradient is not finite adds nothing, and changes no other."""
    x, y = torch.randn(9, 4), torch.randint(0, 3, (9,))
    model = mlp()
    expected = prepare(model, cross_entropy)(x[1:], y[1:], 0.3)
    x[0, 1] = float("nan")
    found = prepare(model, cross_entropy)(x, y, 0.3)
    assert (flat(found.sums) - flat(expected.sums)).norm() <= 1e-6 * flat(expected.sums).norm()
    assert joined


def test_the_sums_are_one_tensor_in_the_order_of_the_parameters():
    """So that noise reaches all of them at once: see `add_noise`."""
    sums = list(prepare(mlp(), cross_entropy)(torch.randn(9, 4), torch.randint(0, 3, (9,)), 0.3).sums.values())
    whole = sums[0]._base
    assert all(total._base is whole for total in sums)
    assert torch.equal(torch.cat([total.flatten() for total in sums]), whole)
