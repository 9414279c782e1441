import numpy as np
import pytest

import apportion as ap
from apportion import batching
from apportion.errors import DataError, InvalidArgument
from apportion.randomness import RandomStream


@pytest.mark.parametrize(("records", "batches"), [(10, 3), (560, 1), (683, 100), (5, 5), (3, 7)])
def test_shuffle_sizes_differ_by_at_most_one_and_cover_everything_once(records: int, batches: int) -> None:
    drawn = list(ap.Shuffle(batches=batches).draw(records, RandomStream()))
    sizes = [len(batch) for batch in drawn]
    assert len(drawn) == batches
    assert max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate(drawn)) == list(range(records))


@pytest.mark.parametrize(("records", "batches"), [(10, 3), (1000, 7), (3, 50), (0, 4)])
def test_partition_puts_every_record_into_one_bin(records: int, batches: int) -> None:
    drawn = list(ap.Partition(batches=batches).draw(records, RandomStream()))
    assert len(drawn) == batches
    assert sorted(np.concatenate(drawn)) == list(range(records))


def test_partition_bins_are_independent_and_uniform() -> None:
    batches, records = 4, 100_000
    sizes = np.array([len(b) for b in ap.Partition(batches=batches).draw(records, RandomStream())])
    assert np.abs(sizes - records / batches).max() < 6.5 * np.sqrt(records * 3 / 16)
    assert len(set(sizes)) > 1, "equal sizes would mean that bins are balanced, hence not independent"


def test_poisson_draws_each_record_with_the_rate_in_every_step() -> None:
    poisson = ap.Poisson(rate=0.03)
    drawn = list(poisson.draw(50_000, RandomStream()))
    assert len(drawn) == poisson.steps == 33
    total = sum(len(batch) for batch in drawn)
    assert abs(total - 33 * 1500) < 6.5 * np.sqrt(33 * 1500)
    assert all(len(np.unique(batch)) == len(batch) for batch in drawn)


@pytest.mark.parametrize("kind", [ap.Partition(batches=7), ap.Poisson(rate=0.1)], ids=lambda b: b.kind)
def test_any_length_of_data_is_taken_with_the_same_constants(kind: batching.Batching) -> None:
    for length in (0, 99, 100):
        kind.check_length(length, 100)
        assert len(list(kind.draw(length, RandomStream()))) == kind.steps


@pytest.mark.parametrize(
    "kind", [ap.Shuffle(batches=1), ap.Partition(batches=1), ap.Poisson(rate=1.0)], ids=lambda b: b.kind
)
def test_a_batch_is_in_random_order(kind: batching.Batching) -> None:
    """Whoever makes the data, and its order, must not choose how sums over it are rounded."""
    first, again = (next(iter(kind.draw(100, RandomStream()))) for _ in range(2))
    assert sorted(first) == sorted(again) == list(range(100))
    assert list(first) != sorted(first)
    assert list(first) != list(again)


def test_shuffle_refuses_data_of_another_length() -> None:
    with pytest.raises(DataError, match="examples = 100, but the data holds 99"):
        ap.Shuffle(batches=7).check_length(99, 100)


def test_the_event_says_what_the_batching_is() -> None:
    assert ap.Shuffle(batches=5).event(2.0).batches == 5
    assert ap.Partition(batches=5).event(2.0).sigma == 2.0
    assert (ap.Poisson(rate=0.1).event(2.0).rate, ap.Poisson(rate=0.1).event(2.0).steps) == (0.1, 10)


@pytest.mark.parametrize("kind", [ap.Shuffle(batches=3), ap.Partition(batches=3), ap.Poisson(rate=0.5)])
def test_json_round_trip(kind: batching.Batching) -> None:
    assert batching.from_json(batching.to_json(kind)) == kind


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ap.Shuffle(batches=0), "batches"),
        (lambda: ap.Partition(batches=2.5), "batches"),
        (lambda: ap.Poisson(rate=0), "rate"),
        (lambda: ap.Poisson(rate=1.1), "rate"),
        (lambda: batching.from_json({"kind": "balls"}), "balls"),
        (lambda: batching.from_json({"kind": "poisson", "batches": 3}), "poisson"),
    ],
)
def test_bad_values_are_refused_by_name(make: object, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        make()  # type: ignore[operator]
