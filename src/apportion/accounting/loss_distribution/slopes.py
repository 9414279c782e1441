"""From the values of a convex H at the nodes of a grid to the masses of the law it belongs to, and lower hulls.

Both sides of a centre are handled alike, outwards from it, as distances and values that shrink to nothing. On a
logarithmic scale a mass is the change of slope in g = e^s times g (to the right: mass under P; to the left, by
symmetry: under Q); on a linear scale it is the change of slope.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Lines = Callable[[Array, Array], Array]

_HULL_ROUNDS = 200
# A line this close below zero, relatively, is zero: it ends where the law does.
_ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class Scale:
    """Widths of a cell as seen from its inner and its outer node, and the weight of H itself at the centre."""

    from_inner: Callable[[Array], Array]
    from_outer: Callable[[Array], Array]
    centre: float


LOGARITHMIC = Scale(np.expm1, lambda gap: -np.expm1(-gap), 1.0)
LINEAR = Scale(lambda gap: gap, lambda gap: gap, 0.0)


@dataclass(slots=True)
class Sides:
    """H around its centre: distances and values to the right ("calls") and to the left ("puts")."""

    right: Array
    calls: Array
    left: Array
    puts: Array


def masses(sides: Sides, scale: Scale) -> Array:
    """The masses from the leftmost node to the rightmost. Beyond the last nodes H goes on level."""
    right, left = _outwards(sides.right, sides.calls, scale), _outwards(sides.left, sides.puts, scale)
    rise_right = (sides.calls[1] - sides.calls[0]) / scale.from_inner(sides.right[1])
    rise_left = (sides.puts[1] - sides.puts[0]) / scale.from_inner(sides.left[1])
    centre = 1 - scale.centre * sides.calls[0] + rise_right + rise_left
    return np.concatenate([left[::-1], [centre], right])


def _outwards(nodes: Array, values: Array, scale: Scale) -> Array:
    """Masses at the nodes of one side but the centre."""
    gaps, rises = np.diff(nodes), np.diff(values)
    outer = np.append(rises[1:] / scale.from_inner(gaps[1:]), 0.0)
    return np.asarray(outer - rises / scale.from_outer(gaps))


def below_tangents(nodes: Array, lines: Lines) -> Array:
    """At each node the lower of the lines touching H in the cells beside it, so that every chord lies below H.

    Where such a line has fallen to zero inside its cell, everything from that cell outwards is set to zero: still
    convex there, still below.
    """
    touch = (nodes[:-1] + nodes[1:]) / 2
    inner, outer = lines(touch, nodes[:-1]), lines(touch, nodes[1:])
    fallen = np.flatnonzero(outer < -_ROUNDING * np.abs(inner))
    values = np.maximum(np.append(np.minimum(inner, np.append(np.inf, outer[:-1])), 0.0), 0.0)
    if len(fallen):
        values[fallen[0] :] = 0.0
    return np.asarray(values)


def masses_of_hull(sides: Sides, scale: Scale) -> Array:
    """The masses of the largest convex function on the nodes below the given values.

    A node above the chord of its neighbours is not on the hull, so all such nodes may go at once; a centre above its
    chord is lowered to it. Values only fall, so the result is never too large; if it is not convex in time, the lowest
    law of mean one (all mass at the centre) stands in.
    """
    found = np.zeros(len(sides.right) + len(sides.left) - 1)
    centre = len(sides.left) - 1
    kept_right, kept_left = (
        _without_last_bend(sides.right, sides.calls, scale),
        _without_last_bend(sides.left, sides.puts, scale),
    )
    hull = Sides(sides.right[kept_right], sides.calls[kept_right], sides.left[kept_left], sides.puts[kept_left])
    hull.calls[0] = hull.puts[0] = min(hull.calls[0], hull.puts[0])
    for _ in range(_HULL_ROUNDS):
        lowered = _lower_centre(hull, scale)
        weights = masses(hull, scale)
        bad = weights < 0
        middle = len(hull.left) - 1
        bad[[0, middle, -1]] = False
        if not lowered and not bad.any():
            found[centre - kept_left[::-1]] = weights[: middle + 1]
            found[centre + kept_right] = weights[middle:]
            return np.maximum(found, 0.0)
        good_left, good_right = ~bad[middle::-1], ~bad[middle:]
        kept_right, kept_left = kept_right[good_right], kept_left[good_left]
        hull = Sides(hull.right[good_right], hull.calls[good_right], hull.left[good_left], hull.puts[good_left])
    found[centre] = 1.0
    return found


def _without_last_bend(nodes: Array, values: Array, scale: Scale) -> Array:
    """The nodes without those that lie above the straight line to zero at the last one; they would go one by one."""
    falls = values[:-1] / scale.from_outer(nodes[-1] - nodes[:-1])
    return np.append(np.arange(int(np.argmin(falls)) + 1), len(nodes) - 1)


def _lower_centre(hull: Sides, scale: Scale) -> bool:
    """Lower the centre to the chord of its neighbours if it lies above; say whether it did."""
    right, left = 1 / scale.from_inner(hull.right[1]), 1 / scale.from_inner(hull.left[1])
    chord = (1 + hull.calls[1] * right + hull.puts[1] * left) / (scale.centre + right + left)
    if hull.calls[0] <= chord * (1 + 1e-15):
        return False
    hull.calls[0] = hull.puts[0] = chord
    return True
