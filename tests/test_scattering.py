"""The scattering transform of the examples is what its definition says, and the recipe on top of it publishes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_mnist
from torch import Tensor

import apportion as ap
from examples import mnist_scattering, scattering
from examples.scattering import (
    DIRECTIONS,
    SCALES,
    Scattering,
    channels,
    features,
    gabor,
    grouped,
    morlet,
    public_moments,
)  # fmt: skip
from examples.strokes import strokes
from examples.upright import upright

SIZE, EDGE, STEP = 36, 4, 4
DRAWN = [0.0688374, 0.0964549, 0.0548284]


@pytest.fixture(scope="module")
def transform() -> Scattering:
    return Scattering()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(3, 28, 28, generator=torch.Generator().manual_seed(5))


def blob(down: int, right: int) -> Tensor:
    places = torch.arange(28.0)
    return torch.exp(-((places[:, None] - down) ** 2 + (places - right) ** 2) / 6)


@pytest.mark.parametrize("scale", range(SCALES))
@pytest.mark.parametrize("direction", range(DIRECTIONS))
def test_waves_are_blind_to_a_constant_and_see_their_own_frequency_most(scale: int, direction: int) -> None:
    wave = morlet(SIZE, scale, direction)
    assert abs(wave.sum()) < 1e-12
    spectrum = torch.fft.fft2(wave).abs()
    row, column = divmod(int(spectrum.argmax()), SIZE)
    down, right = ((at - SIZE * (at > SIZE / 2)) * 2 * math.pi / SIZE for at in (row, column))
    frequency, angle = scattering.FREQUENCY / 2**scale, math.pi * direction / DIRECTIONS
    assert right == pytest.approx(frequency * math.cos(angle), abs=0.25)
    assert down == pytest.approx(frequency * math.sin(angle), abs=0.25)


def test_the_blur_keeps_means_and_no_frequency_is_amplified(transform: Scattering) -> None:
    bell = transform.bell_0
    assert float(bell[0, 0]) == pytest.approx(1.0, abs=1e-6)
    waves = sum((transform.get_buffer(f"waves_{scale}") ** 2).sum(0) for scale in range(SCALES))
    opposite = torch.roll(waves.flip((0, 1)), (1, 1), (0, 1))
    assert float((bell**2 + (waves + opposite) / 2).max()) <= 1 + 1e-4, (
        "Littlewood–Paley: moduli lose energy, never add"
    )


def test_it_moves_no_two_images_apart(transform: Scattering, images: Tensor) -> None:
    found = transform(images)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        apart = STEP**2 * ((found[one] - found[other]) ** 2).sum()  # every fourth pixel stands for sixteen
        assert 0 < apart <= 1.02 * ((images[one] - images[other]) ** 2).sum()


def around(kernel: Tensor, image: Tensor) -> Tensor:
    """The convolution on the torus by its definition, a sum over pixels, without any Fourier transform."""
    total = torch.zeros(SIZE, SIZE, dtype=kernel.dtype)
    for down in range(SIZE):
        for right in range(SIZE):
            total += image[down, right] * torch.roll(kernel, (down, right), (0, 1))
    return total


def test_channels_are_blurred_moduli_of_waves_of_moduli_of_waves(transform: Scattering, images: Tensor) -> None:
    image = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    image[EDGE:-EDGE, EDGE:-EDGE] = images[0]
    bell = gabor(SIZE, 1.6, 0.0, 0.0, 1.0)

    def blurred(modulus: Tensor) -> Tensor:
        return around(bell, modulus).real[EDGE:-EDGE:STEP, EDGE:-EDGE:STEP]

    fine = around(morlet(SIZE, 0, 3), image).abs()
    expected = {
        0: (blurred(image), 1e-6),
        1 + 3: (blurred(fine), 1e-6),
        9 + 3: (blurred(around(morlet(SIZE, 1, 3), image).abs()), 0.03),  # from every second pixel: nearly the same
        17 + 8 * 3 + 5: (blurred(around(morlet(SIZE, 1, 5), fine).abs()), 0.03),
    }
    found = transform(images[:1])[0]
    assert found.shape == (81, 7, 7)
    for channel, (value, tolerance) in expected.items():
        assert float((found[channel] - value).abs().max()) <= tolerance * float(value.max())


def test_moving_an_image_by_four_pixels_moves_its_channels_by_one(transform: Scattering) -> None:
    before, after = transform(torch.stack([blob(12, 12), blob(16, 12)]))
    assert torch.allclose(before[:, 1:5, 1:6], after[:, 2:6, 1:6], atol=1e-4)


def test_a_small_move_changes_features_less_than_pixels(transform: Scattering) -> None:
    thin = torch.zeros(2, 28, 28)
    thin[0, 6:22, 13], thin[1, 6:22, 14] = 1, 1
    found = transform(thin).flatten(1)
    moved = [float((rows[0] - rows[1]).norm() / rows[0].norm()) for rows in (thin.flatten(1), found)]
    assert moved[1] < 0.5 < 1.4 < moved[0]


def test_strokes_answer_to_the_wave_across_them(transform: Scattering) -> None:
    upright = torch.zeros(1, 28, 28)
    upright[0, :, 13:15] = 1
    first = transform(upright)[0, 1:9].sum((1, 2))
    assert int(first.argmax()) == 0
    lying = transform(upright.transpose(1, 2))[0, 1:9].sum((1, 2))
    assert int(lying.argmax()) == DIRECTIONS // 2


def test_a_records_features_are_its_own_of_unit_length_and_blind_to_contrast(images: Tensor) -> None:
    together = features(images)
    assert together.shape == (3, scattering.FEATURES)
    assert torch.allclose(together.norm(dim=1), torch.ones(3), atol=1e-3)
    assert torch.allclose(features(images[1:2]), together[1:2], atol=1e-3)
    assert torch.allclose(features(images[:1] / 2), together[:1], atol=5e-3)
    assert torch.isfinite(features(torch.zeros(1, 784))).all()


def test_strokes_that_had_no_part_in_it_come_out_centred_and_nearly_uncorrelated() -> None:
    mean, whitening = public_moments()
    before = grouped(channels(strokes(100, seed=2))) - mean
    correlated, whitened = (_most_variance_of_one_direction(rows) for rows in (before, torch.matmul(whitening, before)))
    assert whitened < 0.1 < 0.3 < correlated, "of 81 and of 32 channels"
    assert float(whitening.norm(dim=1).max()) <= 1 / math.sqrt(scattering.RIDGE), (
        "no variance is blown up beyond the ridge"
    )


def _most_variance_of_one_direction(rows: Tensor) -> float:
    covariance = torch.einsum("rcp,rdp->cd", rows, rows)
    return float(torch.linalg.eigvalsh(covariance).max() / covariance.trace())


def slanted(slant: float, down: int = 0, right: int = 0) -> Tensor:
    """A stroke one pixel wide, leaning by `slant` pixels per row, its middle moved."""
    image = torch.zeros(28, 28)
    for row in range(-8, 9):
        image[13 + down + row, round(13 + right + slant * row)] = 1
    return image


@pytest.mark.parametrize("slant", [-0.5, 0.0, 0.5])
def test_a_leaning_stroke_is_set_upright_in_the_middle(slant: float) -> None:
    (found,) = upright(slanted(slant, down=2, right=-3)[None])
    ink, places = found.sum(), torch.arange(28.0) - 13.5
    down, right = (found.sum(1) * places).sum() / ink, (found.sum(0) * places).sum() / ink
    assert abs(float(down)) < 0.1
    assert abs(float(right)) < 0.1
    assert abs(float(torch.einsum("ij,i,j->", found, places - down, places - right) / ink)) < 0.3
    assert float(found[:, 12:16].sum() / ink) > 0.95
    assert float(ink) == pytest.approx(17, rel=0.1)


def test_setting_upright_again_changes_little_and_an_empty_image_stays_empty() -> None:
    once = upright(torch.as_tensor(strokes(20)))
    again = upright(once)
    assert float((again - once).norm() / once.norm()) < 0.2
    assert not upright(torch.zeros(2, 784)).any()


def test_an_image_is_set_upright_by_itself(images: Tensor) -> None:
    assert torch.equal(upright(images)[1:2], upright(images[1:2]))


def test_everybody_draws_the_same_strokes() -> None:
    drawn = strokes(3)
    assert drawn.shape == (3, 28, 28)
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert drawn.mean(axis=(1, 2)) == pytest.approx(DRAWN, abs=1e-6)


def test_features_are_computed_once_where_there_is_a_cache(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = features(images.numpy(), tmp_path / "cache")
    monkeypatch.setattr(scattering, "computed", None)
    assert torch.equal(features(images.numpy(), tmp_path / "cache"), first)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npy"]
    with pytest.raises(TypeError):
        features(images.numpy() + np.float32(1e-3), tmp_path / "cache")


def test_a_side_that_four_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4, got 30"):
        Scattering(30)


def test_the_recipe_publishes_a_bundle_that_verifies_and_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mnist_scattering, "EPOCHS", 2)
    monkeypatch.setattr(mnist_scattering, "EXAMPLES", 180)
    write_mnist(tmp_path / "data", {"train": 200, "t10k": 20})
    places = {name: str(tmp_path / name) for name in ("out", "to", "keep")}
    options = [text for name, place in places.items() for text in (f"--{name}", place)]
    mnist_scattering.main(["--epsilon", "8", "--data-dir", str(tmp_path / "data"), *options])
    assert ap.verify(tmp_path / "to").verified
    assert "scattering" in (tmp_path / "to" / "README.md").read_text()
    assert json.loads((tmp_path / "to" / "plan.json").read_text())["examples"] == 180  # declared, not counted
    assert "20 public test images" in capsys.readouterr().out
