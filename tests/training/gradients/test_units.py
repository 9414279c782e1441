"""Law 6 for persons: one person moves the clipped sum by at most the clipping norm, with however many records."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_comparison import flat
from test_clipping_modes import ALL, per_layer
from test_rules import Words
from test_sensitivity import changes, linear_loss
from torch import nn

import apportion as ap
from apportion.errors import RunError
from apportion.training.gradients import by_unit, clipped_sum, clipped_sum_of_units

MODES = ["flat", "per-layer", "automatic"]
GRADIENTS = ["mean", "sum"]


def clipping_of(mode, model):
    return {"flat": ap.Flat(), "per-layer": per_layer(model), "automatic": ap.Automatic()}[mode]


def summed(model, inputs, targets, sizes, clip, clipping, gradient="mean", splits=()):
    """The records in parts that end at `splits`."""
    edges = [0, *splits, len(inputs)]
    parts = [(inputs[a:b], targets[a:b]) for a, b in itertools.pairwise(edges)]
    return clipped_sum_of_units(
        model, linear_loss, parts, sizes, clip=clip, clipping=clipping, averaged=gradient == "mean"
    )


def by_hand(model, inputs, targets, sizes, clip, clipping, gradient):
    """One ordinary backward pass over each person's records, clipped with arithmetic of its own."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in named.items()}
    groups = {}
    for name in named:
        groups.setdefault(name.rpartition(".")[0] if isinstance(clipping, ap.PerLayer) else "", []).append(name)
    start = 0
    for size in sizes:
        rows, start = slice(start, start + size), start + size
        if not size:
            continue
        total = linear_loss(model(inputs[rows]), targets[rows]).sum() / (size if gradient == "mean" else 1)
        found = torch.autograd.grad(total, list(named.values()), allow_unused=True, materialize_grads=True)
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


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kind", ["deep", "tied", "nested", "convolution", "sequence, Gram", "attention", "recurrent", "whole model"]
)
def test_persons_agree_with_a_loop_over_persons(kind, mode, gradient):
    torch.manual_seed(0)
    make, shape = ALL[kind]
    model = make().double()
    clipping = clipping_of(mode, model)
    sizes = [1, 3, 0, 2, 4]
    inputs, targets = torch.randn(10, *shape, dtype=torch.float64), torch.rand(10, dtype=torch.float64) + 0.5
    clip = 0.3 * float(summed(model, inputs, targets, sizes, 1.0, ap.Flat(), gradient).norms.median()) + 1e-3
    expected = by_hand(model, inputs, targets, sizes, clip, clipping, gradient)
    for splits in ((), (1, 2, 5, 5, 9)):
        found = summed(model, inputs, targets, sizes, clip, clipping, gradient, splits)
        assert set(found.sums) == set(expected)
        for name, value in expected.items():
            torch.testing.assert_close(found.sums[name], value, rtol=1e-8, atol=1e-10 * clip)


def test_persons_with_one_record_each_are_examples():
    torch.manual_seed(1)
    model = ALL["deep"][0]().double()
    inputs, targets = torch.randn(9, 6, dtype=torch.float64), torch.rand(9, dtype=torch.float64)
    for mode in MODES:
        clipping = clipping_of(mode, model)
        persons = summed(model, inputs, targets, [1] * 9, 0.2, clipping)
        examples = clipped_sum(model, linear_loss, inputs, targets, clip=0.2, clipping=clipping)
        assert persons.bound == examples.bound
        assert persons.scales == examples.scales
        torch.testing.assert_close(persons.norms, examples.norms)
        for name, value in examples.sums.items():
            torch.testing.assert_close(persons.sums[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("records", [0, 1, 1000])
def test_adding_a_person_moves_the_sum_by_at_most_the_bound(records, mode, gradient, dtype):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 5)).to(dtype)
    clipping, clip = clipping_of(mode, model), 0.7
    sizes = [2, 1, 5]
    inputs, targets = torch.randn(8, 6, dtype=dtype), torch.rand(8, dtype=dtype) + 0.5
    without = summed(model, inputs, targets, sizes, clip, clipping, gradient)
    for change in [lambda x: x, *changes(dtype)] if records else [lambda x: x]:
        own = torch.randn(records, 6, dtype=dtype)
        if records:
            own[0] = change(own[0])
        for place in (0, 1, 3):  # in front of all, in between, and last
            start = sum(sizes[:place])
            found = summed(
                model,
                torch.cat([inputs[:start], own, inputs[start:]]),
                torch.cat([targets[:start], torch.rand(records, dtype=dtype) + 0.5, targets[start:]]),
                [*sizes[:place], records, *sizes[place:]],
                clip,
                clipping,
                gradient,
                splits=(start + records // 2,),
            )
            moved = {name: value.double() - without.sums[name].double() for name, value in found.sums.items()}
            assert torch.isfinite(flat(moved)).all()
            assert flat(moved).norm() <= without.bound
            assert flat({name: value / without.scale(name) for name, value in moved.items()}).norm() <= 1
            if not records:
                # Nobody's gradient; what is left is how other batch sizes round.
                assert flat(moved).norm() <= 1e-6 * clip


@pytest.mark.parametrize(
    "kind", ["convolution", "sequence, Gram", "sequence, built", "attention", "layer norm", "nested"]
)
@pytest.mark.parametrize("mode", ["flat", "per-layer"])
def test_adding_a_person_to_any_kind_of_layer_moves_the_sum_by_at_most_the_bound(kind, mode):
    torch.manual_seed(2)
    make, shape = ALL[kind]
    model = make()
    clipping, clip = clipping_of(mode, model), 0.3
    inputs, targets = torch.randn(12, *shape), torch.rand(12) + 0.5
    without = summed(model, inputs[5:], targets[5:], [4, 3], clip, clipping)
    for change in changes(torch.float32):
        changed = inputs.clone()
        changed[2] = change(inputs[2])
        found = summed(model, changed, targets, [5, 4, 3], clip, clipping)
        moved = {name: value.double() - without.sums[name].double() for name, value in found.sums.items()}
        assert torch.isfinite(flat(moved)).all()
        assert flat({name: value / without.scale(name) for name, value in moved.items()}).norm() <= 1


@pytest.mark.parametrize("kind", [*ALL, "words"])
def test_regrouped_layers_and_built_gradients_agree(kind, monkeypatch):
    """Two independent ways to a unit's gradient."""
    torch.manual_seed(7)
    make, shape = (lambda: Words(0), None) if kind == "words" else ALL[kind]
    model = make().double()
    inputs = torch.randint(0, 11, (13, 5)) if shape is None else torch.randn(13, *shape, dtype=torch.float64)
    targets, sizes = torch.rand(13, dtype=torch.float64) + 0.5, [1, 2, 0, 1, 3, 6]
    regrouped = summed(model, inputs, targets, sizes, 0.3, ap.Flat(), splits=(4,))
    monkeypatch.setattr(by_unit, "can_regroup", lambda pieces: False)
    built = summed(model, inputs, targets, sizes, 0.3, ap.Flat(), splits=(4,))
    for name, value in built.sums.items():
        torch.testing.assert_close(regrouped.sums[name], value, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("size", [(20, 10), (300, 300), (60, 1000)], ids=str)
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_aligned_records_do_not_add_up_beyond_the_bound(size, gradient):
    """Many persons with fifty copies of one record: as long as a sum can be, and so is its rounding."""
    torch.manual_seed(3)
    model = nn.Linear(*size)
    sizes = [50] * 40
    inputs, targets = torch.randn(1, size[0]).expand(2000, size[0]).clone(), torch.ones(2000)
    everyone = summed(model, inputs, targets, sizes, 0.3337, ap.Flat(), gradient)
    fewer = summed(model, inputs[50:], targets[50:], sizes[1:], 0.3337, ap.Flat(), gradient)
    assert 0.99 * 0.3337 <= (flat(everyone.sums) - flat(fewer.sums)).norm() <= everyone.bound


def test_a_person_with_a_bad_record_adds_nothing_and_changes_nobody_else():
    torch.manual_seed(4)
    model = ALL["deep"][0]().double()
    inputs, targets = torch.randn(6, 6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    expected = summed(model, inputs[2:], targets[2:], [4], 0.3, ap.Flat())
    inputs[0] = torch.nan
    found = summed(model, inputs, targets, [2, 4], 0.3, ap.Flat())
    torch.testing.assert_close(flat(found.sums), flat(expected.sums), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3))])
@pytest.mark.parametrize("huge", [1e14, 1e16, 1e25, 1e36, 2e38, 1e39, 1e42])
def test_whether_a_huge_gradient_counts_as_infinite_does_not_depend_on_where_its_batch_is_split(
    layer, mode, gradient, huge
):
    """Else one person more, which moves where a batch is split, could take another one's whole gradient away."""
    inputs = torch.rand(5, 4) + 0.5
    inputs[1] *= 1e18
    targets = torch.ones(5)
    targets[1] *= huge / 1e18  # the product is beyond float32 for the largest ones, the factors are not
    clipping = clipping_of(mode, layer)
    whole = summed(layer, inputs, targets, [1, 3, 1], 0.7, clipping, gradient)
    split = summed(layer, inputs, targets, [1, 3, 1], 0.7, clipping, gradient, splits=(2, 3))
    assert math.sqrt(sum(float((whole.sums[n] - split.sums[n]).double().square().sum()) for n in whole.sums)) < 1e-5


def test_memory_is_bounded_by_a_few_records_at_a_time(monkeypatch):
    torch.manual_seed(5)
    model = ALL["deep"][0]().double()
    inputs, targets = torch.randn(12, 6, dtype=torch.float64), torch.ones(12, dtype=torch.float64)
    whole = summed(model, inputs, targets, [5, 0, 7], 0.3, ap.Flat())
    monkeypatch.setattr(by_unit, "ROWS_AT_ONCE", 800)  # about two records of this model
    pieces = summed(model, inputs, targets, [5, 0, 7], 0.3, ap.Flat())
    torch.testing.assert_close(flat(pieces.sums), flat(whole.sums), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("sizes", [[3], [3, 4], [3, 1]])
def test_records_that_belong_to_nobody_are_an_error(sizes):
    model = ALL["deep"][0]()
    with pytest.raises(RunError):
        summed(model, torch.randn(5, 6), torch.ones(5), sizes, 0.3, ap.Flat())


@pytest.mark.parametrize("kind", ["deep", "convolution", "sequence, Gram", "attention", "layer norm"])
def test_layers_with_a_rule_are_regrouped_and_no_gradient_is_built(kind, monkeypatch):
    make, shape = ALL[kind]
    monkeypatch.setattr(by_unit, "instantiated", lambda *arguments: pytest.fail("a gradient was built"))
    summed(make(), torch.randn(10, *shape), torch.ones(10), [4, 1, 0, 5], 0.3, ap.Flat())


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    splits=st.lists(st.integers(0, 60), max_size=6),
    averaged=st.booleans(),
)
def test_a_batch_of_persons_may_be_split_anywhere(sizes, splits, averaged):
    generator = torch.Generator().manual_seed(8)
    model = MODEL
    records = sum(sizes)
    inputs = torch.randn(records, 6, dtype=torch.float64, generator=generator)
    targets = torch.rand(records, dtype=torch.float64, generator=generator)
    gradient = "mean" if averaged else "sum"
    whole = summed(model, inputs, targets, sizes, 0.2, ap.Flat(), gradient)
    cut = summed(model, inputs, targets, sizes, 0.2, ap.Flat(), gradient, sorted(min(s, records) for s in splits))
    assert len(cut.norms) >= sum(size > 0 for size in sizes)
    torch.testing.assert_close(flat(cut.sums), flat(whole.sums), rtol=1e-9, atol=1e-12)


MODEL = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
