"""Many factors multiplied: FFTs under a tilt, with windows and rounding accounted for.

ln Y adds up over independent factors. δ_remove(ε) sits far out in the tail of that sum, where a plain FFT has only
rounding errors. So masses are multiplied by e^(λs) and normalised before they are transformed (λ = 0 would be a pass
under Q, λ = 1 one under P): with λ the order whose Rényi bound is best, the tilted sum is centred near ε, and errors of
a given size there are errors relative to the Rényi bound on δ. The other direction is the same for mirrored atoms.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import fft

from apportion.accounting.loss_distribution.discretise import Atoms
from apportion.accounting.loss_distribution.fourier import EPS, dot, product, rounding
from apportion.accounting.loss_distribution.profile import Profile, log_hockey_constant
from apportion.accounting.loss_distribution.slopes import Array

MAX_LENGTH = 1 << 21
# Longer passes are not kept for the next query.
_MAX_KEPT = 1 << 17
_ORDER_RATIO = 1.2
_MAX_EXPONENT = 500.0
# Chernoff shifts tried, in standard deviations; √(2·ln 1e7) = 5.7 is best for a Gaussian.
_SHIFTS = np.array([0.03, 0.1, 0.3, 0.6, 1.0, 1.5, 2.2, 3.2, 4.2, 5.0, 5.7, 6.5, 8.0])


# The same where one factor may make the whole sum, in units of its largest value.
_SHIFTS_OF_ONE = np.array([2.0, 5.0, 9.0, 14.0, 20.0, 30.0, 50.0])


class Composition:
    """The product of `atoms[f]`, each `times[f]` times over, in one direction."""

    def __init__(self, atoms: Sequence[Atoms], times: Sequence[int]) -> None:
        self.step = atoms[0].step
        self.counts = tuple(times)
        self.times = np.array(times, dtype=float)
        self.first, self.last = min(a.first for a in atoms), max(a.last for a in atoms)
        self.points = self.step * np.arange(self.first, self.last + 1)
        self.rows = np.zeros((len(atoms), len(self.points)))
        for row, a in zip(self.rows, atoms, strict=True):
            row[a.first - self.first : a.last - self.first + 1] = a.masses
        self.infinite = float(self.times @ np.array([a.infinite for a in atoms]))  # union bound
        # Orders between which no e^(λs) overflows; that some vanish is harmless.
        self.lowest, self.highest = _MAX_EXPONENT / self.points[0], 1 + _MAX_EXPONENT / self.points[-1]
        self.spread = self._moments(1.0)[1]
        self._profiles: dict[tuple[float, float], Profile | None] = {}

    def cumulants(self, orders: Array) -> Array:
        """Σ times·ln E_Q[Y^λ], of the finite part."""
        return np.asarray(np.log(dot(self._tilts(orders[:, None]), self.rows.T)) @ self.times)

    def order_for(self, delta: float) -> float:
        """The order λ > 1 at which the Rényi bound on ε at `delta` is about smallest. Any order is valid."""
        return self._best_order(lambda orders, logs: (logs - math.log(delta)) / (orders - 1))

    def order_at(self, epsilon: float) -> float:
        """The order λ > 1 at which the Rényi bound on δ at `epsilon` is about smallest. Any order is valid."""
        return self._best_order(lambda orders, logs: logs - (orders - 1) * epsilon)

    def _best_order(self, bound: Callable[[Array, Array], Array]) -> float:
        high = min(60 / self.spread, (self.highest - 1) / 2)
        low, best = high / 3000, math.nan
        for count in (12, 7):
            orders = 1 + np.geomspace(low, high, count)
            index = int(np.argmin(bound(orders, self.cumulants(orders) + log_hockey_constant(orders))))
            best = float(orders[index])
            low, high = float(orders[max(index - 1, 0)]) - 1, float(orders[min(index + 1, count - 1)]) - 1
        # One of a fixed series, so that queries close to each other share a pass, whatever was asked before.
        return 1 + _ORDER_RATIO ** round(math.log(best - 1, _ORDER_RATIO))

    def lower_order(self, order: float) -> float:
        """About half as far from one, in the same series."""
        return 1 + (order - 1) / _ORDER_RATIO**4

    def profile(self, order: float, upper: bool, outside: float = 1e-7) -> Profile | None:
        """δ(ε) from the pass at `order`, as an upper or a lower bound; None if the window would be too long.

        `outside` is the mass of the tilted sum outside the window, on each side; it is charged, relative to a Rényi
        bound on δ.
        """
        if (order, outside) not in self._profiles:
            found = self._pass(order, upper, outside)
            if found is not None and len(found.points) > _MAX_KEPT:
                return found
            self._profiles[order, outside] = found
        return self._profiles[order, outside]

    def _pass(self, order: float, upper: bool, outside: float) -> Profile | None:
        weights = self.rows * self._tilts(np.array(order))
        moments = weights.sum(axis=1)
        cumulant = float(np.log(moments) @ self.times)
        low, high = self._window(order, cumulant, -math.log(outside))
        length = fft.next_fast_len(high - low + 1, real=True)
        if length > MAX_LENGTH:
            return None
        characteristic, error = product(weights / moments[:, None], self.counts, length)
        norm = math.sqrt(2 * float(np.sum(np.abs(characteristic) ** 2)))
        total = sum(self.counts)
        # Position i holds every sum that is i + first·total modulo the length; the window is to start at `low`.
        shift = (low - self.first * total) % length
        return Profile(
            first=self.step * low,
            step=self.step,
            masses=np.maximum(np.roll(fft.irfft(characteristic, length), -shift), 0.0),
            order=order,
            log_scale=cumulant + (1 if upper else -1) * (8 + len(self.points)) * EPS * total,  # rounding of the masses
            slack=2 * outside + error + rounding(length) * norm,
            infinite=self.infinite,
            upper=upper,
        )

    def _tilts(self, orders: Array) -> Array:
        """e^(λs) against masses that are under P for s ≥ 0."""
        return np.asarray(np.exp(orders * self.points - np.maximum(self.points, 0.0)))

    def _moments(self, order: float) -> tuple[float, float]:
        """Mean and standard deviation of the tilted sum; the latter never quite zero."""
        weights = self.rows * self._tilts(np.array(order))
        weights /= weights.sum(axis=1)[:, None]
        means, squares = dot(weights, np.stack([self.points, self.points**2], axis=1)).T
        variances = np.maximum(squares - means**2, 0.0)
        return float(means @ self.times), max(math.sqrt(float(variances @ self.times)), self.step / 100)

    def _window(self, order: float, cumulant: float, log_outside: float) -> tuple[int, int]:
        """Indices beyond each of which at most e^−log_outside of the tilted sum lies (Chernoff)."""
        shifts = _SHIFTS / self._moments(order)[1]
        up = np.minimum(np.append(shifts, _SHIFTS_OF_ONE / self.points[-1]), self.highest - order)
        down = np.minimum(np.append(shifts, _SHIFTS_OF_ONE / -self.points[0]), order - self.lowest)
        high = float(np.min((self.cumulants(order + up) - cumulant + log_outside) / up))
        low = -float(np.min((self.cumulants(order - down) - cumulant + log_outside) / down))
        total = sum(self.counts)
        return (
            max(math.floor(low / self.step), self.first * total),
            min(math.ceil(high / self.step), self.last * total),
        )
