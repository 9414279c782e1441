import json
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_data, train
from hypothesis import given
from hypothesis import strategies as st

import apportion as ap
from apportion import adaptive, canonical, ledger
from apportion.errors import BudgetExhausted, CertificationError, DataError, InvalidArgument, LedgerError, UnpricedEvent
from apportion.events import ExponentialMechanism, GaussianRelease
from apportion.recording import LedgerWriter

DECAY = ap.ValidationDecay(sigma0=8.0, decay=0.7, period=2, window=1, threshold=2.0)


def tiny(**changes: Any) -> ap.AdaptivePlan:
    values: dict[str, Any] = {
        "budget": ap.Budget(rho=0.05),
        "examples": 60,
        "batching": ap.Shuffle(batches=2),
        "schedule": DECAY,
        "clip": 1.0,
    }
    return ap.AdaptivePlan(**(values | changes))


PLANS = {
    "rho": tiny(),
    "epsilon": tiny(budget=ap.Budget(epsilon=2.0, delta=1e-5), epochs=4),
    "order": tiny(budget=ap.Budget(epsilon=2.0, delta=1e-5), batching=ap.Partition(batches=5), order=8.0),
    "auto": tiny(budget=ap.Budget(epsilon=2.0, delta=1e-5), batching=ap.Partition(batches=5), order="auto"),
    "poisson": tiny(budget=ap.Budget(epsilon=2.0, delta=1e-5), batching=ap.Poisson(rate=0.2)),
    "floor": tiny(budget=ap.Budget(epsilon=3.0, delta=1e-5), floor=ap.Uniform(sigma0=6.0), epochs=3),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_survives_json_and_keeps_within_its_budget(name: str) -> None:
    plan = PLANS[name]
    again = adaptive.from_json(canonical.loads(canonical.dumps(plan.to_json())))
    assert again == plan
    if plan.budget.epsilon is not None:
        assert plan.guarantees(plan.delta)[0].epsilon <= plan.budget.epsilon
    with pytest.raises(InvalidArgument, match="fields"):
        adaptive.from_json({**plan.to_json(), "extra": 1})


@given(st.lists(st.floats(0, 1), max_size=60), st.sampled_from(sorted(PLANS)))
def test_whatever_the_scores_the_cap_or_the_floor_holds(scores: list[float], name: str) -> None:
    plan, events = PLANS[name], []
    while (slot := plan.next_slot(events, scores[: len(events)], len(events))) is not None and len(events) < 40:
        assert slot.index == len(events)
        events.append(slot.event)
    assert events
    for cap in plan.caps:
        assert cap.cost(events) <= cap.cap * (1 + 1e-12)
    if plan.floor is not None:
        assert len(events) == plan.epochs
        assert all(event.sigma >= 6.0 for event in events)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"schedule": ap.Uniform(sigma0=3.0)}, InvalidArgument, "ValidationDecay"),
        ({"budget": ap.Budget(rho=0.001)}, BudgetExhausted, "not even one epoch"),
        ({"batching": ap.Poisson(rate=0.1)}, InvalidArgument, "rho budget"),
        ({"order": 8.0}, InvalidArgument, "epsilon budget"),
        ({"floor": ap.Uniform(sigma0=6.0)}, InvalidArgument, "give epochs"),
        ({"floor": ap.Uniform(sigma0=1.0), "epochs": 5}, BudgetExhausted, "raise the floor"),
        ({"floor": ap.Uniform(), "epochs": 5}, InvalidArgument, "sigma0"),
        ({"budget": ap.Budget(epsilon=0.1, delta=1e-5), "order": 1.5}, InvalidArgument, "raise it"),
        ({"adjacency": "add-remove"}, InvalidArgument, "Partition"),
    ],
)
def test_plans_that_cannot_be_meant_are_refused(changes: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        tiny(**changes)


def test_a_fixed_plan_refuses_adaptive_noise_and_names_the_adaptive_one() -> None:
    with pytest.raises(InvalidArgument, match="AdaptivePlan"):
        ap.solve(budget=ap.Budget(rho=1.0), examples=9, batching=ap.Shuffle(batches=1), schedule=DECAY, clip=1.0)  # type: ignore[arg-type]


def recorded(path: Path, plan: ap.AdaptivePlan, scores: list[float]) -> list[dict[str, Any]]:
    with LedgerWriter.create(path, the_plan=plan, randomness="secure", declared={}) as writer:
        for score in scores:
            writer.take_slot()
            writer.append_score(score)
        writer.append_release("a" * 64)
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def rechained(lines: list[dict[str, Any]]) -> bytes:
    previous, out = ledger.START, b""
    for index, line in enumerate(lines):
        body = {"index": index, "previous": previous, "kind": line["kind"], "body": line["body"]}
        previous = canonical.digest(body)
        out += canonical.dumps({**body, "hash": previous}).encode() + b"\n"
    return out


def test_reading_gives_back_the_scores_and_the_noise_that_follows_from_them(tmp_path: Path) -> None:
    recorded(tmp_path / "ledger", tiny(), [0.5, 0.6, 0.7])
    read = ledger.read(tmp_path / "ledger")
    assert [score.score for score in read.scores] == [0.5, 0.6, 0.7]
    assert [entry.event.sigma for entry in read.events] == pytest.approx([8.0, 5.6, 5.6])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: lines[3]["body"]["event"].update(sigma=8.0), "differs from what the plan says"),
        (lambda lines: lines[3]["body"]["event"].update(sigma=4.0), "differs from what the plan says"),
        (lambda lines: lines[0]["body"]["plan"]["schedule"].update(threshold=-2.0), "differs from what the plan says"),
        (lambda lines: lines.pop(2), "differs from what the plan says"),
        (lambda lines: lines[0]["body"]["plan"]["budget"].update(rho=0.03), "exceed the cap"),
        (lambda lines: lines[2]["body"].update(slot=1), "latest slot"),
        (lambda lines: lines.insert(3, lines[2]), "latest slot"),
        (lambda lines: lines.insert(1, lines[2]), "latest slot"),
        (lambda lines: lines[2]["body"].update(score=1), "decimal number"),
        (lambda lines: lines[2]["body"].update(score="high"), "decimal number"),
        (lambda lines: lines[2]["body"].update(extra=0), "must have the fields"),
        (lambda lines: lines.append(lines[2]), "follows the release"),
        (lambda lines: lines[0]["body"]["plan"].update(order="auto"), "not valid"),
        (lambda lines: lines[0]["body"]["plan"].update(adaptive=False), "not valid"),
    ],
)
def test_a_ledger_whose_noise_does_not_follow_from_its_scores_is_refused(
    tmp_path: Path, change: Any, reason: str
) -> None:
    lines = recorded(tmp_path / "ledger", tiny(), [0.5, 0.6, 0.7])
    change(lines)
    with pytest.raises(LedgerError, match=reason):
        ledger.parse(rechained(lines))


def test_other_events_count_towards_the_cap(tmp_path: Path) -> None:
    with LedgerWriter.create(tmp_path / "a", the_plan=tiny(), randomness="secure", declared={}) as writer:
        before = count_slots(writer, take=False)
        writer.append_event(GaussianRelease(sigma=8.0))
        assert count_slots(writer, take=False) < before
        with pytest.raises(BudgetExhausted):
            writer.append_event(GaussianRelease(sigma=0.1))
        with pytest.raises(UnpricedEvent):
            writer.append_event(ExponentialMechanism(epsilon=0.01))
    with (
        LedgerWriter.create(tmp_path / "b", the_plan=PLANS["floor"], randomness="secure", declared={}) as writer,
        pytest.raises(BudgetExhausted),
    ):
        writer.append_event(GaussianRelease(sigma=100.0))


def count_slots(writer: LedgerWriter, take: bool) -> int:
    spent = list(writer._spent)
    count = 0
    while (slot := tiny().next_slot(spent, [], count)) is not None:
        spent.append(slot.event)
        count += 1
    return count


def test_a_loss_distribution_of_an_adaptive_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    recorded(tmp_path / "capped", PLANS["order"], [0.5, 0.6])
    read = ledger.read(tmp_path / "capped")
    with pytest.raises(CertificationError, match="realised path"):
        ap.certify(read, accountant="loss-distribution")
    with pytest.raises(UnpricedEvent, match="loss distribution along the realised path is not a valid bound"):
        read.certified_event  # noqa: B018
    assert ap.certify(read).guarantee.accountant == "renyi-filter"


def test_a_floor_declared_beforehand_is_certified_by_any_accountant(tmp_path: Path) -> None:
    recorded(tmp_path / "floor", PLANS["floor"], [0.5, 0.6])
    read = ledger.read(tmp_path / "floor")
    certificate = ap.certify(read)
    assert certificate.to_json()["slots"] == {"planned": 3, "used": 2}
    assert ap.certify(read, accountant="gaussian").epsilon >= certificate.epsilon
    as_fixed = ap.TrainingPlan(
        budget=ap.Budget(epsilon=3.0, delta=1e-5), examples=60, batching=ap.Shuffle(batches=2),
        schedule=ap.Uniform(sigma0=6.0), epochs=3, clip=1.0,
    )  # fmt: skip
    assert read.certified_event == as_fixed.event


@pytest.mark.parametrize("name", PLANS)
def test_an_adaptive_run_is_published_and_verified(tmp_path: Path, name: str) -> None:
    plan = PLANS[name]
    if plan.epochs is None:
        plan = tiny(budget=plan.budget, batching=plan.batching, order=plan.order, epochs=4)
    run = train(tmp_path / "run", plan, validation=ap.Public(tiny_data(20)))
    read = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert read.used_slots == len(read.scores) > 1
    assert len({entry.event.sigma for entry in read.events}) > 1  # type: ignore[union-attr]
    run.publish(tmp_path / "bundle")
    verification = ap.verify(tmp_path / "bundle")
    assert verification.verified, verification.problems
    assert "cap" in run.certificate().in_words() or "floor" in run.certificate().in_words()


def test_private_validation_data_is_refused_and_both_ways_out_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Public\(\(inputs, targets\)\)(.|\n)*PaidLooks"):
        train(tmp_path / "run", tiny(), validation=tiny_data(20))
    with pytest.raises(InvalidArgument, match="validation=Public"):
        train(tmp_path / "run", tiny())
    assert not (tmp_path / "run").exists()


def test_each_paid_look_is_an_event_under_the_cap(tmp_path: Path) -> None:
    looks = ap.PaidLooks(data=tiny_data(20), sigma=20.0, examples=20)
    run = train(tmp_path / "run", tiny(), validation=looks)
    read = ledger.read(tmp_path / "run" / "ledger.jsonl")
    paid = [entry.event for entry in read.events if entry.slot is None]
    assert paid == [GaussianRelease(sigma=20.0, purpose="validation")] * len(read.scores)
    assert len(paid) >= 1
    run.publish(tmp_path / "bundle")
    assert ap.verify(tmp_path / "bundle").verified


@pytest.mark.parametrize("noise", ["float", "grid"])
def test_paid_looks_are_whole_counts_so_that_floating_point_tells_nothing(tmp_path: Path, noise: Any) -> None:
    train(tmp_path / "run", tiny(noise=noise), validation=ap.PaidLooks(data=tiny_data(20), sigma=20.0, examples=20))
    found = ledger.read(tmp_path / "run" / "ledger.jsonl").scores
    assert found
    assert all(entry.score == round(20 * entry.score) / 20 for entry in found)


def test_paid_looks_that_the_plan_has_no_room_for_are_refused(tmp_path: Path) -> None:
    for plan, sigma in ((PLANS["floor"], 20.0), (tiny(), 0.5)):
        with pytest.raises(InvalidArgument, match=r"paid looks|exceed the budget"):
            train(tmp_path / "run", plan, validation=ap.PaidLooks(data=tiny_data(20), sigma=sigma, examples=20))
