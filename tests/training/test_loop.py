"""Laws of a run: the ledger is the plan, constants are public, batches are tokens, the model is untouched."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import sgd, tiny_data, tiny_model, tiny_plan, train
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion import ledger
from apportion.errors import BatchMisused, DataError, IncompatibleModel, RunError
from apportion.training import start

BATCHINGS = [ap.Shuffle(batches=3), ap.Partition(batches=3), ap.Poisson(rate=0.25)]
SCHEDULES = [
    ap.Uniform(sigma0=9.0),
    ap.TimeDecay(sigma0=9.0, decay=0.1),
    ap.ExponentialDecay(sigma0=9.0, decay=0.1, period=2),
    ap.StepDecay(sigma0=9.0, decay=0.9, period=2),
    ap.PolynomialDecay(sigma0=9.0, decay=2.0, period=5, sigma_end=7.0),
    ap.Hold(schedule=ap.ExponentialDecay(sigma0=9.0, decay=0.1), start=1, end=2),
]


def begin(out: Path, **changes: object) -> ap.training.Run:
    values = {"optimizer": sgd, "loss": cross_entropy, "out": out}
    model, data, plan = changes.pop("model", None), changes.pop("data", None), changes.pop("plan", None)
    return start(model or tiny_model(), data or tiny_data(), plan or tiny_plan(), **(values | changes))


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda b: b.kind)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.kind)
def test_after_a_complete_run_the_ledger_events_are_the_plans(
    tmp_path: Path, batching: object, schedule: object
) -> None:
    plan = tiny_plan(batching=batching, schedule=schedule, epochs=3, budget=ap.Budget(epsilon=9.0, delta=1e-5))
    run = train(tmp_path / "run", plan)
    recorded = ledger.read(run.directory / "ledger.jsonl")
    assert tuple(entry.event for entry in recorded.events) == plan.event.events
    assert recorded.released
    run.publish(tmp_path / "bundle")
    assert ap.verify(tmp_path / "bundle").verified


def test_training_ends_by_itself_within_the_budget(tmp_path: Path) -> None:
    plan = ap.solve(
        budget=ap.Budget(epsilon=2.0, delta=1e-5),
        examples=60,
        batching=ap.Shuffle(batches=3),
        schedule=ap.ExponentialDecay(decay=0.05),
        epochs=10,
        clip=1.0,
    )
    epochs = 0
    with begin(tmp_path / "run", plan=plan) as run:
        for epoch in run:
            epochs += 1
            for batch in epoch:
                run.step(batch)
    assert epochs == 10
    assert run.finished.certificate().guarantee.epsilon <= 2
    one_more = ap.certify(ledger.read(tmp_path / "run" / "ledger.jsonl")).ledger.plan
    with pytest.raises(ap.ApportionError):
        ap.TrainingPlan(
            budget=plan.budget, examples=60, batching=plan.batching, schedule=one_more.schedule, epochs=11, clip=1.0
        )


@pytest.mark.parametrize("batching", [ap.Partition(batches=3), ap.Poisson(rate=0.25)], ids=lambda b: b.kind)
def test_one_record_less_changes_no_constant(tmp_path: Path, batching: object) -> None:
    plan = tiny_plan(batching=batching, budget=ap.Budget(epsilon=9.0, delta=1e-5))
    x, y = tiny_data()
    texts = []
    for name, data in (("all", (x, y)), ("fewer", (x[1:], y[1:]))):
        directory = train(tmp_path / name, plan, data=data).directory
        lines = [json.loads(line)["body"] for line in (directory / "ledger.jsonl").read_text().splitlines()]
        lines[0].pop("run")
        lines[-1].pop("weights")
        texts.append((json.dumps(lines), (directory / "plan.json").read_bytes()))
    assert texts[0] == texts[1]


def test_shuffle_refuses_one_record_less_and_writes_nothing(tmp_path: Path) -> None:
    x, y = tiny_data()
    with pytest.raises(DataError, match="examples = 60"):
        train(tmp_path / "run", data=(x[1:], y[1:]))
    assert not (tmp_path / "run").exists()


def test_global_seeds_do_not_make_two_runs_equal(tmp_path: Path) -> None:
    weights = []
    initial = tiny_model().state_dict()
    for name in ("a", "b"):
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        model = tiny_model()
        model.load_state_dict(initial)
        train(tmp_path / name, model=model)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert not torch.equal(weights[0], weights[1])


def test_a_research_seed_makes_two_runs_equal(tmp_path: Path) -> None:
    initial = tiny_model().state_dict()
    for name in ("a", "b"):
        model = tiny_model()
        model.load_state_dict(initial)
        train(tmp_path / name, model=model, seeded_for_research_only=5)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second


def test_the_event_is_on_disk_before_the_first_step(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as run:
        for number, epoch in enumerate(run, start=1):
            for batch in epoch:
                assert ledger.read(tmp_path / "run" / "ledger.jsonl").used_slots == number
                run.step(batch)


def test_a_batch_is_a_one_use_token(tmp_path: Path) -> None:
    stale = []
    with begin(tmp_path / "run") as run:
        for epoch in run:
            for batch in epoch:
                for old in stale:
                    with pytest.raises(BatchMisused):
                        run.step(old)
                run.step(batch)
                before = [p.detach().clone() for p in run.model.parameters()]
                with pytest.raises(BatchMisused):
                    run.step(batch)
                assert all(torch.equal(p, q) for p, q in zip(run.model.parameters(), before, strict=True))
                stale = [batch]
            with pytest.raises(BatchMisused):
                iter(epoch)


def test_a_batch_left_unstepped_becomes_a_noise_only_step(tmp_path: Path) -> None:
    updates = []

    class Counting(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            updates.append(1)
            super().step()

    with begin(tmp_path / "run", optimizer=lambda p: Counting(p, lr=0.1)) as run:
        for epoch in run:
            for _ in epoch:
                pass
    assert len(updates) == 2 * 3


def test_leaving_an_epoch_uses_its_slot_and_voids_its_batches(tmp_path: Path) -> None:
    left = []
    with begin(tmp_path / "run") as run:
        for epoch in run:
            for old in left:
                with pytest.raises(BatchMisused):
                    run.step(old)
            for batch in epoch:
                left.append(batch)
                break
    assert ledger.read(tmp_path / "run" / "ledger.jsonl").used_slots == 2


def test_published_weights_load_into_the_users_own_class(bundle: Path) -> None:
    state = load_file(bundle / "model.safetensors")
    model = tiny_model()
    model.load_state_dict(state)
    assert set(state) == set(model.state_dict())


def test_a_model_that_went_through_training_is_untouched(tmp_path: Path) -> None:
    model = tiny_model()
    kinds, keys = [type(m) for m in model.modules()], list(model.state_dict())
    train(tmp_path / "run", model=model)
    assert [type(m) for m in model.modules()] == kinds
    assert list(model.state_dict()) == keys
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())


def test_an_exception_leaves_a_resumable_run_and_resuming_takes_the_next_slot(tmp_path: Path) -> None:
    plan = tiny_plan(epochs=2, spare_epochs=1)
    with pytest.raises(KeyboardInterrupt), begin(tmp_path / "run", plan=plan) as run:
        for epoch in run:
            if epoch.index == 1:
                raise KeyboardInterrupt
            for batch in epoch:
                run.step(batch)
    assert not ledger.read(tmp_path / "run" / "ledger.jsonl").released
    finished = train(tmp_path / "run", plan, resume=True)
    recorded = ledger.read(finished.directory / "ledger.jsonl")
    assert recorded.used_slots == 3
    assert recorded.released
    with pytest.raises(RunError, match="finished"):
        train(tmp_path / "run", plan, resume=True)


def test_resuming_with_another_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), begin(tmp_path / "run"):
        raise KeyboardInterrupt
    with pytest.raises(RunError, match="another plan"):
        train(tmp_path / "run", tiny_plan(clip=2.0), resume=True)


def test_a_run_directory_is_for_its_owner_alone_and_a_bundle_for_everybody(tmp_path: Path) -> None:
    run = train(tmp_path / "run", tiny_plan())
    run.publish(tmp_path / "bundle")
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0
    assert (tmp_path / "bundle").stat().st_mode & 0o055 == 0o055


def test_an_existing_directory_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(RunError, match="exists already"):
        train(tmp_path / "run")
    with pytest.raises(RunError, match="no run to resume"):
        train(tmp_path / "run", resume=True)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_second_process_on_the_same_run_is_refused(tmp_path: Path) -> None:
    with begin(tmp_path / "run"), pytest.raises(RunError, match="in use"):
        train(tmp_path / "run", resume=True)


def test_the_non_private_baseline_is_ordinary_training(tmp_path: Path) -> None:
    plan = ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=1), epochs=3)
    mine, theirs = tiny_model(), tiny_model()
    theirs.load_state_dict(mine.state_dict())
    train(tmp_path / "run", plan, model=mine)
    optimizer, (x, y) = sgd(theirs.parameters()), tiny_data()
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(theirs(x), y).backward()
        optimizer.step()
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert float((p - q).detach().abs().max()) < 1e-6


@pytest.mark.parametrize(
    "data",
    [
        tiny_data()[0],
        (tiny_data()[0],),
        (tiny_data()[0], tiny_data()[1][:5]),
        ("a", "b"),
        (np.array(["x"]), np.array([1])),
    ],
    ids=["no pair", "one", "lengths", "texts", "strings"],
)
def test_data_that_is_no_pair_of_arrays_is_refused(tmp_path: Path, data: object) -> None:
    with pytest.raises(DataError):
        train(tmp_path / "run", data=data)
    assert not (tmp_path / "run").exists()


def test_numpy_data_and_float64_inputs_are_taken(tmp_path: Path) -> None:
    x, y = tiny_data()
    train(tmp_path / "run", data=(x.double().numpy(), y.numpy()))
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS"),
        (lambda p: torch.optim.SGD(tiny_model().parameters(), lr=0.1), "not trainable parameters of this model"),
        (lambda p: torch.optim.SGD(list(p)[:1], lr=0.1), "is not in the optimizer"),
        (lambda p: "adam", "must return"),
    ],
)
def test_an_optimizer_outside_the_private_path_is_refused(tmp_path: Path, optimizer: object, reason: str) -> None:
    with pytest.raises(IncompatibleModel, match=reason):
        begin(tmp_path / "run", optimizer=optimizer)
    assert not (tmp_path / "run").exists()


def drawn_in_a_run(out, **options):
    """What a callback draws after an epoch, as a model might during one, from all that a model may draw from."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    drawn = []
    draw = lambda: (float(torch.rand(())), float(np.random.rand()), random.random())  # noqa: E731
    train(out, callbacks=[lambda report: drawn.append(draw())], **options)
    return drawn, draw()


def test_what_a_model_draws_in_a_private_run_comes_of_seeds_that_nobody_knows(tmp_path):
    """With a known seed, one record less gives all others of a batch other masks of dropout."""
    (first, after), (second, after_too) = (drawn_in_a_run(tmp_path / name) for name in "ab")
    assert all(a != b for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True))
    assert after == after_too, "the states of before come back"


@pytest.mark.parametrize(
    "options",
    [
        {"seeded_for_research_only": 3},
        {
            "plan": ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=3), epochs=2),
            "seeded_for_research_only": 3,
        },
        {"plan": ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=3), epochs=2)},
    ],
    ids=["research", "baseline, research", "baseline"],
)
def test_seeds_are_left_alone_where_nothing_is_private(tmp_path, options):
    assert drawn_in_a_run(tmp_path / "a", **options) == drawn_in_a_run(tmp_path / "b", **options)
