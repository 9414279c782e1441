from pathlib import Path

import numpy as np
import pytest

from apportion.data import Declared, prepare, read_table, wisconsin
from apportion.data.dataset import draw_holdout
from apportion.data.table import Table
from apportion.errors import ApportionError, ConfigError, DataError, InvalidArgument
from apportion.randomness import RandomStream

DECLARED = Declared(target="ill", classes=("no", "yes"), ranges={"age": (0.0, 100.0), "dose": (0.0, 10.0)})


def csv(tmp_path: Path, text: str) -> Table:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return read_table(path)


def test_wisconsin_is_the_papers_split_scaled_by_its_declared_range() -> None:
    train, test = wisconsin()
    assert (len(train), len(test), len(train.features)) == (560, 123, 9)
    everything = np.concatenate([train.inputs, test.inputs])
    assert (everything.min(), everything.max()) == (-1, 1)
    assert set(np.unique(everything)) <= {2 * (v - 1) / 9 - 1 for v in range(1, 11)}
    assert int(train.targets.sum() + test.targets.sum()) == 239, "of 241 malignant rows two are incomplete"


def test_values_are_scaled_by_the_declared_range_and_clipped_to_it(tmp_path: Path) -> None:
    data, clipped = prepare(csv(tmp_path, "age,dose,ill\n50,10,no\n200,-1,yes\n0,2.5,no\n"), DECLARED)
    assert data.inputs.tolist() == [[0, 1], [1, -1], [-1, -0.5]]
    assert data.targets.tolist() == [0, 1, 0]
    assert clipped == 2


def test_one_record_does_not_move_the_others(tmp_path: Path) -> None:
    """Nothing is read off the data: with an extreme record more, the others are what they were."""
    without, _ = prepare(csv(tmp_path, "age,dose,ill\n50,5,no\n"), DECLARED)
    with_it, _ = prepare(csv(tmp_path, "age,dose,ill\n50,5,no\n1e300,inf,yes\n"), DECLARED)
    assert np.array_equal(without.inputs[0], with_it.inputs[0])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("age,dose,ill\n50,5,\n", "label missing in row 1"),
        ("age,dose,ill\n50,5,maybe\n", "none of the declared classes"),
        ("age,dose,ill\nelderly,5,no\n", "column age is text in row 1"),
        ("age,dose,ill\n,5,no\n", "column age lacks a value in row 1"),
        ("age,dose,ill\nnan,5,no\n", "column age lacks a value in row 1"),
        ("age,dose,ill,weight\n50,5,no,70\n", "column weight has no declared range"),
        ("age,ill\n50,no\n", "range of dose: there is no such column"),
        ("age,dose\n50,5\n", "no column 'ill'"),
        ("age,dose,ill\n50,5\n", "row 1 has 2 values"),
        ("age,age,ill\n50,5,no\n", "each once"),
        ("age,dose,ill\n", "no rows"),
        ("", "name the columns"),
    ],
)
def test_a_table_that_does_not_fit_its_declaration_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ApportionError, match=reason) as refusal:
        prepare(csv(tmp_path, text), DECLARED)
    assert isinstance(refusal.value, DataError | ConfigError)
    assert "elderly" not in str(refusal.value)
    assert "maybe" not in str(refusal.value)


def test_a_file_without_a_header_does_not_have_its_first_record_printed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        prepare(csv(tmp_path, "63,1,HIV-positive\n50,2,healthy\n"), DECLARED)
    assert "HIV" not in str(refusal.value)
    assert "63" not in str(refusal.value)


def test_a_column_can_be_left_out(tmp_path: Path) -> None:
    declared = Declared(target="ill", classes=("no", "yes"), ranges={"age": (0, 100)}, ignore=("dose", "name"))
    data, _ = prepare(csv(tmp_path, "name,age,dose,ill\nAnna,50,5,no\n"), declared)
    assert data.features == ("age",)


def test_parquet_and_npz_give_the_same_as_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from_csv, _ = prepare(csv(tmp_path, "age,dose,ill\n50,5,no\n20,1,yes\n"), DECLARED)
    table = pyarrow.table({"age": [50, 20], "dose": [5.0, 1.0], "ill": ["no", "yes"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", age=[50, 20], dose=[5.0, 1.0], ill=np.array(["no", "yes"]))
    for name in ("t.parquet", "t.npz"):
        data, _ = prepare(read_table(tmp_path / name), DECLARED)
        assert np.array_equal(data.inputs, from_csv.inputs)
        assert np.array_equal(data.targets, from_csv.targets)


def test_numeric_classes_and_matrices_in_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.array([[0.0, 1.0], [1.0, 0.5]]), y=np.array([0.0, 1.0]))
    declared = Declared(target="y", classes=("0", "1"), ranges={"x_0": (0, 1), "x_1": (0, 1)})
    data, _ = prepare(read_table(tmp_path / "t.npz"), declared)
    assert data.targets.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["missing.csv", "table.xlsx", "broken.npz", "broken.parquet", "bytes.csv"])
def test_unreadable_files_are_refused(tmp_path: Path, name: str) -> None:
    if not name.startswith("missing"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00 not a table")
    with pytest.raises(DataError, match=name.split(".")[0]):
        read_table(tmp_path / name)


def test_pickles_inside_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError):
        read_table(tmp_path / "t.npz")


@pytest.mark.parametrize(
    "change", [{"classes": ("a",)}, {"classes": ("a", "a")}, {"ranges": {"age": (3.0, 3.0)}}], ids=str
)
def test_bad_declarations_are_refused(change: dict[str, object]) -> None:
    values = {"target": "ill", "classes": ("no", "yes"), "ranges": {"age": (0.0, 1.0)}}
    with pytest.raises(InvalidArgument):
        Declared(**(values | change))  # type: ignore[arg-type]


def test_a_holdout_is_drawn_by_independent_coins() -> None:
    sizes = {int(draw_holdout(1000, 0.2, RandomStream()).sum()) for _ in range(30)}
    assert len(sizes) > 5, "a fixed size would make one record's fate depend on the others'"
    assert all(abs(size - 200) < 6.5 * np.sqrt(160) for size in sizes)
    assert not draw_holdout(10, 0.0, RandomStream()).any()
