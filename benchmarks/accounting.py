"""How fast the loss distribution is, and how tight, against Google's `dp-accounting`.

    python benchmarks/accounting.py [--rounds 5]

Ours and theirs take turns in one run, so that a busy machine slows both; what is kept is the median over rounds of the
ratio of CPU times. Caches are emptied before each of our queries. Results go to benchmarks/results/accounting.json.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import dp_accounting
from dp_accounting.pld import PLDAccountant

from apportion.accounting.accountant import Interval
from apportion.accounting.loss_distribution import LossDistribution
from apportion.accounting.loss_distribution.routes import composed
from apportion.events import Composed, Event, PartitionEpoch, PoissonEpoch, Repeated

DELTA = 1e-5
RESULTS = Path(__file__).parent / "results" / "accounting.json"


@dataclass(frozen=True)
class Comparison:
    name: str
    ours_seconds: float
    google_seconds: float
    ratio: float  # Google's time over ours
    required: float
    ours_upper: float
    ours_lower: float | None
    google: float
    upper_is_at_most: float
    met: bool


def ours(event: Event, lower_bound: bool = True) -> Interval:
    composed.cache_clear()
    accountant = LossDistribution("add-remove", lower_bound=lower_bound)
    return accountant.epsilon(accountant.cost(event), DELTA)


def google(sigmas: Sequence[float], rate: float, steps: int, interval: float = 1e-4) -> float:
    accountant = PLDAccountant(value_discretization_interval=interval)
    for sigma in sigmas:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)), steps)
    return float(accountant.get_epsilon(DELTA))


def poisson(sigmas: Sequence[float], steps: int, rate: float = 0.01) -> Event:
    return Composed(events=tuple(PoissonEpoch(sigma=sigma, rate=rate, steps=steps) for sigma in sigmas))


def ours_calibrated(epsilon: float, rate: float, steps: int) -> Interval:
    """σ with ε at most `epsilon` and at least 99.99 % of it, by bisection on the upper bound."""
    low, high = 0.3, 100.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        found = ours(PoissonEpoch(sigma=middle, rate=rate, steps=steps), lower_bound=False).upper
        low, high = (low, middle) if found <= epsilon else (middle, high)
        if 0.9999 * epsilon <= found <= epsilon:
            break
    return Interval(upper=high)


def google_calibrated(epsilon: float, rate: float, steps: int) -> float:
    def event(sigma: float) -> dp_accounting.DpEvent:
        sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(sampled, steps)

    bracket = dp_accounting.ExplicitBracketInterval(0.3, 100.0)
    return float(dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, epsilon, DELTA, bracket, tol=1e-4))


def compare(
    name: str,
    mine: Callable[[], Interval],
    theirs: Callable[[], float],
    required: float,
    rounds: int,
    at_most: float | None = None,
) -> Comparison:
    mine()  # first calls pay for imports and plans
    times, ratios = [], []
    for _ in range(rounds):
        start = time.process_time()
        found = mine()
        middle = time.process_time()
        reference = theirs()
        end = time.process_time()
        times.append((middle - start, end - middle))
        ratios.append((end - middle) / (middle - start))
    limit = reference * (1 + 1e-9) if at_most is None else at_most
    ratio = statistics.median(ratios)
    return Comparison(
        name=name,
        ours_seconds=statistics.median(mine for mine, _ in times),
        google_seconds=statistics.median(theirs for _, theirs in times),
        ratio=ratio,
        required=required,
        ours_upper=found.upper,
        ours_lower=found.lower,
        google=reference,
        upper_is_at_most=limit,
        met=ratio >= required and found.upper <= limit,
    )


def comparisons(rounds: int) -> list[Comparison]:
    decaying = [10 * math.exp(-0.01 * epoch) for epoch in range(71)]
    distinct = [10 * math.exp(-0.001 * epoch) for epoch in range(400)]
    allocation = Repeated(event=PartitionEpoch(sigma=6, batches=100), count=400)

    def google_decaying() -> float:
        return google(decaying, 0.01, 100)

    return [
        compare(
            "71 epochs of 100 Poisson steps, upper bound alone",
            lambda: ours(poisson(decaying, 100), lower_bound=False),
            google_decaying,
            15,
            rounds,
        ),
        compare(
            "71 epochs of 100 Poisson steps, both bounds",
            lambda: ours(poisson(decaying, 100)),
            google_decaying,
            8,
            rounds,
        ),
        compare(
            "partition into 100 bins, 400 epochs, against one Poisson query",
            lambda: ours(allocation),
            lambda: google([6.0], 0.01, 40_000),
            1 / 3,
            rounds,
            at_most=1.2825,
        ),
        compare(
            "400 distinct sigmas over 10,000 Poisson steps, both bounds",
            lambda: ours(poisson(distinct, 25)),
            lambda: google(distinct, 0.01, 25),
            10,
            rounds,
        ),
        compare(
            "calibration of sigma to epsilon 1 over 10,000 Poisson steps",
            lambda: ours_calibrated(1.0, 0.01, 10_000),
            lambda: google_calibrated(1.0, 0.01, 10_000),
            10,
            rounds,
            at_most=math.inf,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    found = comparisons(parser.parse_args().rounds)
    for one in found:
        lower = "" if one.ours_lower is None else f"{one.ours_lower:.5f} … "
        print(
            f"{one.name}\n    {'met' if one.met else 'MISSED'}: {one.ratio:.1f} times faster (required {one.required:.3g})"
        )
        print(f"    ours {one.ours_seconds * 1e3:.1f} ms, {lower}{one.ours_upper:.5f};", end=" ")
        print(f"Google {one.google_seconds * 1e3:.1f} ms, {one.google:.5f}")
    RESULTS.parent.mkdir(exist_ok=True)
    rows = [
        asdict(one) | {"upper_is_at_most": one.upper_is_at_most if one.upper_is_at_most < math.inf else None}
        for one in found
    ]
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
