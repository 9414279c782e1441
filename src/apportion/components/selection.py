"""Choosing a configuration privately: the coins, the scores and the choice. The plan is `apportion.selection_plan`.

What is random here decides who wins, so all of it comes from a secure stream: into which part each record falls, how many
runs there are and of which candidates, the noise of a score, and the draw of the exponential mechanism.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from apportion import _checks
from apportion.accounting.renyi.selection import log_expected_runs
from apportion.components.release import WholeNormals, rounded_normals
from apportion.errors import InvalidArgument, Unsolvable
from apportion.events import PoissonLaw, TruncatedNegativeBinomial
from apportion.randomness import RandomStream
from apportion.selection_plan import RepeatRuns, SelectionPlan

Law = TruncatedNegativeBinomial | PoissonLaw
SCORED = -1  # the part on which candidates are compared
_MOST_RUNS = 10_000_000  # a law that wants more is one that nobody can run


def draw_parts(
    records: int, parts: int, score_share: float, stream: RandomStream, coins: RandomStream
) -> NDArray[np.int64]:
    """Into which part each record falls: `SCORED` with chance `score_share`, else one of 0 … parts − 1, uniformly.

    Two streams, so that a record's part is made of its own random words only: one record more moves no other.

    Guarantees: each record's part is drawn independently of the other records and of its own content, so that adding,
    removing, zeroing or replacing a record touches one part only (`DisjointParts`).
    """
    drawn = stream.below(parts, records)
    drawn[coins.coins(score_share, records)] = SCORED
    return drawn


def draw_candidates(plan: SelectionPlan, stream: RandomStream) -> tuple[int, ...]:
    """Which candidate each training is of: of repeated runs a secret, random number of random ones; else each once.

    For repeated runs the length is K. Given K the guarantee is false: keep it as private as the data, draw it once.
    """
    if not isinstance(plan.method, RepeatRuns):
        return tuple(range(len(plan.candidates)))
    runs = draw_runs(plan.method.runs, stream)
    return tuple(stream.below(len(plan.candidates), runs).tolist())


def draw_runs(law: Law, stream: RandomStream) -> int:
    """K, by inverting the distribution function at a uniform number of 64 bits; its law is off by at most 1e-15."""
    return quantile(law, int(stream.words(1)[0]) / 2.0**64)


def probabilities(law: Law) -> Iterator[tuple[int, float]]:
    """(n, Pr[K = n]) for growing n, until a probability is too small for float64 to tell the sum from 1."""
    if isinstance(law, PoissonLaw):
        probability, n = math.exp(-law.mean), 0
    else:
        probability, n = _first_probability(law), 1
    if probability < 1e-290:
        raise InvalidArgument(f"{law} asks for too many runs: its smallest number is too unlikely for floating point")
    while probability > 1e-18 or n <= most_likely(law):
        if n > _MOST_RUNS:
            raise InvalidArgument(f"{law} asks for more than {_MOST_RUNS:,} runs")
        yield n, probability
        n += 1
        if isinstance(law, PoissonLaw):
            probability *= law.mean / n
        else:
            probability *= (1 - law.gamma) * (n - 1 + law.eta) / n


def most_likely(law: Law) -> float:
    """No n beyond this is likelier than all before it."""
    return law.mean if isinstance(law, PoissonLaw) else max(1.0, (law.eta - 1) / law.gamma)


def _first_probability(law: TruncatedNegativeBinomial) -> float:
    """Pr[K = 1] = (1 − γ)η/(γ^(−η) − 1), and its limit (1 − γ)/ln(1/γ) for η = 0."""
    spread = -law.eta * math.log(law.gamma)
    if spread > 700:
        return 0.0
    shape = 1 / -math.log(law.gamma) if abs(spread) < 1e-12 else law.eta / math.expm1(spread)
    return (1 - law.gamma) * shape


def quantile(law: Law, probability: float) -> int:
    """The least n with Pr[K ≤ n] > `probability`; the last n that float64 can tell, where there is none."""
    cumulative, runs = 0.0, 0
    for runs, mass in probabilities(law):  # noqa: B007  the last one is the answer
        cumulative += mass
        if cumulative > probability:
            break
    return runs


def expected_runs(law: Law) -> float:
    return law.mean if isinstance(law, PoissonLaw) else math.exp(log_expected_runs(law))


def law_of_mean(mean: float, eta: float) -> TruncatedNegativeBinomial:
    """The truncated negative binomial of shape `eta` whose mean is `mean` (more than 1)."""
    if _checks.number("mean_runs", mean) <= 1:
        raise InvalidArgument(f"mean_runs must be greater than 1: at least one run takes place; got {mean!r}")
    low, high = -60.0, -1e-9  # ln γ; the mean falls as γ grows
    for _ in range(200):
        middle = (low + high) / 2
        trial = TruncatedNegativeBinomial(eta=eta, gamma=math.exp(middle))
        low, high = (middle, high) if log_expected_runs(trial) > math.log(mean) else (low, middle)
    found = TruncatedNegativeBinomial(eta=eta, gamma=math.exp(high))
    if abs(log_expected_runs(found) - math.log(mean)) > 1e-6:
        raise Unsolvable(f"no truncated negative binomial law with eta = {eta:g} has the mean {mean:g}")
    return found


def noisy_counts(
    right: int, wrong: int, sigma: float, stream: RandomStream, normals: WholeNormals = rounded_normals
) -> tuple[int, int]:
    """Both counts with rounded N(0, σ²) each.

    Guarantees: one record moves one count by one, and replacing it may move both: `GaussianRelease` with
    `replace_one=√2`, the score inside the event of a repeated run.
    """
    noise = normals(2, _checks.positive("sigma", sigma), stream)
    return right + int(noise[0]), wrong + int(noise[1])


def best(scores: Sequence[tuple[int, int]]) -> int:
    """The run with the largest right − wrong; of equals the first, which is as good as any: runs are exchangeable."""
    return max(range(len(scores)), key=lambda run: (scores[run][0] - scores[run][1], -run))


def exponential_mechanism(errors: Sequence[int], epsilon: float, stream: RandomStream) -> int:
    """Candidate i with probability exactly proportional to exp(−ε zᵢ/2), zᵢ its number of errors.

    Guarantees: if one unit changes each zᵢ by at most 1, `ExponentialMechanism(epsilon=ε)`. No floating point is
    involved: a candidate is proposed uniformly and kept with probability exp(−ε(zᵢ − min z)/2), drawn from coins.
    """
    exponent = Fraction(_checks.positive("epsilon", epsilon)) / 2
    fewest = min(errors)
    while True:
        proposed = int(stream.below(len(errors), 1)[0])
        if _happens(exponent * (errors[proposed] - fewest), stream):
            return proposed


def _happens(exponent: Fraction, stream: RandomStream) -> bool:
    """True with probability exp(−exponent), exactly (Canonne–Kamath–Steinke 2020, Algorithm 1)."""
    for _ in range(math.floor(exponent)):
        if not _happens_within_one(Fraction(1), stream):
            return False
    return _happens_within_one(exponent - math.floor(exponent), stream)


def _happens_within_one(exponent: Fraction, stream: RandomStream) -> bool:
    """For exponents in [0, 1]: how many coins of exponent/1, exponent/2, … come up before the first that does not."""
    count = 1
    while _coin(exponent / count, stream):
        count += 1
    return count % 2 == 1


def _coin(probability: Fraction, stream: RandomStream) -> bool:
    """True with this rational probability, exactly: a uniform number is drawn 64 bits at a time until it is decided."""
    rest = probability
    while True:
        rest *= 1 << 64
        whole = math.floor(rest)
        drawn = int(stream.words(1)[0])
        if drawn != whole:
            return drawn < whole
        rest -= whole
        if rest == 0:
            return False
