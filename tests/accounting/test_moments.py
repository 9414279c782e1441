import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as google

from apportion.accounting.moments import Moments
from apportion.accounting.renyi import Renyi
from apportion.errors import UnpricedEvent
from apportion.events import GaussianRelease, PartitionEpoch, PoissonEpoch, Repeated, ShuffleEpoch

PAPER_RUN = Repeated(event=PoissonEpoch(sigma=6.0, rate=0.01, steps=100), count=400)


def test_the_paper_s_run_costs_what_the_paper_and_dp_accounting_s_moments_say() -> None:
    orders = np.arange(2, 34)
    divergences = google._compute_rdp_poisson_subsampled_gaussian(0.01, 6.0, orders) * 40_000
    theirs = float(np.min(divergences + math.log(1e5) / (orders - 1)))
    found = Moments("add-remove").guarantee(PAPER_RUN, 1e-5)
    assert found.epsilon == pytest.approx(1.67047, abs=1e-5)
    assert found.epsilon == pytest.approx(theirs, rel=1e-8)
    assert found.status == "proven"


def test_the_classic_conversion_is_looser_than_the_tight_one() -> None:
    assert Moments("zero-out").guarantee(PAPER_RUN, 1e-5).epsilon > Renyi("zero-out").guarantee(PAPER_RUN, 1e-5).epsilon


def test_a_plain_release_costs_its_own_moments() -> None:
    found = Moments("add-remove").guarantee(GaussianRelease(sigma=2.0), 1e-5)
    assert found.epsilon == pytest.approx(min((x + 1) / 8 + math.log(1e5) / x for x in range(1, 33)), rel=1e-12)
    event = dp_accounting.GaussianDpEvent(2.0)
    assert found.epsilon > google.RdpAccountant(list(range(2, 34))).compose(event).get_epsilon(1e-5)


@pytest.mark.parametrize("event", [PartitionEpoch(sigma=2.0, batches=10), ShuffleEpoch(sigma=2.0, batches=10)])
def test_other_batchings_are_refused(event: PartitionEpoch | ShuffleEpoch) -> None:
    with pytest.raises(UnpricedEvent, match="moments does not price"):
        Moments("zero-out").guarantee(event, 1e-5)


def test_replacing_a_unit_gets_no_credit_for_sampling() -> None:
    sampled = Moments("replace-one").guarantee(PoissonEpoch(sigma=4.0, rate=0.01, steps=7), 1e-5).epsilon
    assert sampled == Moments("add-remove").guarantee(Repeated(event=GaussianRelease(sigma=2.0), count=7), 1e-5).epsilon
