"""What each clipping mode is charged, in plan, ledger and certificate."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_plan, train

import apportion as ap
from apportion import adaptive, canonical, clipping, ledger, plan
from apportion.errors import IncompatibleModel, InvalidArgument

torch = pytest.importorskip("torch")

BATCHINGS = [ap.Shuffle(batches=3), ap.Partition(batches=3), ap.Poisson(rate=0.25)]
MODES = [
    ap.Flat(),
    ap.Automatic(),
    ap.PerLayer(layers=2),
    ap.PerLayer(layers=2, noise="each"),
    ap.PerLayer(layers={"0": 1.0, "2": 0.25}, noise="each"),
]


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_layers_with_noise_sigma_each_cost_l_over_2_sigma_squared(layers: int) -> None:
    """Two sources: the closed form L/(2σ²), and L separate releases, one for each layer, composed."""
    sigma = 8.0
    found = tiny_plan(clipping=ap.PerLayer(layers=layers, noise="each"), epochs=1, schedule=ap.Uniform(sigma0=sigma))
    assert found.rho == pytest.approx(layers / (2 * sigma**2), rel=1e-12)
    separate = ap.TrainingPlan(
        budget=found.budget,
        examples=60,
        batching=found.batching,
        schedule=ap.Uniform(sigma0=sigma),
        epochs=layers,
        clip=1.0,
    )
    assert found.guarantee.epsilon == pytest.approx(separate.guarantee.epsilon, rel=1e-9)


def test_layers_with_scaled_noise_cost_what_flat_clipping_costs() -> None:
    flat, scaled = tiny_plan(), tiny_plan(clipping=ap.PerLayer(layers=7))
    assert scaled.event == flat.event
    assert scaled.guarantee == flat.guarantee


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda b: b.kind)
def test_noise_on_each_layer_is_charged_as_the_smaller_multiplier_for_every_batching(batching: Any) -> None:
    budget = ap.Budget(epsilon=30.0, delta=1e-5)
    each = tiny_plan(batching=batching, clipping=ap.PerLayer(layers=4, noise="each"), budget=budget)
    smaller = tiny_plan(batching=batching, schedule=ap.Uniform(sigma0=4.0), budget=budget)
    assert each.event == smaller.event
    assert each.sigmas == (8.0, 8.0)


@pytest.mark.parametrize("mode", MODES, ids=repr)
def test_plans_are_written_and_read_again(mode: Any) -> None:
    made = tiny_plan(clipping=mode)
    assert plan.from_json(json.loads(canonical.dumps(made.to_json()))) == made
    assert ("clipping" in made.to_json()) == (mode != ap.Flat())


@pytest.mark.parametrize(
    "wrong",
    ["flat", "round", None, 3, {"kind": "per-layer", "layers": 2}, {"kind": "automatic", "stability": 0.01, "more": 1}],
    ids=repr,
)
def test_a_plan_with_another_clipping_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        plan.from_json(tiny_plan().to_json() | {"clipping": wrong})


@pytest.mark.parametrize(
    "make",
    [
        lambda: ap.PerLayer(layers=0),
        lambda: ap.PerLayer(layers={}),
        lambda: ap.PerLayer(layers={"a": -1.0}),
        lambda: ap.PerLayer(layers=2, noise="none"),
        lambda: ap.Automatic(stability=0.0),
        lambda: tiny_plan(clipping="per-layer"),
    ],
)
def test_modes_that_bound_nothing_cannot_exist(make: Any) -> None:
    with pytest.raises(InvalidArgument):
        make()


def test_the_solver_pays_for_noise_on_each_layer() -> None:
    known: dict[str, Any] = {
        "budget": ap.Budget(rho=0.5),
        "examples": 60,
        "batching": ap.Shuffle(batches=3),
        "schedule": ap.ExponentialDecay(decay=0.1),
        "epochs": 10,
        "clip": 1.0,
    }
    flat, each = ap.solve(**known), ap.solve(**known, clipping=ap.PerLayer(layers=9, noise="each"))
    assert each.sigmas[0] == pytest.approx(3 * flat.sigmas[0], rel=1e-9)
    assert each.rho == pytest.approx(0.5, rel=1e-3)


def test_an_adaptive_plan_counts_every_layer_towards_its_cap() -> None:
    def epochs(mode: Any) -> int:
        made = ap.AdaptivePlan(
            budget=ap.Budget(rho=0.1),
            examples=60,
            batching=ap.Partition(batches=3),
            schedule=ap.ValidationDecay(sigma0=10.0, decay=0.5, period=100),
            clip=1.0,
            clipping=mode,
        )
        assert adaptive.from_json(json.loads(canonical.dumps(made.to_json()))) == made
        spent: list[Any] = []
        while (slot := made.next_slot(spent, [0.1] * len(spent), len(spent))) is not None:
            spent.append(slot.event)
        return len(spent)

    assert epochs(ap.Flat()) == 20
    assert epochs(ap.PerLayer(layers=4)) == 20
    assert epochs(ap.PerLayer(layers=4, noise="each")) == 5


@pytest.mark.parametrize("mode", MODES[1:], ids=repr)
@pytest.mark.parametrize("noise", ["float", "grid"])
def test_a_run_in_every_mode_is_published_and_verified(mode: Any, noise: str, tmp_path: Path) -> None:
    train(tmp_path / "run", tiny_plan(clipping=mode, noise=noise)).publish(tmp_path / "bundle")
    assert ap.verify(tmp_path / "bundle").verified
    recorded = ledger.read(tmp_path / "bundle" / "ledger.jsonl")
    charged = 8.0 / math.sqrt(2) if isinstance(mode, ap.PerLayer) and mode.noise == "each" else 8.0
    assert [entry.event.sigma for entry in recorded.events] == [charged] * 2  # type: ignore[union-attr]
    certificate = json.loads((tmp_path / "bundle" / "certificate.json").read_text())
    assert clipping.from_json(certificate["clipping"]) == mode
    assert certificate["sigmas"] == [8.0, 8.0]
    assert f"({mode.kind} clipping" in (tmp_path / "bundle" / "README.md").read_text()


def test_a_plan_for_other_layers_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleModel, match=r"PerLayer\(layers=2\)"):
        train(tmp_path / "run", tiny_plan(clipping=ap.PerLayer(layers=3)))
    assert not (tmp_path / "run").exists()
