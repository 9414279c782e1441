"""The Rényi divergence of one partition epoch (random allocation), in the worse of both directions."""

from functools import lru_cache

import numpy as np

from apportion.accounting.renyi.allocation_add import log_reciprocal_moments, log_reciprocal_moments_cheap
from apportion.accounting.renyi.allocation_remove import fits_linear, log_moments

# As for the sampled Gaussian: far above rounding and quadrature error.
ROUNDING_UP = 1 + 1e-10

# Moments are computed up to one of these orders; the logarithmic recursion is too slow for the last two.
_LARGEST_ORDERS = (40, 72, 136, 264, 520)
_ALWAYS_AFFORDABLE = 136


def divergences(sigma: float, batches: int, orders: np.ndarray) -> np.ndarray:
    """D_α for each order α > 1, from above; never more than the α/(2σ²) of one release.

    Guarantees: the pair (uniform mixture of N(eᵢ, σ²I), N(0, σ²I)) dominates the epoch under add-remove and zero-out
    (Feldman–Shenfeld 2025; Chua et al. 2024; Dong et al. 2025). (α − 1)D_α is convex in α and 0 at α = 1, in both
    directions, so between integers its chord is an upper bound. Orders too large for the recursion are charged α/(2σ²).
    """
    plain = orders / (2 * sigma * sigma)
    reach = max(a for a in _LARGEST_ORDERS if a <= _ALWAYS_AFFORDABLE or fits_linear(sigma, a))
    wanted = np.max(orders, where=orders <= reach, initial=1.0)
    largest = min(a for a in _LARGEST_ORDERS if a >= wanted)
    logs = _log_moments_of_both_directions(sigma, batches, largest)
    chord = np.interp(orders, np.arange(1.0, largest + 1), logs, right=np.inf) / (orders - 1)
    return np.asarray(np.minimum(chord * ROUNDING_UP, plain))


@lru_cache(maxsize=4096)
def _log_moments_of_both_directions(sigma: float, batches: int, largest: int) -> np.ndarray:
    """(a − 1)·D_a for a = 1 … `largest`: the larger of ln E[Y^a] (remove) and ln E[Y^(1−a)] (add).

    The cheap bound on the second settles all orders above about 2σ² ln k, where it lies below the first. That the
    first is always the larger is observed, not proved, so the rest is integrated and compared.
    """
    removed = log_moments(sigma, batches, largest)[1:]
    s = np.arange(0.0, largest)
    added = log_reciprocal_moments_cheap(sigma, batches, s)
    open_orders = np.flatnonzero(added > removed)
    open_orders = open_orders[open_orders > 0]
    if len(open_orders):
        integrated = log_reciprocal_moments(sigma, batches, s[open_orders])
        if integrated is not None:
            added[open_orders] = np.minimum(added[open_orders], integrated)
    return np.asarray(np.maximum(removed, added))
