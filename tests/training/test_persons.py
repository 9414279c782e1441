"""Plans that protect persons: batches over persons, records by a rule of one's own, and "person" on every page."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RECORDS, tiny_data, tiny_model, tiny_plan, train

import apportion as ap
from apportion import canonical, ledger, plan
from apportion.errors import DataError, IncompatibleModel, InvalidArgument, LedgerError, RunError
from apportion.events import GaussianRelease
from apportion.randomness import RandomStream
from apportion.recording import LedgerWriter
from apportion.training.persons import Persons
from apportion.training.records import Records

PERSONS = 20
IDS = np.arange(RECORDS) % PERSONS


def person_plan(**changes: Any) -> ap.TrainingPlan:
    return tiny_plan(**({"unit": ap.Person(), "examples": PERSONS, "batching": ap.Partition(batches=3)} | changes))


def test_everybody_brings_all_of_their_records() -> None:
    ids = ["b", "a", "b", "c", "b"]
    persons = Persons.of(ids, 5, ap.Person())
    assert len(persons) == 3
    records, sizes = persons.records(np.array([2, 1]), RandomStream())
    assert records.tolist() == [3, 0, 2, 4]
    assert sizes.tolist() == [1, 3]
    none, nobody = persons.records(np.array([], dtype=np.int64), RandomStream())
    assert len(none) == len(nobody) == 0


def test_the_cap_looks_at_one_persons_records_alone() -> None:
    """Exact: the draws of one person are the same whoever else is there. Fair: each record comes as often as any."""
    persons = Persons.of([0] * 7 + [1] * 3, 10, ap.Person(most_records=3))
    alone = Persons.of([0] * 7, 7, ap.Person(most_records=3))
    counts: Counter[int] = Counter()
    for seed in range(700):
        drawn, sizes = persons.records(np.array([0, 1]), RandomStream(seed))
        same, _ = alone.records(np.array([0]), RandomStream(seed))
        assert sizes.tolist() == [3, 3]
        assert drawn[:3].tolist() == same.tolist()
        assert sorted(drawn[3:].tolist()) == [7, 8, 9]
        assert len(set(drawn[:3].tolist())) == 3
        counts.update(drawn[:3].tolist())
    assert set(counts) == set(range(7))
    assert all(abs(count - 300) < 6.5 * (700 * 3 / 7 * 4 / 7) ** 0.5 for count in counts.values())


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2], [[1], [2], [3]], [1.0, 2.0, 3.0], ["a", "", "b"], ["a", None, "b"], [1, "a", None], ["a", math.nan, "b"],
        [1, "1", 2], [1, 2**64, -1], [True, False, True], np.ma.array([1, 2, 2], mask=[0, 0, 1]),
    ],
    ids=repr,
)  # fmt: skip
def test_ids_that_leave_a_record_without_a_person_are_refused(ids: Any) -> None:
    for given in (ids, ids if np.ma.is_masked(ids) else np.array(ids, dtype=object)):
        with pytest.raises(DataError, match="unit"):
            Persons.of(given, 3, ap.Person())


@pytest.mark.parametrize(
    "ids", [[5, 4, 5], ("b", "a", "b"), torch.tensor([5, 4, 5]), np.array(["b", "a", "b"])], ids=repr
)
def test_whole_numbers_and_texts_name_persons(ids: Any) -> None:
    assert Persons.of(ids, 3, ap.Person()).order.tolist() == [1, 0, 2]


class Pairs(torch.utils.data.Dataset[Any]):
    """A map-style data set."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


def mapped(x: Any, y: Any, directory: Path) -> Any:
    np.save(directory / "x.npy", x.numpy())
    return np.load(directory / "x.npy", mmap_mode="r"), y.numpy()


@pytest.mark.parametrize(
    ("batching", "source"),
    [
        (ap.Shuffle(batches=3), "tensors"),
        (ap.Partition(batches=3), "tensors"),
        (ap.Poisson(rate=0.3), "tensors"),
        (ap.Partition(batches=3), "mapped"),
        (ap.Partition(batches=3), "data set"),
    ],
    ids=lambda value: getattr(value, "kind", value),
)
def test_a_persons_records_are_in_one_batch_and_batches_are_drawn_over_persons(
    batching: Any, source: str, tmp_path: Path
) -> None:
    from apportion.training import start

    x, y = tiny_data()
    x[:, 3] = torch.as_tensor(IDS)  # so that batches show whose records they hold
    data: Any = {"tensors": lambda: (x, y), "mapped": lambda: mapped(x, y, tmp_path), "data set": lambda: Pairs(x, y)}
    made = person_plan(batching=batching, budget=ap.Budget(epsilon=20.0, delta=1e-5))
    batches: list[list[int]] = []
    options: Any = {"loss": torch.nn.functional.cross_entropy, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}
    with start(
        tiny_model(), data[source](), made, unit=IDS, max_physical_batch=4, out=tmp_path / "run", **options
    ) as run:
        for epoch in run:
            for batch in epoch:
                batches.append(batch.inputs[:, 3].int().tolist())
                assert batch.units is not None
                assert int(batch.units.sizes.sum()) == len(batches[-1])
                run.step(batch)
    for whose in batches:
        assert all(count == 3 for count in Counter(whose).values())
        assert [*dict.fromkeys(whose)] == whose[::3]
    if not isinstance(batching, ap.Poisson):
        for epoch in (batches[:3], batches[3:]):
            assert sorted(person for whose in epoch for person in set(whose)) == list(range(PERSONS))


def test_split_is_unsplit_for_persons(tmp_path: Path) -> None:
    """The same seeds, batches of records cut anywhere."""
    weights = []
    for at_once in (1, 7, 1000):
        torch.manual_seed(0)
        model = tiny_model().double()
        data = tuple(part.double() if part.is_floating_point() else part for part in tiny_data())
        train(
            tmp_path / str(at_once),
            person_plan(unit=ap.Person(most_records=2)),
            model,
            data,
            unit=IDS,
            max_physical_batch=at_once,
            seeded_for_research_only=5,
        )
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(weights[0], weights[2], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(weights[1], weights[2], rtol=1e-9, atol=1e-12)


def test_certificate_and_card_say_person(tmp_path: Path, apportion: Any) -> None:
    train(tmp_path / "run", person_plan(unit=ap.Person(most_records=2, gradient="sum")), unit=IDS).publish(
        tmp_path / "bundle"
    )
    assert ap.verify(tmp_path / "bundle").verified
    certificate = json.loads((tmp_path / "bundle" / "certificate.json").read_text())
    assert certificate["unit"] == "person"
    assert certificate["examples"] == PERSONS
    assert certificate["person"] == {"gradient": "sum", "most_records": 2}
    card = (tmp_path / "bundle" / "README.md").read_text()
    for sentence in (
        "per person",
        "Unit of privacy: one person",
        f"number of persons: {PERSONS}",
        "each person falls",
        "gradient, the sum over at most 2 of their records, clipped",
    ):
        assert sentence in card
    assert "one example" not in card
    assert "a person with several examples is protected less" not in card
    _, out, _ = apportion("verify", tmp_path / "bundle")
    assert "per person" in out


@pytest.mark.parametrize("unit", [ap.Person(), ap.Person(gradient="sum", most_records=9)], ids=repr)
def test_plans_are_written_and_read_again(unit: Any) -> None:
    made = person_plan(unit=unit)
    assert plan.from_json(json.loads(canonical.dumps(made.to_json()))) == made


@pytest.mark.parametrize("wrong", ["person", {"kind": "person"}, {"kind": "household", "gradient": "sum"}, None, 3])
def test_another_unit_is_no_plan(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        plan.from_json(tiny_plan().to_json() | {"unit": wrong})


def test_persons_cost_what_examples_cost() -> None:
    assert person_plan().event == tiny_plan(batching=ap.Partition(batches=3)).event


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {}, "unit=ids"),
        ({"unit": ap.units.EXAMPLE, "examples": RECORDS}, {"unit": IDS}, "protects examples"),
        ({}, {"unit": IDS[:-1]}, "one id per record"),
        ({"batching": ap.Shuffle(batches=3), "examples": RECORDS}, {"unit": IDS}, "Shuffle needs exactly"),
        (
            {},
            {"unit": IDS, "validation": ap.PaidLooks(data=tiny_data(), sigma=5.0, examples=60)},
            "priced for one record",
        ),
    ],
    ids=["no ids", "ids without a plan", "too few ids", "number of records", "paid looks"],
)
def test_persons_and_plan_must_fit(changes: Any, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, IncompatibleModel), match=message):
        train(tmp_path / "run", person_plan(**changes), **options)
    assert not (tmp_path / "run").exists()


def test_a_source_with_an_order_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apportion.training.tensors import PrivateData

    assert not Records.keeps_order
    monkeypatch.setattr(PrivateData, "keeps_order", False)
    with pytest.raises(DataError, match="order of its own"):
        train(tmp_path / "run", person_plan(), unit=IDS)


def test_nothing_that_is_priced_for_records_enters_a_ledger_of_persons(tmp_path: Path) -> None:
    score = GaussianRelease(sigma=5.0, purpose="evaluation")
    path = tmp_path / "ledger"
    with LedgerWriter.create(path, the_plan=person_plan(), randomness="secure", declared={}) as writer:
        with pytest.raises(RunError, match="priced for one record"):
            writer.append_event(score)
        ledger.read(path)
        writer._append("event", {"slot": None, "event": ap.events.to_json(score)})
    with pytest.raises(LedgerError, match="priced for one record"):
        ledger.read(path)
    with pytest.raises(InvalidArgument, match="priced for one record"):
        person_plan(components=(ap.PrincipalComponents(dimensions=2, sigma=16.0),))


def test_a_batch_of_persons_left_unstepped_is_a_step_of_noise(tmp_path: Path) -> None:
    from apportion.training import start

    model = tiny_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    options: Any = {"loss": torch.nn.functional.cross_entropy, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}
    with start(model, tiny_data(), person_plan(), unit=IDS, out=tmp_path / "run", **options) as run:
        for epoch in run:
            for _ in epoch:
                pass
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
