"""The search for the best Rényi order. Every order gives a valid bound: a coarse search is looser, never wrong."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Curve = Callable[[np.ndarray], np.ndarray]

# From 1 + 2^-10 (ε in the tens of thousands) to 1 + 2^20 (ε of 1e-5); climbed only as far as it can pay.
LADDER = 1 + 2.0 ** np.arange(-10, 21)
_FIRST_RUNG = 16  # orders up to 33 are looked at in any case

# 17 orders over the two octaves around the best rung, then 9 around the best of those: neighbours differ by 2 % of
# α − 1, which costs about 1e-4 of ε.
_REFINEMENTS = (2.0 ** np.linspace(-1, 1, 17), 2.0 ** np.linspace(-1 / 8, 1 / 8, 9))


@dataclass(frozen=True, slots=True)
class Minimum:
    value: float
    order: float


def minimum(divergences: Curve, offset: Curve, weight: Curve = np.ones_like) -> Minimum:
    """The least weight(α)·D(α) + offset(α) over the orders tried. `weight` must not fall with α; nor does D."""
    best, reached = Minimum(math.inf, float(LADDER[0])), 0
    while reached < len(LADDER):
        rung = LADDER[reached : max(reached + 1, _FIRST_RUNG)]
        charged = weight(rung) * divergences(rung)
        best = _better(best, rung, charged + offset(rung))
        reached += len(rung)
        if charged[-1] + np.min(offset(LADDER[reached:]), initial=math.inf) >= best.value:
            break  # no higher order can do better, because D does not fall
    for factors in _REFINEMENTS:
        around = 1 + (best.order - 1) * factors
        fine = np.union1d(around, np.rint(around[around > 1.5]))  # whole orders are exact for partitions
        fine = fine[(fine > 1) & (fine <= LADDER[-1])]
        best = _better(best, fine, weight(fine) * divergences(fine) + offset(fine))
    return best


def _better(best: Minimum, orders: np.ndarray, values: np.ndarray) -> Minimum:
    index = int(np.argmin(values))
    return Minimum(float(values[index]), float(orders[index])) if values[index] < best.value else best
