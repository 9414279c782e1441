"""CIFAR-10 on frozen convolutions: features are computed once, choices never see a test record, the recipe publishes."""

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import apportion as ap
from apportion.accounting.conversions import mu_of_epsilon
from apportion.data import Dataset
from apportion.training.gradients import clipped_sum
from examples import imagenet_features
from experiments import best_cifar, cifar, cifar_paper, kept, simulated_heads

ROOT = Path(__file__).parent.parent


def clusters(records: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten well separated directions, of length 1."""
    labels = torch.arange(records) % 10
    inputs = torch.nn.functional.one_hot(labels, width) + 0.1 * torch.randn(records, width) / width**0.5
    return torch.nn.functional.normalize(inputs.float()), labels


@pytest.fixture
def convolutions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """A stand-in for the network: the mean of each image, repeated; the list has what it was given."""
    seen: list[int] = []

    def network(images: Any) -> Any:
        seen.append(len(images))
        weights = np.linspace(1, 2, images.shape[3])
        return np.repeat((images * weights).mean((1, 2, 3))[:, None], imagenet_features.FEATURES, axis=1)

    weights = tmp_path / "weights"
    weights.write_bytes(b"one")
    monkeypatch.setattr(imagenet_features, "convolutions", lambda: network)
    monkeypatch.setattr(imagenet_features, "weights_file", lambda: weights)
    monkeypatch.setattr(imagenet_features, "PART", 6)
    return seen


def images(number: int) -> Any:
    return np.random.default_rng(1).uniform(-1, 1, (number, 3072)).astype(np.float32)


def test_features_are_computed_once_and_an_interrupted_computation_loses_one_part(
    convolutions: list[int], tmp_path: Path
) -> None:
    first = imagenet_features.features(images(15), side=32, directory=tmp_path)
    assert first.shape == (15, imagenet_features.FEATURES)
    assert sum(convolutions) == 15
    imagenet_features.kept_at(images(15)[6:12], side=32, mirrored=False, directory=tmp_path).unlink()
    again = imagenet_features.features(images(15), side=32, directory=tmp_path)
    assert sum(convolutions) == 15 + 6
    assert np.array_equal(first, again)


def test_other_images_sizes_or_weights_never_take_features_that_were_kept(
    convolutions: list[int], tmp_path: Path
) -> None:
    def name(inputs: Any, **how: Any) -> str:
        return imagenet_features.kept_at(inputs, **{"side": 32, "mirrored": False, **how}, directory=tmp_path).name

    usual, changed = images(3), images(3)
    changed[2, 3071] += 1e-3
    names = {name(usual), name(changed), name(usual[:2]), name(usual, side=64), name(usual, mirrored=True)}
    imagenet_features.weights_file().write_bytes(b"two")
    assert len(names | {name(usual)}) == 6


def test_mirrored_images_are_mirrored(convolutions: list[int], tmp_path: Path) -> None:
    usual = images(2)
    mirrored = usual.reshape(2, 3, 32, 32)[:, :, :, ::-1].reshape(2, 3072).copy()
    found = imagenet_features.passed(usual, side=32, mirrored=True)
    assert np.array_equal(found, imagenet_features.passed(mirrored, side=32, mirrored=False))
    assert not np.array_equal(found, imagenet_features.passed(usual, side=32, mirrored=False))


@pytest.mark.parametrize("scale", [imagenet_features.scaled, imagenet_features.directions])
def test_what_becomes_of_a_record_depends_on_no_other(scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet_features, "public_constants", lambda: (np.full(8, 0.5), np.full(8, 2.0)))
    records = np.random.default_rng(2).uniform(0, 6, (5, 8)).astype(np.float32)
    assert np.array_equal(scale(records)[:2], scale(records[:2]))
    assert np.allclose(np.linalg.norm(imagenet_features.directions(records), axis=1), 1)


@pytest.mark.parametrize("row", best_cifar.rows(True), ids=lambda row: f"epsilon {row.settings['epsilon']}")
def test_a_head_is_trained_within_its_budget_and_choices_never_see_a_test_record(
    row: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only = {"train": clusters(400, 20)}
    monkeypatch.setattr(cifar, "features", lambda part, *how: only[part])
    result = best_cifar.compute({**row.settings, "part": "validation"}, tmp_path)
    assert result["accuracy"] > 0.5
    assert result["epochs"] == row.settings["epochs"]
    if row.settings["epsilon"] is not None:
        assert result["epsilon"] <= row.settings["epsilon"]
        assert result["adjacency"] == "add-remove"


def test_simulated_heads_make_the_steps_of_the_library_but_for_their_noise() -> None:
    inputs, labels = clusters(60, 12)
    settings = {"batches": 1, "epochs": 3, "clip": 0.3, "learning_rate": 5.0, "momentum": 0.9}
    unclipped = {**settings, "clip": None, "epochs": 2}
    both = simulated_heads.train(inputs.numpy(), labels.numpy(), [settings, unclipped], [[0.0] * 3] * 2)
    for asked, (last, _) in zip((settings, unclipped), both, strict=True):
        model = best_cifar.head(12)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        for _ in range(asked["epochs"]):
            clip = asked["clip"] or 100.0
            loss = torch.nn.functional.cross_entropy
            model.weight.grad = clipped_sum(model, loss, inputs, labels, clip=clip).sums["weight"].float() / 60
            optimizer.step()
        assert np.allclose(last.T, model.weight.detach(), atol=1e-5)


@pytest.mark.parametrize("batches", [1, 3])
def test_simulated_steps_without_a_gradient_spread_as_far_as_the_noise_of_the_plan(batches: int) -> None:
    settings = {"batches": batches, "epochs": 3, "clip": 1.0, "learning_rate": 1.0, "momentum": 0.0}
    inputs, labels = np.zeros((6, 4000), np.float32), np.zeros(6, np.int64)
    ((last, _),) = simulated_heads.train(inputs, labels, [settings], [[0.3, 0.2, 0.1]])
    assert last.std() == pytest.approx(math.sqrt(batches * (0.3**2 + 0.2**2 + 0.1**2)), rel=0.02)


def test_simulated_noise_is_that_of_one_gaussian_release_per_epoch() -> None:
    settings = {"batches": 1, "epochs": 30, "epsilon": 1.0, "clip": 0.5}
    exact = math.sqrt(30) / mu_of_epsilon(1.0, best_cifar.DELTA) * 0.5 / 50_000
    assert simulated_heads.noise_of(best_cifar, settings, 50_000) == pytest.approx([exact] * 30, rel=2e-3)
    assert simulated_heads.noise_of(best_cifar, {**settings, "epsilon": None}, 50_000) == [0.0] * 30


def test_every_setting_of_the_best_models_was_tried_on_training_records_and_none_tried_was_better() -> None:
    tried = kept.lines_of(best_cifar.TUNING)
    assert all(configuration["part"] == "validation" for configuration in tried)
    for name, value in best_cifar.FEATURES_CHOSEN.items():
        assert any(configuration.get(name) == value for configuration in tried), f"{name} = {value} was not tried"
    for epsilon, chosen in best_cifar.CHOSEN.items():
        heads = [one for one in tried if one["how"] == "simulated" and one["epsilon"] == epsilon]
        features_too = {**chosen, **best_cifar.FEATURES_CHOSEN}
        (accuracy,) = {one["accuracy"] for one in heads if features_too.items() <= one.items()}
        assert accuracy == max(one["accuracy"] for one in heads)


def test_the_papers_settings_are_its_epochs_its_batches_and_its_network() -> None:
    settings = {row.settings["schedule"]: row.settings for row in cifar_paper.rows(False)}
    plans = {name: cifar_paper.plan_of(settings[name], 40_000) for name in settings}
    assert all(plan.batching.steps == 200 for plan in plans.values())
    assert len(plans["uniform"].slots) == 200
    assert plans["uniform"].rho == pytest.approx(1.5625, rel=1e-12)
    assert 1.54 < plans["exponential"].rho <= 1.5625
    assert sum(p.numel() for p in cifar_paper.model(cifar_paper.HIDDEN).parameters()) == 1280 * 1000 + 1000 + 10_010


def test_the_papers_schedules_run_and_all_of_them_stay_under_their_cap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    records = clusters(500, imagenet_features.FEATURES)
    monkeypatch.setattr(cifar, "features", lambda part, *how: records)
    for row in cifar_paper.rows(True):
        result = cifar_paper.compute(row.settings, tmp_path / row.settings["schedule"])
        assert result["examples"] == 400
        if "rho" in row.settings:
            assert result["rho"] <= result["rho_certified"] * (1 + 1e-9)


def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    specification = importlib.util.spec_from_file_location("cifar_features", ROOT / "examples" / "cifar_features.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "cifar_features", module)
    specification.loader.exec_module(module)
    return module


def test_the_recipe_publishes_a_bundle_that_verifies_and_tells_the_classes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = example(monkeypatch)
    inputs, labels = clusters(500, imagenet_features.FEATURES)
    stand_in = Dataset(inputs=inputs.numpy(), targets=labels.numpy(), features=(), classes=())
    monkeypatch.setattr(module, "cifar10", lambda directory: (stand_in, stand_in))
    monkeypatch.setattr(module, "features", lambda records, **how: records)
    monkeypatch.setattr(module, "directions", lambda records: records)
    monkeypatch.setattr(module, "EPOCHS", 4)
    monkeypatch.setattr(module, "EXAMPLES", 480)
    module.main(["--epsilon", "8", "--out", str(tmp_path / "run"), "--to", str(tmp_path / "published")])
    assert "verified: True" in capsys.readouterr().out
    assert ap.verify(tmp_path / "published").verified
    assert json.loads((tmp_path / "published" / "plan.json").read_text())["examples"] == 480  # declared, not counted
    right = module.predict(tmp_path / "published", inputs) == labels
    assert right.double().mean() > 0.5
    lines = (ROOT / "examples" / "cifar_features.py").read_text().splitlines()
    assert len(lines) < 100
