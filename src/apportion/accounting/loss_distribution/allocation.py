"""Random allocation: the law of Y = mean of k independent V, by one FFT on a linear grid of values.

V = exp(μt − μ²/2), t ~ N(0, 1). A unit falls into one of k bins with equal chance; against its absence the k noisy sums
have density ratio Y = (V₁ + … + V_k)/k. This pair and its mirror image dominate under add-remove, adaptively (Chua et
al. 2412.16802; Feldman and Shenfeld 2502.08202). V is spread or contracted onto v = 1 + d·j keeping its mean; Y is
linear in each V, so the order carries over to Y, and from there to all that Y is composed with.
"""

import math

import numpy as np
from scipy import fft
from scipy.special import ndtr, ndtri

from apportion.accounting.loss_distribution.fourier import EPS, power, rounding
from apportion.accounting.loss_distribution.laws import Tabulated, deviation
from apportion.accounting.loss_distribution.slopes import (
    LINEAR,
    Array,
    Sides,
    below_tangents,
    masses,
    masses_of_hull,
)

# A longer grid of values takes seconds; the caller has another route then.
MAX_LENGTH = 1 << 20
# Cells may grow to this part of their value: far out, one V is known to this relative width.
_RELATIVE_CELL = 1 / 64


def allocation_law(mu: float, bins: int, fineness: float, tail: float, upper: bool) -> Tabulated | None:
    """The law of Y from above or from below, or None if the grid of values would be too long.

    Guarantees: with `missing` (about `tail`) added to δ and `noise` allowed for, δ of the table bounds δ of the
    allocation from above, or from below.
    """
    d = 1 / math.ceil(1 / (fineness * deviation(mu)))  # zero is a node, so that no V is moved below it
    top = math.exp(min(mu * (mu - float(ndtri(tail / 4))) - mu * mu / 2, 700.0))
    bottom = math.exp(mu * float(ndtri(tail / (4 * bins))) - mu * mu / 2)
    if (top - 1) / d > MAX_LENGTH:
        return None
    below, above = _distances(d, bottom, top)
    weights, missing = (_spread if upper else _contract)(mu, bins, d, below, above)
    nodes = np.concatenate([-below[:0:-1], above])
    low, high = _window(nodes * d, weights, bins, math.log(4 / tail))
    first = max(math.floor(low / d), bins * int(nodes[0]))
    last = min(math.ceil(high / d), bins * int(nodes[-1]))
    length = fft.next_fast_len(max(last - first, int(nodes[-1] - nodes[0])) + 1, real=True)
    if length > MAX_LENGTH:
        return None
    return _mean_of_bins(nodes, weights, bins, d, first, length, missing + tail / 2, 0.0 if upper else tail / 2)


def _distances(d: float, bottom: float, top: float) -> tuple[Array, Array]:
    """Nodes below and above v = 1, in units of d: cells of one d at first, then a fixed part of their value."""
    below = np.arange(math.ceil((1 - bottom) / d) + 1)
    end, dense = math.ceil((top - 1) / d), math.ceil(1 / _RELATIVE_CELL)
    above = list(range(min(end, dense) + 1))
    while above[-1] < end:
        above.append(above[-1] + max(1, int(_RELATIVE_CELL * (1 / d + above[-1]))))
    return below, np.array(above)


def _calls(mu: float, touch: Array, at: Array) -> Array:
    """The line touching E(V − v)₊ at `touch`; arguments are v − 1."""
    t = np.log1p(touch) / mu + mu / 2
    return np.asarray(ndtr(mu - t) - (1 + at) * ndtr(-t))


def _puts(mu: float, touch: Array, at: Array) -> Array:
    """The line touching E(v − V)₊ at `touch`; arguments are 1 − v."""
    with np.errstate(divide="ignore"):
        t = np.log1p(-np.minimum(touch, 1.0)) / mu + mu / 2
    return np.asarray((1 - at) * ndtr(t) - ndtr(t - mu))


def _spread(mu: float, bins: int, d: float, below: Array, above: Array) -> tuple[Array, float]:
    """Weights under Q, and the mass under P or Q that the sum of all bins misses by them."""
    right, left = d * above, d * below
    sides = Sides(right, _calls(mu, right, right), left, _puts(mu, left, left))
    weights = np.maximum(masses(sides, LINEAR), 0.0)
    # V above the top goes to the top and to ∞ (P-mass H(top) of the mean); V below the bottom is left out, k times.
    lost = float(ndtr(math.log1p(-left[-1]) / mu + mu / 2)) if left[-1] < 1 else 0.0
    weights[0] = max(weights[0] - lost, 0.0)
    return weights, max(float(sides.calls[-1]), 0.0) + bins * lost


def _contract(mu: float, bins: int, d: float, below: Array, above: Array) -> tuple[Array, float]:
    right, left = d * above, d * below
    calls = below_tangents(right, lambda touch, at: _calls(mu, touch, at))
    puts = below_tangents(left, lambda touch, at: _puts(mu, touch, at))
    return masses_of_hull(Sides(right, calls, left, puts), LINEAR), 0.0


def _window(x: Array, weights: Array, bins: int, log_tail: float) -> tuple[float, float]:
    """Σ(V − 1) lies above `high` with chance at most e^−log_tail under P, below `low` likewise under Q (Chernoff)."""
    spread = math.sqrt(2 * log_tail / (bins * float(weights @ (x * x))))
    tilts = spread * np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5])
    tilts = np.append(tilts, np.array([15.0, 25.0, 40.0]) / x[-1])
    up, down = np.exp(np.outer(np.minimum(tilts, 600 / x[-1]), x)), np.exp(-np.outer(tilts, x - x[0]))
    above = np.log(up @ (weights * (1 + x))) + (bins - 1) * np.log(up @ weights)
    below = bins * (np.log(down @ weights) - tilts * x[0])
    high = np.min((above + log_tail) / np.minimum(tilts, 600 / x[-1]))
    low = np.max(-(below + log_tail) / tilts)
    return float(low), float(high)


def _mean_of_bins(
    nodes: Array, weights: Array, bins: int, d: float, first: int, length: int, missing: float, folded: float
) -> Tabulated:
    """The k-fold convolution under Q and under P, each used on the side where it is the larger.

    What lies outside the window folds back into it: too much mass inside, which is safe from above and is called noise
    from below; and it is missing outside.
    """
    placed = np.zeros(length)
    placed[nodes % length] = weights
    under_q = fft.rfft(placed)
    placed[nodes % length] = weights * (1 + d * nodes)
    under_p = fft.rfft(placed)
    others = power(under_q, bins - 1) if bins > 1 else np.ones_like(under_q)
    shift = -first % length
    q, p = (np.roll(fft.irfft(side * others, length), shift) for side in (under_q, under_p))
    error = rounding(length) + 4 * EPS
    rest = (np.abs(under_q) + error) ** max(
        bins - 2, 0
    )  # at most this remains when one factor is replaced by its error
    noise = bins * error * math.sqrt(2 * float(np.sum(rest * rest))) + folded
    x = d * np.arange(first, first + length) / bins
    keep = x > -1 - d / (2 * bins)
    chosen = np.maximum(np.where(x >= 0, p, q), 0.0)[keep]
    return Tabulated(np.maximum(x[keep], -1.0), chosen, missing, noise)
