"""A law of Y = dP/dQ, put on a logarithmic grid from above (`spread`) or from below (`contract`).

Everything an adversary can gain is a value of H(g) = E_Q(Y − g)₊, convex in g: δ_remove(ε) = H(e^ε), and δ_add(ε) =
E_Q(1 − e^ε·Y)₊ is the same on the other side of g = 1. A law on a grid is a piecewise linear H. Chords of H lie above
it: that is `spread`, each Y moved to its two neighbours keeping its mean (Doroshenko et al. 2022 call it connecting the
dots). Lines that touch H lie below it: that is `contract`. Both orders survive multiplication by an independent factor,
because Y ↦ E f(Y·Z) is convex when f is, so they survive composition (Shaked and Shanthikumar, Stochastic Orders, 3.A).

The grid runs over s = ln g. For s ≥ 0 H itself is used ("calls"), for s ≤ 0 the mirror image E_Q(1 − Y/g)₊ ("puts"):
both shrink to nothing outwards, so that far tails keep their relative precision.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from apportion.accounting.loss_distribution.slopes import (
    LOGARITHMIC,
    Array,
    Sides,
    below_tangents,
    masses,
    masses_of_hull,
)


class Law(Protocol):
    """What a factor must tell. Arguments of `calls` and `puts` are logarithms, element by element."""

    @property
    def missing(self) -> float:
        """Mass, under P and under Q, that `calls` and `puts` do not show."""

    def calls(self, touch: Array, at: Array) -> Array:
        """The value at e^at of the line touching H at e^touch: P(Y > e^touch) − e^at·Q(Y > e^touch); touch ≥ 0."""

    def puts(self, touch: Array, at: Array) -> Array:
        """The mirror image: Q(Y < e^touch) − e^−at·P(Y < e^touch); touch ≤ 0."""

    def support(self, tail: float) -> tuple[float, float]:
        """(low, high) with P(Y > e^high) ≤ tail and Q(Y < e^low) ≤ tail."""


@dataclass(frozen=True, slots=True)
class Atoms:
    """Masses at s = step·(first + i): under P for s ≥ 0, under Q for s ≤ 0.

    `infinite` is mass under P where Y = ∞, `zero` is mass under Q where Y = 0.
    """

    step: float
    first: int
    masses: Array
    infinite: float = 0.0
    zero: float = 0.0

    @property
    def last(self) -> int:
        return self.first + len(self.masses) - 1

    def mirrored(self) -> "Atoms":
        """The pair (Q, P): what δ_remove is to that one, δ_add is to this one."""
        return replace(self, first=-self.last, masses=self.masses[::-1], infinite=self.zero, zero=self.infinite)


def spread(law: Law, step: float, low: float, high: float) -> Atoms:
    """Each Y goes to its two neighbours on the grid, keeping its mean; beyond the ends, to the end and to 0 or ∞.

    Guarantees: δ_remove and δ_add of the atoms are upper bounds, with an error of second order in `step`.
    """
    right, left = _nodes(step, high), _nodes(step, -low)
    sides = Sides(right, law.calls(right, right), left, law.puts(-left, -left))
    weights = np.maximum(masses(sides, LOGARITHMIC), 0.0)  # rounding may leave −1e-16; more mass is the safe side
    infinite, zero = float(sides.calls[-1]) + law.missing, float(sides.puts[-1]) + law.missing
    return Atoms(step, 1 - len(left), weights, max(infinite, 0.0), max(zero, 0.0))


def contract(law: Law, step: float, low: float, high: float) -> Atoms:
    """The law on the grid under the lines that touch H in the middle of each cell.

    Guarantees: δ_remove and δ_add of the atoms are lower bounds, with an error of second order in `step`. What the law
    misses is left out here, which only lowers them.
    """
    right, left = _nodes(step, high), _nodes(step, -low)
    calls = below_tangents(right, law.calls)
    puts = below_tangents(left, lambda touch, at: law.puts(-touch, -at))
    weights = masses_of_hull(Sides(right, calls, left, puts), LOGARITHMIC)
    return Atoms(step, 1 - len(left), weights)


def _nodes(step: float, distance: float) -> Array:
    """Distances from s = 0, at least one cell."""
    return step * np.arange(max(int(np.ceil(distance / step)), 1) + 1)
