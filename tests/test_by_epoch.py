"""Clipping norm and batch size may follow the epoch: plan, ledger, accountants and certificate follow them."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_plan, train

import apportion as ap
from apportion import adaptive, by_epoch, canonical, ledger, plan
from apportion.accounting import guarantees
from apportion.errors import InvalidArgument, LedgerError
from apportion.events import Composed, PartitionEpoch, PoissonEpoch

torch = pytest.importorskip("torch")

WIDE = ap.Budget(epsilon=50.0, delta=1e-5)


def test_each_value_holds_until_the_next() -> None:
    values = ap.ByEpoch({10: 0.5, 0: 1.0})
    assert [values(epoch) for epoch in (0, 9, 10, 11, 10**6)] == [1.0, 1.0, 0.5, 0.5, 0.5]
    assert values == ap.ByEpoch({0: 1.0, 10: 0.5})
    assert hash(values) == hash(ap.ByEpoch({0: 1.0, 10: 0.5}))


@pytest.mark.parametrize("wrong", [{}, {1: 1.0}, {0: 1.0, -2: 1.0}, {0: 1.0, 1.5: 2.0}, [1.0], {True: 1.0}], ids=repr)
def test_values_that_do_not_begin_with_epoch_zero_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        ap.ByEpoch(wrong)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny_plan(clip=ap.ByEpoch({0: 1.0, 1: 0.0})),
        lambda: tiny_plan(clip=ap.ByEpoch({0: "1"})),
        lambda: ap.Partition(batches=ap.ByEpoch({0: 3, 1: 0})),
        lambda: ap.Poisson(rate=ap.ByEpoch({0: 0.1, 1: 1.5})),
    ],
)
def test_every_value_is_checked(make: Any) -> None:
    with pytest.raises(InvalidArgument):
        make()


def test_a_batching_by_epoch_can_only_be_drawn_from_at_an_epoch() -> None:
    batching = ap.Partition(batches=ap.ByEpoch({0: 3, 2: 6}))
    assert batching.at(1) == ap.Partition(batches=3)
    assert batching.at(2) == ap.Partition(batches=6)
    with pytest.raises(InvalidArgument, match="at\\(epoch\\)"):
        batching.event(1.0)


PLANS = [
    {"clip": ap.ByEpoch({0: 1.0, 1: 0.25})},
    {"batching": ap.Shuffle(batches=ap.ByEpoch({0: 3, 1: 6}))},
    {"batching": ap.Partition(batches=ap.ByEpoch({0: 3, 1: 6}))},
    {"batching": ap.Poisson(rate=ap.ByEpoch({0: 0.25, 1: 0.125})), "budget": WIDE},
]


@pytest.mark.parametrize("changes", PLANS, ids=repr)
def test_plans_are_written_and_read_again(changes: dict[str, Any]) -> None:
    made = tiny_plan(**changes)
    assert plan.from_json(json.loads(canonical.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    "wrong",
    [[], [{"from": 1, "value": 3}], [{"from": 0}], [{"from": 2, "value": 3}, {"from": 0, "value": 3}]],
    ids=repr,
)
def test_values_out_of_order_are_no_plan(wrong: Any) -> None:
    data = tiny_plan().to_json()
    with pytest.raises(InvalidArgument):
        plan.from_json(data | {"batching": {"kind": "partition", "batches": wrong}})


def test_every_epoch_is_priced_by_its_own_batches() -> None:
    """Against events written down by hand, and against the parts composed by dp-accounting for Poisson sampling."""
    found = tiny_plan(
        batching=ap.Partition(batches=ap.ByEpoch({0: 3, 2: 30})), epochs=5, schedule=ap.Uniform(sigma0=2.0), budget=WIDE
    )
    by_hand = Composed(events=tuple(PartitionEpoch(sigma=2.0, batches=k) for k in (3, 3, 30, 30, 30)))
    assert found.guarantee.epsilon == guarantees(by_hand, 1e-5, "add-remove", lower_bounds=False)[0].epsilon
    fewer, more = (
        tiny_plan(batching=ap.Partition(batches=k), epochs=5, schedule=ap.Uniform(sigma0=2.0), budget=WIDE)
        for k in (30, 3)
    )
    assert fewer.guarantee.epsilon < found.guarantee.epsilon < more.guarantee.epsilon


def test_a_changing_sampling_rate_costs_what_dp_accounting_says() -> None:
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    found = tiny_plan(
        batching=ap.Poisson(rate=ap.ByEpoch({0: 0.1, 1: 0.02})), epochs=2, schedule=ap.Uniform(sigma0=1.5), budget=WIDE
    )
    assert [slot.event for slot in found.slots] == [
        PoissonEpoch(sigma=1.5, rate=0.1, steps=10),
        PoissonEpoch(sigma=1.5, rate=0.02, steps=50),
    ]
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for rate, steps in ((0.1, 10), (0.02, 50)):
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(1.5)), steps)
    assert found.guarantee.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=5e-3)


def test_the_clipping_norm_costs_nothing() -> None:
    assert tiny_plan(clip=ap.ByEpoch({0: 1.0, 1: 0.01})).event == tiny_plan().event


def test_the_solver_spends_the_budget_of_a_changing_batch_size() -> None:
    found = ap.solve(
        budget=ap.Budget(epsilon=2.0, delta=1e-5),
        examples=600,
        batching=ap.Partition(batches=ap.ByEpoch({0: 20, 6: 5})),
        schedule=ap.Uniform(),
        epochs=12,
        clip=1.0,
    )
    assert 0.999 * 2.0 <= found.guarantee.epsilon <= 2.0 * (1 + 1e-9)
    batchings = [found.batching.at(slot.index) for slot in found.slots]
    assert [batching.steps for batching in batchings] == [20] * 6 + [5] * 6
    assert [batching.nominal_batch_size(600) for batching in batchings] == [30] * 6 + [120] * 6


def test_an_adaptive_plan_follows_the_epoch_too() -> None:
    made = ap.AdaptivePlan(
        budget=ap.Budget(rho=0.1),
        examples=60,
        batching=ap.Partition(batches=ap.ByEpoch({0: 3, 1: 6})),
        schedule=ap.ValidationDecay(sigma0=10.0, decay=0.5, period=100),
        clip=ap.ByEpoch({0: 1.0, 1: 0.5}),
    )
    assert adaptive.from_json(json.loads(canonical.dumps(made.to_json()))) == made
    first, second = (made.slot([], index) for index in (0, 1))
    assert first.event == PartitionEpoch(sigma=10.0, batches=3)
    assert second.event == PartitionEpoch(sigma=10.0, batches=6)


@pytest.mark.parametrize("changes", PLANS, ids=repr)
def test_a_run_follows_its_plan_and_is_verified(changes: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    from apportion.training import run as running

    seen: list[tuple[float, float]] = []
    step = running.step_in_parts

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append((options["clip"], options["nominal_batch_size"]))
        return step(*arguments, **options)

    monkeypatch.setattr(running, "step_in_parts", watched)
    made = tiny_plan(**changes)
    train(tmp_path / "run", made).publish(tmp_path / "bundle")
    batchings = [made.batching.at(epoch) for epoch in (0, 1)]
    assert seen == [
        (by_epoch.at(made.clip, epoch), batching.nominal_batch_size(60))
        for epoch, batching in enumerate(batchings)
        for _ in range(batching.steps)
    ]
    assert ap.verify(tmp_path / "bundle").verified
    recorded = ledger.read(tmp_path / "bundle" / "ledger.jsonl")
    assert [entry.event for entry in recorded.events] == [slot.event for slot in made.slots]
    certificate = json.loads((tmp_path / "bundle" / "certificate.json").read_text())
    assert certificate["steps"] == sum(batching.steps for batching in batchings)
    assert "from epoch 1 on" in (tmp_path / "bundle" / "README.md").read_text()


def test_a_ledger_with_another_epochs_batches_is_refused(tmp_path: Path) -> None:
    from apportion.recording import LedgerWriter

    made = tiny_plan(batching=ap.Partition(batches=ap.ByEpoch({0: 3, 1: 6})))
    with LedgerWriter.create(tmp_path / "ledger", the_plan=made, randomness="secure", declared={}) as writer:
        writer.take_slot()
        writer._append(
            "event", {"slot": 1, "event": {"kind": "partition-epoch", "sigma": 8.0, "batches": 3}}
        )  # what the first epoch had
    with pytest.raises(LedgerError, match="differs from what the plan says for slot 1"):
        ledger.read(tmp_path / "ledger")


@pytest.mark.parametrize(
    ("text", "value"),
    [("100", 100), ("0:100,20:50", ap.ByEpoch({0: 100, 20: 50}))],
)
def test_values_by_epoch_are_typed_as_first_epoch_and_value(text: str, value: Any) -> None:
    assert by_epoch.parse(text, int, "--batches") == value


@pytest.mark.parametrize("text", ["", "many", "0:1,0:2", "0:1,5", "5:1", "0:x"])
def test_what_cannot_be_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--batches|epoch 0"):
        by_epoch.parse(text, int, "--batches")
