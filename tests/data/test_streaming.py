"""A streamed table holds what the table in memory holds, and its problems are told in the same words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apportion.data import Declared, prepare, read_table, stream_table
from apportion.data import arrow as blocks
from apportion.data.rows import RowFile, Sorted
from apportion.data.streaming import stream_divided
from apportion.errors import ConfigError, DataError, InvalidArgument

pyarrow = pytest.importorskip("pyarrow")

DECLARED = Declared(target="ill", classes=("no", "yes"), ranges={"age": (0, 100), "dose": (0, 5)}, ignore=("name",))
REGRESSION = Declared(target="dose", target_range=(0, 5), ranges={"age": (0, 100)}, ignore=("name", "ill"))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROWS", 7)
    monkeypatch.setattr(blocks, "BLOCK", 200)


def records(count: int) -> dict[str, list[Any]]:
    generator = np.random.default_rng(3)
    return {
        "name": [f"person, {i}" for i in range(count)],
        "age": generator.integers(0, 120, count).tolist(),
        "dose": generator.uniform(0, 6, count).round(3).tolist(),
        "ill": ["yes" if coin else "no" for coin in generator.integers(0, 2, count)],
    }


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=25)
    else:
        import csv

        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("declared", [DECLARED, REGRESSION], ids=["classes", "regression"])
def test_a_streamed_table_is_the_table(tmp_path: Path, ending: str, declared: Declared) -> None:
    path = write(tmp_path / f"table.{ending}", records(90))
    expected, clipped = prepare(read_table(path), declared)
    with stream_table(path, declared, scratch=tmp_path) as table:
        rows = table.rows.read(0, 1000)
        assert (len(table), table.clipped) == (90, clipped)
        assert clipped > 0
        np.testing.assert_array_equal(rows["inputs"], expected.inputs.astype(np.float32))
        np.testing.assert_array_equal(rows["target"], expected.targets.astype(rows["target"].dtype))
        assert (table.features, table.classes) == (expected.features, expected.classes)
    assert list(tmp_path.iterdir()) == [path], "the scratch files have no names"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_problems_are_told_as_for_a_table_in_memory_and_never_with_a_value(tmp_path: Path, ending: str) -> None:
    columns = {name: [str(value) for value in values] for name, values in records(40).items()}
    columns["age"][20], columns["age"][33], columns["dose"][8] = "SECRET", "", "nan"
    columns["ill"][39], columns["ill"][2] = "perhaps", " "
    path = write(tmp_path / f"table.{ending}", columns)
    with pytest.raises(DataError) as in_memory:
        prepare(read_table(path), DECLARED)
    with pytest.raises(DataError) as streamed:
        stream_table(path, DECLARED, scratch=tmp_path)
    assert set(str(streamed.value).splitlines()) == set(str(in_memory.value).splitlines())
    assert "row 21" in str(streamed.value)
    assert "row 40" in str(streamed.value)
    assert "SECRET" not in str(streamed.value)


def test_numbers_in_every_way_of_writing_them(tmp_path: Path) -> None:
    columns = {
        "name": list("abcd"),
        "age": [" 5", "1e1 ", "1_0", "+7"],
        "dose": ["inf", "0", "-0.0", ".5"],
        "ill": ["no"] * 4,
    }
    path = write(tmp_path / "table.csv", columns)
    expected, _ = prepare(read_table(path), DECLARED)
    with stream_table(path, DECLARED) as table:
        np.testing.assert_array_equal(table.rows.read(0, 4)["inputs"], expected.inputs.astype(np.float32))


def test_whole_numbers_and_truth_values_are_classes_too(tmp_path: Path) -> None:
    for values, classes in (
        [[0, 1, 1], ("0", "1")],
        [[0.0, 1.0, 1.0], ("0", "1")],
        [[False, True, True], ("False", "True")],
    ):
        columns = {"name": list("abc"), "age": [1, 2, 3], "dose": [1, 2, 3], "ill": values}
        path = write(tmp_path / "table.parquet", columns)
        declared = Declared(target="ill", classes=classes, ranges=DECLARED.ranges, ignore=("name",))
        with stream_table(path, declared) as table:
            assert table.rows.read(0, 3)["target"].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name,age,dose,ill\na,1,2,no\nSECRET,3,no\n", "row 2 does not have as many values"),
        ("name,age,dose,ill\n", "holds no rows"),
        ("name,age,age,ill\na,1,2,no\n", "each once"),
        ("", "name the columns"),
        ("name,age,dose,ill\na,1,2,\xff\n", "UTF-8"),
    ],
    ids=["short row", "no rows", "same name", "empty", "not UTF-8"],
)
def test_a_file_that_is_no_table_is_refused_without_quoting_it(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=reason) as found:
        stream_table(path, DECLARED)
    assert "SECRET" not in str(found.value)


def test_what_was_not_declared_or_cannot_be_streamed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "table.csv", records(5))
    with pytest.raises(ConfigError, match="dose has no declared range"):
        stream_table(path, Declared(target="ill", classes=("no", "yes"), ranges={"age": (0, 1)}, ignore=("name",)))
    with pytest.raises(DataError, match="no such file"):
        stream_table(tmp_path / "none.parquet", DECLARED)
    with pytest.raises(DataError, match=r"\.csv or a \.parquet"):
        stream_table(tmp_path / "table.npz", DECLARED)
    with pytest.raises(DataError, match="scratch must be a directory"):
        stream_table(path, DECLARED, scratch=tmp_path / "none")
    with pytest.raises(InvalidArgument, match="not both"):
        Declared(target="ill", classes=("no", "yes"), target_range=(0, 1), ranges={})


def test_a_table_is_divided_record_by_record(tmp_path: Path) -> None:
    path = write(tmp_path / "table.csv", records(50))
    coins = np.random.default_rng(1).integers(0, 2, 50).astype(bool)
    drawn = iter(coins)
    train, held_out = stream_divided(path, DECLARED, lambda count: np.array([next(drawn) for _ in range(count)]))
    everything, _ = prepare(read_table(path), DECLARED)
    with train, held_out:
        for table, chosen in ((train, ~coins), (held_out, coins)):
            np.testing.assert_array_equal(
                table.rows.read(0, 50)["inputs"], everything.inputs[chosen].astype(np.float32)
            )


@pytest.mark.parametrize("kind", ["partition", "permutation", "overlapping", "nothing"])
def test_sorting_on_disk_gives_every_batch_its_rows(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    generator = np.random.default_rng(2)
    batches = {
        "partition": [np.flatnonzero(generator.integers(0, 5, 200) == number) for number in range(5)],
        "permutation": np.array_split(generator.permutation(200), 6),
        "overlapping": [np.flatnonzero(generator.random(200) < 0.3) for _ in range(9)],
        "nothing": [np.empty(0, np.int64)] * 3,
    }[kind]
    dtype = np.dtype([("inputs", np.float32, (2,)), ("target", np.int64)])
    monkeypatch.setattr("apportion.data.rows.BUFFER", 37 * dtype.itemsize)
    rows = np.zeros(200, dtype)
    rows["target"] = np.arange(200)
    file = RowFile(dtype)
    file.append(rows)
    ordered = Sorted(file, batches)
    for number, indices in enumerate(batches):
        assert ordered.size(number) == len(indices)
        parts = [ordered.read(number, start, start + 11)["target"] for start in range(0, len(indices), 11)]
        assert np.concatenate([*parts, []]).tolist() == sorted(indices.tolist())
    ordered.close()
    file.close()


def test_a_scratch_directory_without_room_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import collections
    import shutil

    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 99, 1))
    with pytest.raises(DataError, match="another scratch directory"):
        stream_table(write(tmp_path / "table.csv", records(50)), DECLARED)


@pytest.mark.parametrize("rows", [20_000, 200_000])
def test_memory_grows_by_bytes_per_record_and_not_by_the_table(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Of 84 bytes per row, the 200,000 of which are 17 MB."""
    import tracemalloc

    dtype = np.dtype([("inputs", np.float32, (20,)), ("target", np.int32)])
    monkeypatch.setattr("apportion.data.rows.BUFFER", 1 << 18)
    file = RowFile(dtype)
    for _ in range(0, rows, 10_000):
        file.append(np.zeros(10_000, dtype))
    tracemalloc.start()
    try:
        order = np.random.default_rng(1).permutation(rows)
        ordered = Sorted(file, np.array_split(order, 50))
        for batch in range(50):
            ordered.read(batch, 0, 500)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000 + 24 * rows
    ordered.close()
    file.close()
