"""The paper's validation-based decay at ρ = .78125: 10 for 29 epochs, 7 for 20, 4.9 for 10, 3.43 for 5."""

from itertools import groupby

import pytest

import apportion as ap
from apportion.events import Composed
from apportion.plan import rho_of

DECAY = ap.ValidationDecay(sigma0=10.0, decay=0.7, period=10, window=5, threshold=0.01)


def accuracy(epoch: int) -> float:
    """After this many epochs: rising to a plateau, above it once the noise has fallen, then flat."""
    return 0.5 + 0.02 * min(epoch, 15) if epoch < 30 else 0.83


def plan(**changes: object) -> ap.AdaptivePlan:
    values = {
        "budget": ap.Budget(rho=0.78125),
        "examples": 60_000,
        "batching": ap.Shuffle(batches=100),
        "schedule": DECAY,
        "clip": 4.0,
    }
    return ap.AdaptivePlan(**(values | changes))  # type: ignore[arg-type]


def run(found: ap.AdaptivePlan) -> list[object]:
    events: list[object] = []
    scores: list[float] = []
    while (slot := found.next_slot(events, scores, len(events))) is not None:  # type: ignore[arg-type]
        events.append(slot.event)
        scores.append(accuracy(len(events)))
    return events


@pytest.mark.parametrize("batching", [ap.Shuffle(batches=100), ap.Partition(batches=100)], ids=["shuffle", "partition"])
def test_the_scripted_accuracies_give_the_papers_epochs(batching: object) -> None:
    events = run(plan(batching=batching))
    lengths = [(round(sigma, 10), len(list(group))) for sigma, group in groupby(event.sigma for event in events)]  # type: ignore[attr-defined]
    assert lengths == [(10.0, 29), (7.0, 20), (4.9, 10), (3.43, 5)]
    assert rho_of(Composed(events=tuple(events)), "zero-out") == pytest.approx(0.76982, abs=5e-6)  # type: ignore[arg-type]


def test_a_check_falls_before_the_epochs_number_period_and_its_multiples() -> None:
    flat = [0.0] * 40
    sigmas = [DECAY(flat[:epoch]) for epoch in range(40)]  # of the epoch counted from 0
    assert [epoch + 1 for epoch in range(1, 40) if sigmas[epoch] < sigmas[epoch - 1]] == [10, 20, 30, 40]


def test_what_is_certified_is_the_cap_whatever_was_spent() -> None:
    by_accountant = {found.accountant: found for found in plan().guarantees(1e-5)}
    assert by_accountant["zcdp-filter"].details["rho"] == 0.78125
    assert by_accountant["gaussian-filter"].details["mu"] == pytest.approx((2 * 0.78125) ** 0.5)
    assert plan().guarantees(1e-5)[0].accountant == "gaussian-filter"
