"""Wherever the records come from, training is the same; and what draws batches by itself is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import sgd, tiny_data, tiny_model, tiny_plan, train
from safetensors.torch import load_file
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import apportion as ap
from apportion.data import Declared, stream_table
from apportion.errors import BatchMisused, DataError, InvalidArgument
from apportion.training import start
from apportion.training.sources import records_of
from apportion.training.streamed import MappedArrays, RecordByRecord
from apportion.training.tensors import PrivateData

BATCHINGS = [ap.Shuffle(batches=3), ap.Partition(batches=3), ap.Poisson(rate=0.25)]


class Pairs(Dataset[Any]):
    """Numpy inputs and plain whole numbers, as many data sets give them."""

    def __init__(self, records: int = 60) -> None:
        self.inputs, self.targets = tiny_data(records)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index].numpy(), int(self.targets[index])

    def __getitems__(self, indices: list[int]) -> Any:
        raise AssertionError("several records at once could be mixed")


def mapped(directory: Path) -> tuple[Any, Any]:
    for name, values in zip(("x", "y"), tiny_data(), strict=True):
        np.save(directory / f"{name}.npy", values.numpy())
    return np.load(directory / "x.npy", mmap_mode="r"), np.load(directory / "y.npy", mmap_mode="r")


def on_disk(directory: Path) -> Any:
    """The tiny data as a Parquet file whose ranges leave the numbers as they are."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    x, y = tiny_data()
    columns = {f"x{place}": x[:, place].numpy() for place in range(4)}
    parquet.write_table(pyarrow.table({**columns, "y": y.numpy()}), directory / "table.parquet")
    declared = Declared(target="y", classes=("0", "1"), ranges=dict.fromkeys(columns, (-8.0, 8.0)))
    return stream_table(directory / "table.parquet", declared, scratch=directory)


SOURCES = {
    "mapped": lambda directory: (mapped(directory), {}),
    "data set": lambda _: (Pairs(), {}),
    "workers": lambda _: (Pairs(), {"workers": 1}),
    "tensor data set": lambda _: (TensorDataset(*tiny_data()), {}),
    "subset": lambda _: (Subset(ConcatDataset([Pairs(40), Pairs(60)]), range(40, 100)), {}),
    "table": lambda directory: (on_disk(directory), {}),
}


@pytest.mark.parametrize("batching", BATCHINGS, ids=lambda b: b.kind)
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_trains_as_tensors_do(tmp_path: Path, source: str, batching: Any) -> None:
    plan = tiny_plan(batching=batching, schedule=ap.Uniform(sigma0=12.0))
    initial = tiny_model().double().state_dict()
    data, options = SOURCES[source](tmp_path)
    scale = 8.0 if source == "table" else 1.0
    x, y = tiny_data()
    for name, given, more in (("tensors", (x / scale, y), {}), ("source", data, options)):
        model = tiny_model().double()
        model.load_state_dict(initial)
        train(
            tmp_path / name, plan, model=model, data=given, seeded_for_research_only=3, max_physical_batch=7,
            holdout=given, **more,
        )  # fmt: skip
    expected = load_file(tmp_path / "tensors" / "model.safetensors")
    for key, value in load_file(tmp_path / "source" / "model.safetensors").items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-6)
    if source == "table":
        data.close()


def test_sources_are_recognised(tmp_path: Path) -> None:
    model = tiny_model()
    assert isinstance(records_of(mapped(tmp_path), model), MappedArrays)
    assert isinstance(records_of(Pairs(), model), RecordByRecord)
    assert isinstance(records_of(TensorDataset(*tiny_data()), model), PrivateData)


@pytest.mark.parametrize("workers", [0, 1])
def test_empty_batches_of_a_data_set_are_steps_of_pure_noise(tmp_path: Path, workers: int) -> None:
    plan = tiny_plan(batching=ap.Partition(batches=30))
    train(tmp_path / "run", plan, data=Pairs(3), workers=workers)
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_batch_left_unread_does_not_shift_the_next(tmp_path: Path) -> None:
    seen = []
    with start(
        tiny_model(), Pairs(), tiny_plan(), loss=torch.nn.functional.cross_entropy, optimizer=sgd, out=tmp_path / "run",
        workers=1, max_physical_batch=6,
    ) as run:  # fmt: skip
        for epoch in run:
            for number, batch in enumerate(epoch):
                if number == 0:
                    continue
                seen.append(batch.inputs if number == 1 else None)
                run.step(batch)
                if number == 2:
                    with pytest.raises(BatchMisused, match="gone"):
                        _ = batch.inputs
    known = {tuple(row) for row in tiny_data()[0].tolist()}
    assert all({tuple(row) for row in part.tolist()} <= known and len(part) == 20 for part in seen if part is not None)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(Pairs())


class Uneven(Pairs):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(4 + index % 2), 0


class Texts(Pairs):
    def __getitem__(self, index: int) -> Any:
        return "SECRET", 0


class Triples(Pairs):
    def __getitem__(self, index: int) -> Any:
        return 1, 2, 3


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (DataLoader(Pairs()), "not a DataLoader"),
        (Stream(), "map-style"),
        (Texts(), "pair of tensors, arrays or numbers, got str, int"),
        (Triples(), r"pair \(input, target\)"),
        (Pairs(0), "holds no record"),
    ],
    ids=["loader", "stream", "texts", "triples", "empty"],
)
def test_what_draws_batches_itself_or_is_no_pair_is_refused(tmp_path: Path, data: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as found:
        train(tmp_path / "run", data=data)
    assert "SECRET" not in str(found.value)
    assert not (tmp_path / "run").exists()


def test_records_of_different_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="differ in shape"):
        train(tmp_path / "run", data=Uneven())


def test_workers_are_a_number(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="workers"):
        train(tmp_path / "run", data=Pairs(), workers=-1)
