"""Law 6 for every clipping mode, and every mode against a loop over single examples."""

import math

import pytest
import torch
from loop_comparison import flat
from test_rules import Attends, Recurrent
from test_sensitivity import MODELS, changes, linear_loss
from torch import nn

import apportion as ap
from apportion.errors import IncompatibleModel
from apportion.training.clipping import PerExampleGradients, clip_and_sum
from apportion.training.gradients import clipped_sum, prepare, trainable
from apportion.training.gradients.per_example import clipped_sum_by_examples
from apportion.training.layers import count_layers, layers_of
from apportion.training.losses import per_example


class Tied(nn.Module):
    """One matrix in two places: its gradient spans two layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.second(torch.tanh(self.first(inputs)))


class Nested(nn.Module):
    """A parameter of its own beside a child: no rule, and two layers in one piece."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(6))
        self.inner = nn.Linear(6, 4)

    def forward(self, inputs):
        return self.inner(inputs + self.shift)


ALL = MODELS | {"tied": (Tied, (6,)), "nested": (Nested, (6,)), "attends": (Attends, (5, 8))}


def per_layer(model, **options):
    return ap.PerLayer(layers=count_layers(model), **options)


def by_hand(model, loss, inputs, targets, clip, clipping):
    """One ordinary backward pass per example, clipped with arithmetic of its own."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in named.items()}
    groups = {}
    for name in named:
        key = name.rpartition(".")[0] if isinstance(clipping, ap.PerLayer) else ""
        groups.setdefault(key, []).append(name)
    for i in range(len(inputs)):
        value = loss(model(inputs[i : i + 1]), targets[i : i + 1]).sum()
        found = torch.autograd.grad(value, list(named.values()), allow_unused=True, materialize_grads=True)
        gradients = dict(zip(named, found, strict=True))
        for names in groups.values():
            norm = math.sqrt(sum(float(gradients[name].square().sum()) for name in names))
            if isinstance(clipping, ap.Automatic):
                factor = clip / (norm + clipping.stability)
            else:
                factor = min(1.0, clip / norm) if norm > 0 else 1.0
            for name in names:
                sums[name] += factor * gradients[name]
    return sums


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("mode", ["per-layer", "automatic"])
def test_every_mode_agrees_with_a_loop_over_examples(kind, mode):
    torch.manual_seed(0)
    make, shape = ALL[kind]
    model = make().double()
    clipping = per_layer(model) if mode == "per-layer" else ap.Automatic(stability=0.1)
    inputs, targets = torch.randn(6, *shape, dtype=torch.float64), torch.rand(6, dtype=torch.float64) + 0.5
    clip = float(prepare(model, linear_loss)(inputs, targets, 1.0).norms.median()) / 2
    expected = by_hand(model, linear_loss, inputs, targets, clip, clipping)
    found = clipped_sum(model, linear_loss, inputs, targets, clip=clip, clipping=clipping)
    slow = clipped_sum_by_examples(model, per_example(linear_loss), inputs, targets, clip, clipping)
    assert set(found.sums) == set(slow.sums) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found.sums[name], value, rtol=1e-9, atol=1e-11 * clip)
        torch.testing.assert_close(slow.sums[name], value, rtol=1e-9, atol=1e-11 * clip)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("mode", ["per-layer", "automatic"])
def test_one_example_moves_the_sum_by_at_most_the_bound_of_the_mode(kind, mode, dtype):
    """Overall by `bound`; and, in coordinates divided by their scales, by at most 1: what the noise is scaled to."""
    torch.manual_seed(1)
    make, shape = ALL[kind]
    model = make().to(dtype)
    clipping = per_layer(model) if mode == "per-layer" else ap.Automatic()
    slack = 1e-5 if dtype == torch.float32 else 1e-12
    clip = 0.7
    prepared = prepare(model, linear_loss)
    inputs, targets = torch.randn(9, *shape, dtype=dtype), torch.rand(9, dtype=dtype) + 0.5
    without = prepared(inputs[1:], targets[1:], clip, clipping)
    layers = count_layers(model) if mode == "per-layer" else 1
    assert without.bound == pytest.approx(clip * math.sqrt(layers), rel=2 * slack)
    for change in [lambda x: x, *changes(dtype)]:
        changed = inputs.clone()
        changed[0] = change(inputs[0])
        found = prepared(changed, targets, clip, clipping)
        moved = {name: (value.double() - without.sums[name].double()) for name, value in found.sums.items()}
        assert torch.isfinite(flat(moved)).all()
        assert flat(moved).norm() <= without.bound
        assert flat({name: value / without.scale(name) for name, value in moved.items()}).norm() <= 1
        if mode == "per-layer":
            for layer in layers_of(moved, clipping, clip):
                assert flat({name: moved[name] for name in layer.parameters}).norm() <= clip * (1 + slack)


@pytest.mark.parametrize("mode", ["per-layer", "automatic"])
def test_many_aligned_duplicates_do_not_round_over_the_bound_of_the_mode(mode):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(60, 1000), nn.Tanh(), nn.Linear(1000, 10))
    clipping = per_layer(model) if mode == "per-layer" else ap.Automatic()
    inputs, targets = torch.randn(1, 60).expand(1500, 60).clone(), torch.ones(1500)
    prepared = prepare(model, linear_loss)
    base, fewer = (prepared(inputs[:n], targets[:n], 0.3337, clipping) for n in (1500, 1499))
    moved = {name: (base.sums[name].double() - fewer.sums[name].double()) / base.scale(name) for name in base.sums}
    assert 0.99 <= flat(moved).norm() <= 1
    if mode == "per-layer":
        for name in ("0", "2"):
            own = [flat({n: v}) for n, v in moved.items() if n.startswith(name)]
            assert torch.cat(own).norm() <= math.sqrt(0.5)


def test_an_empty_batch_is_bounded_like_any_other():
    model = MODELS["deep"][0]()
    for clipping in (per_layer(model), ap.Automatic()):
        some = clipped_sum(model, linear_loss, torch.randn(3, 6), torch.ones(3), clip=0.5, clipping=clipping)
        none = clipped_sum(model, linear_loss, torch.randn(0, 6), torch.ones(0), clip=0.5, clipping=clipping)
        assert none.bound == some.bound
        assert none.scales == some.scales
        assert all(not value.any() for value in none.sums.values())


@pytest.mark.parametrize("mode", ["flat", "per-layer", "automatic"])
def test_a_batch_in_parts_is_the_batch(mode):
    torch.manual_seed(5)
    model = MODELS["deep"][0]().double()
    clipping = {"flat": ap.Flat(), "per-layer": per_layer(model), "automatic": ap.Automatic()}[mode]
    inputs, targets = torch.randn(11, 6, dtype=torch.float64), torch.rand(11, dtype=torch.float64)
    whole = clipped_sum(model, linear_loss, inputs, targets, clip=0.4, clipping=clipping)
    parts = None
    for rows in (slice(0, 4), slice(4, 4), slice(4, 11)):
        part = clipped_sum(model, linear_loss, inputs[rows], targets[rows], clip=0.4, clipping=clipping)
        parts = part if parts is None else parts.plus(part)
    assert parts.bound == whole.bound
    assert parts.scales == whole.scales
    torch.testing.assert_close(parts.norms, whole.norms)
    for name, value in whole.sums.items():
        torch.testing.assert_close(parts.sums[name], value, rtol=1e-10, atol=1e-12)


def test_named_layers_have_thresholds_of_their_own():
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    clipping = ap.PerLayer(layers={"4": 3.0, "": 1.0})
    layers = layers_of(trainable(model), clipping, 0.1)
    assert [(layer.label, len(layer.parameters), layer.clip) for layer in layers] == [
        ("4", 2, pytest.approx(0.3)),
        ("(rest)", 4, 0.1),
    ]
    inputs, targets = 50 * torch.randn(1, 6, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    found = clipped_sum(model, linear_loss, inputs, targets, clip=0.1, clipping=clipping)
    last = flat({name: value for name, value in found.sums.items() if name.startswith("4")})
    rest = flat({name: value for name, value in found.sums.items() if not name.startswith("4")})
    assert last.norm() == pytest.approx(0.3, rel=1e-9)
    assert rest.norm() == pytest.approx(0.1, rel=1e-9)
    assert found.bound == pytest.approx(math.hypot(0.3, 0.1))
    assert found.scale("4.weight") == pytest.approx(math.sqrt(2) * 0.3)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (3, "the model has 2"),
        ({"0": 1.0}, "no layer of the plan holds the parameter 2.weight"),
        ({"0": 1.0, "2": 1.0, "9": 1.0}, "'9' holds no trainable parameter"),
    ],
)
def test_layers_that_do_not_fit_the_model_are_refused(layers, message):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    with pytest.raises(IncompatibleModel, match=message):
        layers_of(trainable(model), ap.PerLayer(layers=layers), 1.0)


def test_a_layer_that_is_not_finite_adds_nothing_and_leaves_the_others_alone():
    gradients = {"a.weight": torch.tensor([[3.0, 4.0], [torch.nan, 1.0]]), "b.weight": torch.tensor([[0.3], [0.5]])}
    found = clip_and_sum(PerExampleGradients(gradients=gradients), 1.0, ap.PerLayer(layers=2))
    torch.testing.assert_close(found.sums["a.weight"].float(), torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(found.sums["b.weight"].float(), torch.tensor([0.8]))


def test_recurrent_layers_are_one_layer():
    assert count_layers(Recurrent(nn.LSTM, True)) == count_layers(Recurrent(nn.GRU, False))
