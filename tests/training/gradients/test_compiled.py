"""Gradients by PyTorch's compiler: the same sums, the same bound, and nothing of the data in what is compiled."""

import gc
import os
import shutil
import weakref

import pytest
import torch
from conftest import train
from loop_comparison import assert_bounded, fingerprint, flat, loop
from test_clipping_modes import per_layer
from test_sensitivity import changes, linear_loss
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.errors import IncompatibleModel, InvalidArgument, RunError
from apportion.training.gradients import clipped_sum, clipped_sum_of_units, compile_gradients, compiled, prepare

pytestmark = pytest.mark.skipif(
    not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")),
    reason="PyTorch compiles with a C++ compiler, and there is none",
)
ROWS = 16


@pytest.fixture(autouse=True, scope="module")
def _compiled_code_goes_away(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield


def small(dtype=torch.float64):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)).to(dtype)


def data(examples, dtype=torch.float64):
    generator = torch.Generator().manual_seed(examples)
    shapes = (examples, 6), (examples,)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)


@pytest.fixture(scope="module")
def model():
    """Compiled once for the whole file."""
    made = small()
    compile_gradients(made, ROWS)
    clipped_sum(made, linear_loss, *data(3), clip=1.0)
    return made


@pytest.fixture
def nothing_is_compiled():
    before = counters["stats"]["unique_graphs"]
    yield
    assert counters["stats"]["unique_graphs"] == before


def by_columns(tensor):
    return tensor.T.contiguous().T


def every_second(tensor):
    return tensor.repeat_interleave(2, dim=-1)[..., ::2]


@pytest.mark.parametrize("layout", [torch.clone, by_columns, every_second])
@pytest.mark.parametrize("examples", [1, 2, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS + 5])
def test_sums_are_those_of_the_loop_and_no_batch_compiles_anything(model, examples, layout, nothing_is_compiled):
    """Sizes and strides would stand in the generated code, which stays on disk."""
    inputs, targets = data(examples)
    inputs = layout(inputs)
    _, norms = loop(model, linear_loss, inputs, targets, 1.0)
    clip = float(norms.median())
    expected, norms = loop(model, linear_loss, inputs, targets, clip)
    before = fingerprint(model)
    result = clipped_sum(model, linear_loss, inputs, targets, clip=clip)
    assert fingerprint(model) == before
    assert torch.allclose(result.norms, norms, rtol=1e-10)
    for name, total in expected.items():
        assert (result.sums[name] - total).norm() <= 1e-10 * total.norm(), name


def test_an_empty_batch_is_a_zero_sum(model):
    assert not flat(clipped_sum(model, linear_loss, *data(0), clip=1.0).sums).any()


@pytest.mark.parametrize("clipping", [ap.Automatic(), "per-layer"], ids=["automatic", "per-layer"])
def test_other_ways_of_clipping_give_what_they_give_uncompiled(model, clipping):
    clipping, (inputs, targets) = per_layer(model) if clipping == "per-layer" else clipping, data(20)
    found = clipped_sum(model, linear_loss, inputs, targets, clip=0.5, clipping=clipping)
    expected = clipped_sum(small(), linear_loss, inputs, targets, clip=0.5, clipping=clipping)
    assert (flat(found.sums) - flat(expected.sums)).norm() <= 1e-10 * flat(expected.sums).norm()
    assert found.scales == expected.scales


def test_units_are_clipped_as_one_also_where_a_portion_ends_between_their_records(model):
    (inputs, targets), sizes = data(40), [3, 0, 12, 4, 20, 1]
    found, expected = (
        clipped_sum_of_units(one, linear_loss, [(inputs, targets)], sizes, clip=0.5) for one in (model, small())
    )
    norms, others = (one.norms[one.norms > 0].sort()[0] for one in (found, expected))  # an empty unit's may be left out
    assert torch.allclose(norms, others, rtol=1e-10)
    assert (flat(found.sums) - flat(expected.sums)).norm() <= 1e-10 * flat(expected.sums).norm()


def test_what_is_not_finite_adds_nothing(model):
    inputs, targets = data(20)
    without = clipped_sum(model, linear_loss, inputs[1:], targets[1:], clip=0.5)
    for wrong in (float("nan"), float("inf")):
        inputs[0, 2] = wrong
        found = clipped_sum(model, linear_loss, inputs, targets, clip=0.5)
        assert (flat(found.sums) - flat(without.sums)).norm() <= 1e-12


def test_one_example_moves_the_sum_by_at_most_the_bound_in_float32():
    inputs, targets = data(40, torch.float32)
    prepared = prepare(small(torch.float32), linear_loss, compiled_rows=ROWS)
    assert_bounded(prepared, inputs, targets, 0.7, changes(torch.float32))


def test_a_chain_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(compiled, "_compiled", lambda loss: pytest.fail("compiled, though quicker without"))
    chain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    prepare(chain, linear_loss, compiled_rows=ROWS)(*data(5), 1.0)


class Odd(nn.Module):
    """A parameter without dimensions, one without entries, an attribute that somebody may change, a loss in float32."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 4), nn.LayerNorm(4)
        self.scale, self.nothing, self.slope = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(0, 3)), 2.0

    def forward(self, inputs):
        return self.norm(self.slope * torch.tanh(self.layer(inputs))) * self.scale + self.nothing.sum()


def coarse_cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs.float(), targets, reduction="none")


def test_parameters_of_any_shape_and_what_changes_in_the_model_later():
    torch.manual_seed(2)
    model = Odd().double()
    inputs, targets = data(20)[0], torch.arange(20) % 4
    compile_gradients(model, ROWS)

    def agrees():
        found = clipped_sum(model, coarse_cross_entropy, inputs, targets, clip=0.5).sums
        expected, _ = loop(model, coarse_cross_entropy, inputs, targets, 0.5)
        assert list(found) == list(expected)
        return float((flat(found) - flat(expected)).norm()) < 1e-5

    assert agrees()
    model.slope = 0.3
    assert agrees(), "the attribute's new value must be used"
    hook = model.norm.register_forward_hook(lambda module, given, outputs: 5 * outputs)
    assert agrees(), "the hook must be used"
    hook.remove()
    assert agrees()
    targets[3] = 777
    with pytest.raises(RunError, match="out of range") as caught:
        clipped_sum(model, coarse_cross_entropy, inputs, targets, clip=0.5)
    assert "777" not in str(caught.value)


class Forks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(2))

    def forward(self, inputs):
        outputs = self.layer(inputs) * self.scale
        return outputs if float(outputs.sum()) > 0 else outputs + 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 2)), "random numbers"),
        (Forks, "cannot compile"),
    ],
    ids=["dropout", "control flow"],
)
def test_what_cannot_be_compiled_is_refused_before_anything_is_written(tmp_path, wrong, message):
    model = wrong()
    with pytest.raises(IncompatibleModel, match=message):
        train(tmp_path / "run", model=model, compile=True)
    assert not (tmp_path / "run").exists()
    clipped_sum(
        model, cross_entropy, torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 1]), clip=1.0
    )  # not compiled any more


def test_compiled_code_that_gives_other_gradients_is_refused(monkeypatch):
    honest = compiled._compiled

    def dishonest(loss):
        function = honest(loss)
        return lambda *given: (1.01 * function(*given)[0], function(*given)[1])

    monkeypatch.setattr(compiled, "_compiled", dishonest)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    with pytest.raises(IncompatibleModel, match="other gradients"):
        prepare(small(), linear_loss, compiled_rows=ROWS)(*data(5), 1.0)


def test_a_baseline_is_not_compiled(tmp_path):
    plan = ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=3), epochs=1)
    with pytest.raises(InvalidArgument, match="baseline"):
        train(tmp_path / "run", plan=plan, compile=True)


def test_a_run_with_compiled_gradients_trains_the_same_model(tmp_path):
    def trained(name, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2))
        keys = list(model.state_dict())
        train(tmp_path / name, model=model, seeded_for_research_only=1, **options)
        assert list(model.state_dict()) == keys
        return model

    by_rules, by_compiler = trained("a"), trained("b", compile=True)
    for one, other in zip(by_rules.parameters(), by_compiler.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
    gone = weakref.ref(by_compiler)
    del by_compiler, other
    gc.collect()
    assert gone() is None, "what was compiled must not keep the model"
