import math

import numpy as np
import pytest
from scipy import integrate

from apportion.accounting.composition import Basic, StrongComposition, StrongCompositionBestSplit
from apportion.accounting.conversions import epsilon_of_mu
from apportion.accounting.renyi import Renyi
from apportion.errors import UnpricedEvent
from apportion.events import (
    Composed,
    DisjointParts,
    ExponentialMechanism,
    GaussianRelease,
    PoissonEpoch,
    PoissonLaw,
    RepeatAndSelect,
    Repeated,
)

PAPER_RUN = Repeated(event=PoissonEpoch(sigma=6.0, rate=0.01, steps=100), count=400)


def strong(sigma: float, rate: float, steps: int, delta: float, delta_of_composition: float) -> float:
    """The formula as the paper writes it, with its inner ε returned as well."""
    inner = math.sqrt(2 * math.log(1.25 * steps * rate / delta)) / sigma
    epsilon = math.log(1 + rate * (math.exp(inner) - 1))
    loss = steps * epsilon * (math.exp(epsilon) - 1)
    return epsilon * math.sqrt(2 * steps * math.log(1 / delta_of_composition)) + loss


def test_strong_composition_gives_the_paper_s_number() -> None:
    found = StrongComposition("add-remove").guarantee(PAPER_RUN, 1e-5)
    assert found.epsilon == pytest.approx(34.280, abs=1e-3)  # the paper prints 34.3
    assert found.epsilon == pytest.approx(strong(6.0, 0.01, 40_000, 1e-5, 1e-10), rel=1e-12)
    assert found.status == "estimate"


def test_the_best_proper_split_of_strong_composition_is_proven_and_tighter() -> None:
    found = StrongCompositionBestSplit("add-remove").guarantee(PAPER_RUN, 1e-5)
    best = min(strong(6.0, 0.01, 40_000, 1e-5 * (1 - x), 1e-5 * x) for x in np.linspace(0.001, 0.999, 999))
    assert best == pytest.approx(29.04, abs=1e-2)
    assert best <= found.epsilon <= best * 1.001
    assert found.status == "proven"


def test_strong_composition_is_refused_where_a_step_reaches_one() -> None:
    with pytest.raises(UnpricedEvent, match="proven below 1 only"):
        StrongComposition("add-remove").guarantee(PoissonEpoch(sigma=1.0, rate=0.01, steps=100), 1e-5)
    release = GaussianRelease(sigma=0.5)
    proper = StrongCompositionBestSplit("add-remove").guarantee(release, 1e-5).epsilon
    assert proper >= epsilon_of_mu(2.0, 1e-5)


def test_the_classical_bound_is_not_trusted_beyond_one() -> None:
    """At σ = .1 the classical ε is below the exact one; the accountant must not go below the exact one."""
    classical = 10 * math.sqrt(2 * math.log(1.25 / 0.05))
    assert classical < epsilon_of_mu(10.0, 0.05)
    assert StrongCompositionBestSplit("add-remove").guarantee(GaussianRelease(sigma=0.1), 0.05).epsilon > classical


def test_basic_composition_shares_delta_equally() -> None:
    event = Composed(events=(GaussianRelease(sigma=2.0), GaussianRelease(sigma=4.0), ExponentialMechanism(epsilon=0.3)))
    expected = epsilon_of_mu(0.5, 5e-6) + epsilon_of_mu(0.25, 5e-6) + 0.3
    assert Basic("add-remove").guarantee(event, 1e-5).epsilon == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("sigma", "rate", "delta"), [(0.7, 0.1, 1e-3), (2.0, 0.01, 1e-5), (1.0, 0.5, 1e-2)])
def test_a_sampled_step_of_basic_composition_is_exact_in_the_worse_direction(
    sigma: float, rate: float, delta: float
) -> None:
    """δ at the stated ε by quadrature of the pair itself: equal when a unit is removed, smaller when one is added."""
    epsilon = Basic("add-remove").guarantee(PoissonEpoch(sigma=sigma, rate=rate, steps=1), delta).epsilon

    x = np.linspace(-12, 12 + 2 / sigma, 400_001)
    y = 1 - rate + rate * np.exp(x / sigma - 1 / (2 * sigma**2))
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    removed = integrate.trapezoid(np.maximum(y - math.exp(epsilon), 0.0) * density, x)
    added = integrate.trapezoid(np.maximum(1 - math.exp(epsilon) * y, 0.0) * density, x)
    assert removed == pytest.approx(delta, rel=1e-4)
    assert added <= delta


def test_a_unit_rarely_sampled_is_covered_by_delta_alone() -> None:
    assert Basic("add-remove").guarantee(PoissonEpoch(sigma=0.3, rate=1e-6, steps=1), 1e-5).epsilon == 0.0


def test_basic_composition_takes_selection_from_renyi() -> None:
    event = RepeatAndSelect(base=GaussianRelease(sigma=3.0), runs=PoissonLaw(mean=5.0))
    assert Basic("zero-out").guarantee(event, 1e-5).epsilon == Renyi("zero-out").guarantee(event, 1e-5).epsilon
    with pytest.raises(UnpricedEvent):
        StrongComposition("zero-out").guarantee(event, 1e-5)


def test_disjoint_parts_share_delta_within_a_part_only() -> None:
    first, second = Repeated(event=GaussianRelease(sigma=3.0), count=4), GaussianRelease(sigma=1.0)
    found = Basic("add-remove").guarantee(DisjointParts(parts=(first, second)), 1e-5).epsilon
    assert found == pytest.approx(max(4 * epsilon_of_mu(1 / 3, 2.5e-6), epsilon_of_mu(1.0, 1e-5)), rel=1e-12)
