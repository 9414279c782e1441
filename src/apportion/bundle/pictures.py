"""The two pictures of a model card, drawn from the certificate alone: redrawn and compared by whoever verifies."""

from collections.abc import Sequence
from typing import Any

from apportion.accounting.interpretation import Profile, profile_of_pair
from apportion.drawing import Series, chart, standalone

_MOST_STEPS = 400


def noise(certificate: dict[str, Any]) -> str:
    """The noise multiplier of each slot."""
    sigmas = certificate["sigmas"]
    every = -(-len(sigmas) // _MOST_STEPS)
    kept = sorted({*range(0, len(sigmas), every), len(sigmas) - 1})
    series = Series(label="noise multiplier", points=[(float(i), sigmas[i]) for i in kept], steps=True)
    title = f"Noise per epoch ({certificate['schedule']['kind']} schedule)"
    return standalone(chart([series], title=title, x="epoch", y="noise multiplier σ"))


def trade_off(certificate: dict[str, Any]) -> str:
    """The best that any attacker can do who wants to know whether one unit was in the data."""
    epsilon, delta = certificate["epsilon"], certificate["delta"]
    title = f"What an attacker can reach at ε = {epsilon:g}, δ = {delta:g}"
    return standalone(
        chart(attacker_curves(profile_of_pair(epsilon, delta)), title=title, x=FALSE_POSITIVES, y=TRUE_POSITIVES)
    )


FALSE_POSITIVES = "false-positive rate (said to be in, was not)"
TRUE_POSITIVES = "true-positive rate, at most"


def attacker_curves(profile: Profile) -> Sequence[Series]:
    rates = [i / 50 for i in range(51)]
    return (
        Series(label="any attacker", points=list(zip(rates, profile.tradeoff(rates), strict=True))),
        Series(label="guessing", points=[(0.0, 0.0), (1.0, 1.0)]),
    )
