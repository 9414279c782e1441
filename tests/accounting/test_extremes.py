"""Numbers that no run has: answered, with something valid, and without a warning."""

import math

import pytest

from apportion import accounting
from apportion.errors import InvalidArgument, UnpricedEvent
from apportion.events import (
    Composed,
    Event,
    ExponentialMechanism,
    GaussianRelease,
    PartitionEpoch,
    PoissonEpoch,
    Repeated,
)

EXTREMES: list[Event] = [
    PartitionEpoch(sigma=1e-3, batches=10),
    PartitionEpoch(sigma=1e-200, batches=10),
    PartitionEpoch(sigma=1e300, batches=10),
    PartitionEpoch(sigma=1.0, batches=10**12),
    PoissonEpoch(sigma=1e-320, rate=0.1, steps=3),
    PoissonEpoch(sigma=1e300, rate=0.1, steps=3),
    PoissonEpoch(sigma=1.0, rate=0.1, steps=10**15),
    PoissonEpoch(sigma=1.0, rate=1e-320, steps=5),
    Repeated(event=PoissonEpoch(sigma=1.0, rate=0.1, steps=3), count=10**15),
    ExponentialMechanism(epsilon=1e5),
    ExponentialMechanism(epsilon=1e200),
    Composed(events=(ExponentialMechanism(epsilon=1e5), PoissonEpoch(sigma=1.0, rate=0.1, steps=3))),
    Composed(events=(GaussianRelease(sigma=1e-5), PartitionEpoch(sigma=3.0, batches=10))),
]


@pytest.mark.parametrize("event", EXTREMES, ids=str)
@pytest.mark.parametrize("cls", accounting.PROVEN, ids=lambda cls: cls.name)
def test_extremes_are_answered_or_refused(cls: type, event: Event) -> None:
    try:
        epsilon = cls("add-remove").guarantee(event, 1e-5).epsilon
    except UnpricedEvent:
        return
    assert epsilon >= 0
    assert not math.isnan(epsilon)


def test_beyond_reach_no_amplification_is_claimed() -> None:
    event = PoissonEpoch(sigma=1e-3, rate=0.5, steps=2)
    plain = accounting.Gaussian("add-remove").guarantee(event, 1e-5).epsilon
    assert accounting.LossDistribution("add-remove").guarantee(event, 1e-5).epsilon == plain


def test_counts_beyond_reason_are_refused_without_being_printed() -> None:
    with pytest.raises(InvalidArgument, match=r"at most 10\^15") as refusal:
        PoissonEpoch(sigma=1.0, rate=0.1, steps=10**400)
    assert len(str(refusal.value)) < 100
