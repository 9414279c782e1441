"""Random allocation to few bins with little noise: sums by pairs on a logarithmic grid of values.

Where V runs over many orders of magnitude and few of them are summed, Y can be very small, and no lattice resolves
that. A grid of s = ln v does, and the number of pairs is small because the number of additions is: log₂ k or twice it.
"""

import math

import numpy as np

from apportion.accounting.loss_distribution.discretise import contract, spread
from apportion.accounting.loss_distribution.laws import SampledGaussian, Tabulated
from apportion.accounting.loss_distribution.slopes import Array
from apportion.accounting.loss_distribution.sums import gathered, pairwise

# More nodes than this squared are too many pairs.
_MAX_NODES = 1000


def few_bins_law(mu: float, bins: int, fineness: float, tail: float, upper: bool) -> Tabulated | None:
    """The law of Y, the mean of `bins` independent V, from above or from below.

    Guarantees: as `allocation_law`. V above the top goes to the top and to ∞, below the bottom to the bottom and to 0,
    keeping its mean; sums are gathered on nodes keeping means (from above), or averaged over cells (from below).
    """
    single = SampledGaussian(mu)
    low, high = single.support(tail / 8)
    if high > 600:
        return None
    step = max(fineness * mu / math.sqrt(bins), (high - low) / _MAX_NODES)
    atoms = (spread if upper else contract)(single, step, low, high)
    s = step * np.arange(atoms.first, atoms.last + 1)
    masses = atoms.masses * np.exp(-np.maximum(s, 0.0))  # all under Q from here on
    values, masses = np.append(0.0, np.exp(s)), np.append(atoms.zero, masses)
    values, masses = _sum_of(values, masses, bins, step, upper)
    values /= bins
    return Tabulated(values - 1, np.where(values >= 1, masses * values, masses), atoms.infinite)


def _sum_of(values: Array, masses: Array, count: int, step: float, upper: bool) -> tuple[Array, Array]:
    """The law of the sum of `count` independent values, by doubling."""
    result: tuple[Array, Array] | None = None
    power = values, masses
    while True:
        if count & 1:
            result = power if result is None else _added(result, power, step, upper)
        count >>= 1
        if not count:
            assert result is not None
            return result
        power = _added(power, power, step, upper)


def _added(one: tuple[Array, Array], other: tuple[Array, Array], step: float, upper: bool) -> tuple[Array, Array]:
    values, masses = pairwise(*one, *other)
    smallest, largest = float(values[values > 0].min()), float(values.max())
    count = max(math.ceil(math.log(largest / smallest) / step), 1)
    nodes = np.append(0.0, smallest * np.exp(step * np.arange(count + 1)))
    nodes[1], nodes[-1] = smallest, max(float(nodes[-1]), largest)
    return gathered(values, masses, nodes, upper)
