"""Random allocation: the law of Y = mean of k independent V = exp(μt − μ²/2).

A unit falls into one of k bins with equal chance; against its absence the k noisy sums have density ratio
Y = (V₁ + … + V_k)/k. This pair and its mirror image dominate under add-remove, adaptively (Chua et al. 2412.16802;
Feldman and Shenfeld 2502.08202). Each V is spread or contracted, keeping its mean; Y is linear in each, so the order
carries over to Y, and from there to all that Y is composed with.

Small σ gives V a heavy tail, too long for a lattice. So V is cut: values below the cut are summed by FFT on a lattice,
and the few above it (n of them with chance C(k, n)·pⁿ(1 − p)^(k−n), p small) are added one by one on growing cells.
"""

import math
from collections.abc import Iterator

import numpy as np
from scipy.special import ndtri

from apportion.accounting.loss_distribution.few_bins import few_bins_law
from apportion.accounting.loss_distribution.laws import Tabulated, deviation
from apportion.accounting.loss_distribution.slopes import Array
from apportion.accounting.loss_distribution.sums import Chernoff, LatticeSums, gathered, pairwise
from apportion.accounting.loss_distribution.values import ValueGrid, quantile, value_at

# A longer lattice takes seconds; the caller has another route then.
MAX_LENGTH = 1 << 20
# Expected number of values above the cut, when there is one.
_EXPECTED_LARGE = 0.05
# Points on which the lattice sum is kept when large values are added to it.
_COARSE_POINTS = 192
# Beyond this one value decides alone, and its range is beyond any grid.
_MOST_MU = 8.0
# Up to here sums by pairs are affordable.
_FEW_BINS = 64
# Nodes of the lattice up to the cut, when all values together may be small.
_MAX_LATTICE = 1 << 17


def allocation_law(mu: float, bins: int, fineness: float, tail: float, upper: bool) -> Tabulated | None:
    """The law of Y from above or from below, or None if the lattice would be too long.

    Guarantees: with `missing` (about `tail`) added to δ, δ of the table bounds δ of the allocation from above; and from
    below δ of the other table does.
    """
    if mu > _MOST_MU:
        return None
    if _too_small_together(mu, bins, tail):
        return few_bins_law(mu, bins, fineness, tail, upper)
    grid = _grid(mu, bins, fineness, tail)
    if grid is None:
        return None
    infinite = lost = 0.0
    if upper:
        weights, infinite, lost = grid.spread()
    else:
        weights = grid.contract()
    bulk, large = weights[: len(grid.lattice)], weights[len(grid.lattice) :]
    most = _most_large(bins, float(large.sum()), tail / 8)
    x = grid.d * grid.lattice
    if not np.any(bulk * x):
        return None
    window = Chernoff.of(x, bulk, max(bins - most, 1), bins, math.log(8 / tail))
    sums = LatticeSums(grid.lattice, bulk, grid.d, window, bins)
    if sums.length > MAX_LENGTH:
        return None
    # Outside the window, under P, lies the lattice sum itself or a large value beside it: twice two ends. Beyond `most`
    # large values, as much again at most. Five times tail/8 is less than tail.
    x, masses = _mixed(sums, grid.tail, large, bins, most, _cell(mu, fineness), upper)
    masses = np.where(x >= 0, masses * (1 + x / bins), masses)
    return Tabulated(np.maximum(x / bins, -1.0), masses, infinite + bins * lost + tail)


def _smallest(mu: float, bins: int, tail: float) -> float:
    """All values together are below this with chance at most `tail`."""
    return 1 + value_at(mu, float(ndtri(tail ** (1 / bins))))


def _too_small_together(mu: float, bins: int, tail: float) -> bool:
    """With few bins and little noise no lattice reaches from the smallest sums to the cut."""
    cut = 1 + value_at(mu, quantile(min(_EXPECTED_LARGE / bins, 0.4)))
    return mu > 0.5 and bins <= _FEW_BINS and _smallest(mu, bins, tail) * _MAX_LATTICE < cut


def _cell(mu: float, fineness: float) -> float:
    return min(1 / 64, fineness * mu)


def _grid(mu: float, bins: int, fineness: float, tail: float) -> ValueGrid | None:
    top = value_at(mu, mu + quantile(tail / 8))
    bottom = value_at(mu, -quantile(tail / (8 * bins)))
    cut = top
    if top > 6 * math.sqrt(bins) * deviation(mu):
        cut = min(max(value_at(mu, quantile(min(_EXPECTED_LARGE / bins, 0.4))), deviation(mu)), top)
    # Spreading V adds at most d to its variance, which may be large: the lattice need not resolve more than that.
    variance = _variance_below(mu, cut)
    d = max(fineness * deviation(mu), fineness**2 * variance)
    # All values may be small together; those below the lowest node seem to be zero.
    d = min(d, max(_smallest(mu, bins, tail), (1 + cut) / _MAX_LATTICE), 0.25)
    d = 1 / math.ceil(1 / d)  # zero is a node, so that no V is moved below it
    if (cut - bottom) / d > MAX_LENGTH:
        return None
    return ValueGrid.of(mu, d, bottom, cut, top, _cell(mu, fineness))


def _variance_below(mu: float, cut: float) -> float:
    """E[V²; V ≤ 1 + cut], about; used for the choice of a step only."""
    t = math.log1p(cut) / mu + mu / 2
    return math.exp(min(mu * mu, 300.0)) * 0.5 * math.erfc((2 * mu - t) / math.sqrt(2)) if mu > 0.5 else 0.0


def _most_large(bins: int, chance: float, tail: float) -> int:
    """How many values above the cut to allow for: more have mass at most `tail` under P.

    Under P one bin may be large for certain, so m or more among the others must be unlikely: at most (kp)^m/m!.
    """
    if chance == 0:
        return 0
    most, bound = 0, 1.0
    while bound > tail and most < bins:
        most += 1
        bound *= bins * chance / most
    return most


def _mixed(
    sums: LatticeSums, tail: Array, large: Array, bins: int, most: int, cell: float, upper: bool
) -> tuple[Array, Array]:
    """Σ(V − 1) over all bins: the mixture over how many of them are above the cut."""
    x, masses = sums.of(bins, upper)
    if not most:
        return x, masses
    parts = [(x, masses), *_with_large(sums, (tail, large), bins, most, cell, upper)]
    everything = np.concatenate([x for x, _ in parts]), np.concatenate([masses for _, masses in parts])
    return gathered(*everything, _nodes(x, float(everything[0].max()), sums.d, cell / 4, upper), upper)


def _with_large(
    sums: LatticeSums, single: tuple[Array, Array], bins: int, most: int, cell: float, upper: bool
) -> Iterator[tuple[Array, Array]]:
    """For n = 1, …: sums in which exactly n values are above the cut; two or more are rare and may be coarse."""
    coarse = _regathered(single, 4 * cell, upper)
    some = single
    for n in range(1, most + 1):
        if n > 1:
            some = _regathered(pairwise(*(coarse if n == 2 else some), *coarse), 4 * cell, upper)
        x, masses = sums.of(bins - n, upper) if n < bins else (np.zeros(1), np.ones(1))
        if len(x) > _COARSE_POINTS:
            x, masses = gathered(x, masses, np.linspace(x[0], x[-1], _COARSE_POINTS), upper)
        yield pairwise(x, masses * float(math.comb(bins, n)), *some)


def _regathered(law: tuple[Array, Array], cell: float, upper: bool) -> tuple[Array, Array]:
    return gathered(*law, _growing(float(law[0].min()), float(law[0].max()), cell), upper)


def _growing(low: float, high: float, cell: float) -> Array:
    """Nodes from `low` to at least `high`, each cell the part `cell` of its value 1 + x."""
    count = max(math.ceil(math.log((1 + high) / (1 + low)) / math.log1p(cell)), 1)
    nodes = np.expm1(math.log1p(low) + math.log1p(cell) * np.arange(count + 1))
    nodes[0], nodes[-1] = low, max(float(nodes[-1]), high)
    return np.asarray(nodes)


def _nodes(x: Array, high: float, d: float, cell: float, upper: bool) -> Array:
    """The lattice x, and growing cells from its end to `high`; from below shifted, so that lattice points are inside."""
    lattice = x if upper else np.append(x - d / 2, x[-1] + d / 2)
    if high <= lattice[-1]:
        return np.asarray(lattice)
    offset = float(1 - lattice[0])  # cells grow with the distance from the lowest sum
    beyond = _growing(float(lattice[-1]) + offset, high + offset, cell) - offset
    beyond[-1] = max(float(beyond[-1]), high)
    return np.append(lattice, beyond[1:])
