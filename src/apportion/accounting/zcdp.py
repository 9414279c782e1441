"""Zero-concentrated differential privacy: ρ adds up (Bun and Steinke, 2016)."""

from collections.abc import Mapping
from typing import Any

from apportion.accounting import conversions
from apportion.accounting.accountant import Accountant, Cost, Interval, sum_of_floats
from apportion.accounting.unamplified import releases
from apportion.events import ExponentialMechanism, Leaf


class ZeroConcentrated(Accountant[float]):
    """Prices are ρ. ε is stated by the paper's conversion; the tighter one over Rényi orders stands in the details.

    Guarantees: a Gaussian release of sensitivity μσ is μ²/2-zCDP (Bun–Steinke, Prop. 1.6). The exponential mechanism is
    ε²/8-zCDP (Cesar–Rogers 2021), with ε halved when errors are counts that one unit moves in the same direction.
    """

    name = "zcdp"

    def price(self, leaf: Leaf) -> Cost[float]:
        if isinstance(leaf, ExponentialMechanism):
            reach = exponential_mechanism_range(leaf, self.adjacency)
            return Cost.of(reach * reach / 8)
        found = releases(leaf, self.adjacency)
        if isinstance(found, str):
            raise self.unpriced(leaf, found)
        mu, times = found
        return Cost.of(mu * mu / 2, times)

    def epsilon(self, cost: Cost[float], delta: float) -> Interval:
        return Interval(upper=conversions.epsilon_of_rho_classic(sum_of_floats(cost), delta))

    def details(self, cost: Cost[float], delta: float) -> Mapping[str, Any]:
        rho = sum_of_floats(cost)
        return {"rho": rho, "epsilon_renyi_conversion": conversions.epsilon_of_rho(rho, delta)}

    def rho(self, cost: Cost[float]) -> float:
        return sum_of_floats(cost) if not cost.infinite else float("inf")


def exponential_mechanism_range(leaf: ExponentialMechanism, adjacency: str) -> float:
    """The range of the mechanism's log-probabilities between neighbours: ε, or ε/2 for one-directional counts."""
    return leaf.epsilon / 2 if leaf.counts and adjacency != "replace-one" else leaf.epsilon
