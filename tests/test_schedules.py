import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import apportion as ap
from apportion import schedules
from apportion.errors import InvalidArgument

ALL = [
    ap.Uniform(sigma0=3.0),
    ap.TimeDecay(sigma0=3.0, decay=0.1, period=2),
    ap.ExponentialDecay(sigma0=3.0, decay=0.1),
    ap.StepDecay(sigma0=3.0, decay=0.5, period=4),
    ap.PolynomialDecay(sigma0=3.0, decay=2.0, period=10, sigma_end=1.0),
    ap.Hold(schedule=ap.ExponentialDecay(sigma0=3.0, decay=0.1), start=2, end=7),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.kind)
def test_noise_never_grows_and_starts_at_sigma0(schedule: schedules.Schedule) -> None:
    sigmas = [schedule(epoch) for epoch in range(30)]
    assert sigmas[0] == 3.0
    assert all(later <= earlier for earlier, later in itertools.pairwise(sigmas))
    assert sigmas == [schedule(epoch) for epoch in range(30)]


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.kind)
def test_json_round_trip(schedule: schedules.Schedule) -> None:
    assert schedules.from_json(schedule.to_json()) == schedule


@given(t=st.integers(0, 500), period=st.integers(1, 50))
def test_period_variants_replace_t_by_its_stair(t: int, period: int) -> None:
    stair = t // period
    assert ap.TimeDecay(sigma0=5.0, decay=0.1, period=period)(t) == ap.TimeDecay(sigma0=5.0, decay=0.1)(stair)
    exponential = ap.ExponentialDecay(sigma0=5.0, decay=0.1, period=period)
    assert exponential(t) == pytest.approx(5 * math.exp(-0.1 * stair))


def test_polynomial_decay_is_constant_after_its_period() -> None:
    schedule = ap.PolynomialDecay(sigma0=10.0, decay=3.0, period=100, sigma_end=2.0)
    assert schedule(100) == schedule(5000) == 2.0


def test_hold_is_constant_before_its_start_and_after_its_end() -> None:
    inner = ap.ExponentialDecay(sigma0=10.0, decay=0.1)
    hold = ap.Hold(schedule=inner, start=5, end=20)
    assert [hold(0), hold(5), hold(6), hold(20), hold(400)] == [10.0, 10.0, inner(1), inner(15), inner(15)]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ap.Uniform(sigma0=-1), "sigma0"),
        (lambda: ap.Uniform(sigma0=math.nan), "sigma0"),
        (lambda: ap.Uniform(sigma0=True), "sigma0"),
        (lambda: ap.Uniform(sigma0="8"), "sigma0"),
        (lambda: ap.TimeDecay(sigma0=1.0, decay=0), "decay"),
        (lambda: ap.ExponentialDecay(sigma0=1.0, decay=-0.1), "decay"),
        (lambda: ap.StepDecay(sigma0=1.0, decay=1.5, period=3), "decay"),
        (lambda: ap.StepDecay(sigma0=1.0, decay=0.5, period=0), "period"),
        (lambda: ap.PolynomialDecay(sigma0=1.0, decay=2.0, period=10, sigma_end=2.0), "sigma_end"),
        (lambda: ap.Hold(schedule=ap.Uniform(sigma0=1.0), start=5, end=3), "end"),
        (lambda: ap.Hold(schedule="uniform"), "schedule"),
        (lambda: ap.Uniform(sigma0=1.0)(-1), "epoch"),
        (lambda: ap.TimeDecay(decay=0.1)(0), "sigma0"),
        (lambda: schedules.from_json({"kind": "sinus"}), "sinus"),
        (lambda: schedules.from_json({"kind": "uniform", "sigma0": 1.0, "extra": 1}), "uniform"),
        (lambda: schedules.from_json([]), "schedule"),
    ],
)
def test_bad_values_are_refused_by_name(make: object, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        make()  # type: ignore[operator]
