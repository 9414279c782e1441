import math
from pathlib import Path

import pytest
from conftest import tiny_plan, train
from hypothesis import given
from hypothesis import strategies as st

import apportion as ap
from apportion import ledger
from apportion.certificate import round_up
from apportion.errors import CertificationError
from apportion.recording import LedgerWriter


@given(st.floats(1e-9, 1e9))
def test_rounding_is_upwards_and_within_four_digits(value: float) -> None:
    rounded = round_up(value)
    assert value <= rounded <= value * (1 + 1.0001e-3)
    assert float(f"{rounded:.3e}") == rounded


def test_a_certificate_states_all_slots_however_few_were_used(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with LedgerWriter.create(path, the_plan=tiny_plan(), randomness="secure", declared={}) as writer:
        unused = ap.certify(ledger.read(path)).epsilon
        writer.take_slot()
    assert ap.certify(ledger.read(path)).epsilon == unused == round_up(tiny_plan().guarantee.epsilon)


def test_the_exact_gaussian_epsilon_is_certified_for_shuffle(tmp_path: Path) -> None:
    """Two releases at σ = 8: μ = √2/8, and δ(ε) by direct numerical integration of the two densities."""
    certificate = train(tmp_path / "run").certificate()
    mu, epsilon = math.sqrt(2) / 8, certificate.guarantee.epsilon
    step = 1e-4
    grid = (-12 + step * (i + 0.5) for i in range(240_000))
    delta = (
        sum(max(0.0, math.exp(-((x - mu) ** 2) / 2) - math.exp(epsilon - x * x / 2)) for x in grid)
        * step
        / math.sqrt(2 * math.pi)
    )
    assert certificate.guarantee.accountant == "gaussian"
    assert delta == pytest.approx(1e-5, rel=1e-4)
    assert certificate.epsilon == round_up(epsilon)


def test_another_delta_can_be_asked_for(run: ap.training.FinishedRun) -> None:
    assert run.certificate(delta=1e-8).epsilon > run.certificate().epsilon


def test_plain_words_say_what_matters(run: ap.training.FinishedRun) -> None:
    words = run.certificate().in_words()
    for expected in (
        "one example",
        "zero-out",
        "reshuffled",
        "final weights",
        "secure",
        "Not covered",
        "floating-point",
    ):
        assert expected in words


def test_a_seeded_run_says_unsafe_in_words_and_json(tmp_path: Path) -> None:
    certificate = train(tmp_path / "run", seeded_for_research_only=1).certificate()
    assert "UNSAFE" in certificate.in_words()
    assert certificate.to_json()["unsafe"]


def test_a_non_private_run_cannot_be_certified(tmp_path: Path) -> None:
    plan = ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=3), epochs=1)
    with pytest.raises(CertificationError, match="without privacy"):
        train(tmp_path / "run", plan).certificate()
