"""One of several mechanisms, chosen by earlier outputs: who may charge the largest, and why not everyone."""

import math

import numpy as np
import pytest

from apportion.accounting import Basic, Gaussian, LossDistribution, Renyi, ZeroConcentrated
from apportion.accounting.accountant import Accountant
from apportion.errors import InvalidArgument, UnpricedEvent
from apportion.events import (
    Composed,
    Event,
    ExponentialMechanism,
    GaussianRelease,
    NonPrivate,
    OneOf,
    PartitionEpoch,
    from_json,
    to_json,
)

LOUD, QUIET = GaussianRelease(sigma=4.0), GaussianRelease(sigma=8.0)
CHARGING = (Basic, Gaussian, Renyi, ZeroConcentrated)


@pytest.mark.parametrize("cls", CHARGING, ids=lambda cls: cls.name)
def test_one_of_several_costs_the_dearest(cls: type[Accountant[object]]) -> None:
    def epsilon(event: Event) -> float:
        return cls("add-remove").guarantee(event, 1e-5).epsilon

    before = GaussianRelease(sigma=5.0)
    for option in (LOUD, QUIET):
        assert epsilon(Composed(events=(before, OneOf(options=(LOUD, QUIET))))) >= epsilon(
            Composed(events=(before, option))
        )
    assert epsilon(OneOf(options=(QUIET, LOUD))) == epsilon(LOUD)
    assert epsilon(OneOf(options=(QUIET,))) == epsilon(QUIET)
    assert epsilon(OneOf(options=(QUIET, NonPrivate()))) == math.inf


def test_loss_distributions_do_not_price_a_choice_between_unequal_mechanisms() -> None:
    accountant = LossDistribution("add-remove")
    with pytest.raises(UnpricedEvent, match="OneOf"):
        accountant.guarantee(OneOf(options=(LOUD, QUIET)), 1e-5)
    equal = OneOf(options=(PartitionEpoch(sigma=4.0, batches=9), PartitionEpoch(sigma=4.0, batches=9)))
    one = PartitionEpoch(sigma=4.0, batches=9)
    assert accountant.guarantee(equal, 1e-5).epsilon == accountant.guarantee(one, 1e-5).epsilon


def test_a_choice_that_follows_losses_can_be_worse_than_every_option_by_itself() -> None:
    """Randomised response, then, by its loss, one of two leaks: the reason for the refusal, computed exactly.

    Options: ε = 1 without δ, or a plain disclosure with probability .2. At ε = .5 each composition has a smaller δ than
    the one that takes the disclosure only where the first loss was against it.
    """

    def response(epsilon: float) -> np.ndarray:
        p = 1 / (1 + math.exp(-epsilon))
        return np.array([[p, 1 - p], [1 - p, p]])

    first = response(0.6)
    options = (response(1.0), np.array([[0.2, 0.0, 0.8], [0.0, 0.2, 0.8]]))

    def delta(choice: tuple[int, int]) -> float:
        total = 0.0
        for i in (0, 1):
            option = options[choice[i]]
            for j in range(option.shape[1]):
                p, q = first[0, i] * option[0, j], first[1, i] * option[1, j]
                total += max(p - math.exp(0.5) * q, 0.0)
        return total

    assert max(delta((0, 1)), delta((1, 0))) > max(delta((0, 0)), delta((1, 1)))


def test_a_choice_round_trips_and_is_not_empty() -> None:
    event = OneOf(options=(LOUD, ExponentialMechanism(epsilon=1.0, counts=True)))
    assert from_json(to_json(event)) == event
    with pytest.raises(InvalidArgument, match="at least one"):
        OneOf(options=())
