"""A scattering transform of small images: public features that nobody's records had a part in.

Wavelets turned into eight directions at two scales, moduli, and a blur, twice over (S. Mallat, *Group Invariant Scattering*,
2012; J. Bruna and S. Mallat, *Invariant Scattering Convolution Networks*, 2013). Nothing is learned, so the filters are a
public constant, and the features of a record are a function of that record alone: computing them costs no privacy. That
linear models on such features train well under a budget was found by F. Tramèr and D. Boneh (ICLR 2021, arXiv 2011.11660).

For images of 28 × 28: 1 + 16 + 64 channels of 7 × 7. `features` sets images upright first (`upright.py`), and then makes
channels fit for a linear model under noise: what all records have in common is taken away, and correlated channels become
fewer uncorrelated ones: 32 · 49 = 1568 features. That needs statistics of handwriting. Those of private records would have
to be paid for, so they are taken from random pen strokes (`strokes.py`).
"""

import hashlib
import math
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from examples.strokes import strokes
from examples.upright import upright

SCALES, DIRECTIONS, SIDE = 2, 8, 28
WIDTH, FREQUENCY, SLANT = 0.8, 0.75 * math.pi, 4 / DIRECTIONS  # of the finest wavelet: in pixels, radians, as a ratio
GROUPS, LEAST_DEVIATION = 27, 1e-5
STROKES, RIDGE, KEPT = 600, 0.03, 32
PLACES = (SIDE // 4) ** 2
FEATURES = KEPT * PLACES
VERSION = "2"  # of the features, for those that are kept on disk
_SUBSAMPLED = 2**SCALES
_MARGIN = _SUBSAMPLED
_AT_ONCE = 16  # images whose spectra stay in a processor's cache
_ROWS = 500


def gabor(size: int, width: float, angle: float, frequency: float, slant: float) -> Tensor:
    """A Gaussian bell of a wave, around (0, 0) on a torus of size × size pixels; its absolute values add up to 1."""
    places = torch.arange(-3 * size // 2, 3 * size // 2, dtype=torch.float64)  # three rounds of the torus, added up
    down, right = torch.meshgrid(places, places, indexing="ij")
    along = right * math.cos(angle) + down * math.sin(angle)
    across = down * math.cos(angle) - right * math.sin(angle)
    bell = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
    wave = torch.polar(bell, frequency * along) / bell.sum()
    around = wave.reshape(3, size, 3, size).sum((0, 2))
    return torch.roll(around, (size // 2, size // 2) if size % 2 == 0 else (0, 0), (0, 1))


def morlet(size: int, scale: int, direction: int) -> Tensor:
    """A wave within a bell, less as much of the bell as makes its sum zero: blind to a constant."""
    width, angle = WIDTH * 2**scale, math.pi * direction / DIRECTIONS
    wave = gabor(size, width, angle, FREQUENCY / 2**scale, SLANT)
    bell = gabor(size, width, angle, 0.0, SLANT)
    return wave - bell * (wave.sum() / bell.sum())


class Scattering(nn.Module):
    """(records, side · side) or (records, side, side) pixels → (records, 81, side / 4, side / 4) channels."""

    def __init__(self, side: int = SIDE) -> None:
        super().__init__()
        if side < _SUBSAMPLED or side % _SUBSAMPLED:
            raise ValueError(f"side must be a multiple of {_SUBSAMPLED}, got {side}")
        self.side, self.size = side, side + 2 * _MARGIN
        waves = [[morlet(self.size, scale, direction) for direction in range(DIRECTIONS)] for scale in range(SCALES)]
        bells = [gabor(self.size >> scale, WIDTH * 2 ** (SCALES - 1 - scale), 0.0, 0.0, 1.0) for scale in range(SCALES)]
        for scale in range(SCALES):  # bells are symmetric, so that the spectra are real
            spectra = torch.fft.fft2(torch.stack(waves[scale])).real.float()
            self.register_buffer(f"waves_{scale}", spectra, persistent=False)
            self.register_buffer(f"bell_{scale}", torch.fft.fft2(bells[scale]).real.float(), persistent=False)

    @property
    def channels(self) -> int:
        return 1 + SCALES * DIRECTIONS + DIRECTIONS**2

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.reshape(len(images), 1, self.side, self.side)
        spectrum = torch.fft.fft2(nn.functional.pad(pixels, [_MARGIN] * 4))  # black all around
        fine, coarse = self._moduli(spectrum, 0), self._moduli(spectrum, 1)
        twice = self._moduli(fine, 1)  # a modulus is smoother than its wave: finer waves find next to nothing in it
        first = [self._blurred(spectrum, 0), self._blurred(fine, 0), self._blurred(coarse, 1)]
        return torch.cat([*first, self._blurred(twice, 1)], 1)

    def _moduli(self, spectrum: Tensor, scale: int) -> Tensor:
        """Spectra of the moduli of every channel's waves in each direction, at every 2^scale-th pixel."""
        waves = spectrum[:, :, None] * getattr(self, f"waves_{scale}")
        return torch.fft.fft2(torch.fft.ifft2(_folded(waves, 2**scale)).abs()).flatten(1, 2)

    def _blurred(self, spectrum: Tensor, scale: int) -> Tensor:
        """Blurred, at every fourth pixel of the image."""
        blurred = _folded(spectrum * getattr(self, f"bell_{scale}"), _SUBSAMPLED >> scale)
        edge = _MARGIN // _SUBSAMPLED
        return torch.fft.ifft2(blurred).real[..., edge:-edge, edge:-edge]


def _folded(spectrum: Tensor, step: int) -> Tensor:
    """The spectrum of every `step`-th pixel, in both directions."""
    for dimension in (-2, -1):
        if step > 1:
            first, *others = spectrum.chunk(step, dimension)
            spectrum = sum(others, first) / step
    return spectrum


def channels(images: Tensor | np.ndarray) -> np.ndarray:
    """The channels of many images, set upright first, in half precision: (records, 3969)."""
    transform, pixels = Scattering(), torch.as_tensor(images)
    found = np.empty((len(pixels), transform.channels * PLACES), np.float16)
    with torch.no_grad():
        for start in range(0, len(pixels), _AT_ONCE):
            found[start : start + _AT_ONCE] = transform(upright(pixels[start : start + _AT_ONCE])).flatten(1).numpy()
    return found


def features(images: Tensor | np.ndarray, keep: Path | None = None) -> Tensor:
    """One row of unit length per image; kept in the directory `keep`, if there is one, for the next time.

    What is kept there is as private as the images. It is in half precision, and so is what is returned, within single.
    """
    if keep is None:
        return torch.as_tensor(computed(images)).float()
    digest = hashlib.sha256(np.ascontiguousarray(images).tobytes() + VERSION.encode()).hexdigest()[:16]
    path = keep / f"scattering-{digest}.npy"
    if not path.is_file():
        keep.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:
            np.save(file, computed(images))
        unfinished.rename(path)
    return torch.as_tensor(np.load(path)).float()


def computed(images: Tensor | np.ndarray) -> np.ndarray:
    rows = np.empty((len(images), FEATURES), np.float16)
    for start in range(0, len(images), _ROWS):
        rows[start : start + _ROWS] = normalised(channels(images[start : start + _ROWS]))
    return rows


def normalised(found: np.ndarray) -> Tensor:
    """Channels grouped, whitened by what is public, and brought to unit length: (records, FEATURES)."""
    mean, whitening = public_moments()
    return nn.functional.normalize(torch.matmul(whitening, grouped(found) - mean).flatten(1))


def grouped(found: np.ndarray) -> Tensor:
    """Each group of channels of a record less its own mean and divided by its own deviation: (records, 81, 49)."""
    groups = torch.as_tensor(np.asarray(found, np.float32)).unflatten(1, (GROUPS, -1))
    groups = groups - groups.mean(2, keepdim=True)
    return (groups / (groups.std(2, keepdim=True) + LEAST_DEVIATION)).unflatten(2, (-1, PLACES)).flatten(1, 2)


@cache
def public_moments() -> tuple[Tensor, Tensor]:
    """What strokes have in common: their mean, and the matrix that turns 81 channels into `KEPT` uncorrelated ones.

    Those of most variance are kept, and small variances are not blown up: `RIDGE`, as a share of the mean one, is added.
    """
    rows = grouped(channels(strokes(STROKES)))
    mean = rows.mean(0)
    centred = (rows - mean).double()
    covariance = torch.einsum("rcp,rdp->cd", centred, centred)
    variances, directions = torch.linalg.eigh(covariance / covariance.diagonal().mean())
    return mean, (directions * (variances.clamp(min=0) + RIDGE).rsqrt()).T[-KEPT:].float()
