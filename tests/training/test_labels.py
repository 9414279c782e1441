"""A label out of range is refused before anything is spent, and no message shows it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_data, tiny_model, tiny_plan, train

import apportion as ap
from apportion import ledger
from apportion.errors import DataError
from apportion.training.labels import check_labels
from apportion.training.losses import per_example

CROSS_ENTROPY = per_example(torch.nn.functional.cross_entropy)


def with_label(value: int) -> tuple[Any, Any]:
    x, y = tiny_data()
    y[7] = value
    return x, y


@pytest.mark.parametrize("value", [2, 8675309, -1])
@pytest.mark.parametrize("where", ["data", "holdout", "validation"])
def test_a_label_out_of_range_is_refused_before_anything_is_spent(tmp_path: Path, value: int, where: str) -> None:
    bad: Any = with_label(value)
    options: dict[str, Any] = {where: ap.Public(bad) if where == "validation" else bad}
    with pytest.raises(DataError, match=f"{where}: 1 of 60 records") as refusal:
        train(tmp_path / "run", **options)
    assert "labels must be 0 to 1" in str(refusal.value)
    assert "8675309" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_what_the_loss_takes_is_taken(tmp_path: Path) -> None:
    train(tmp_path / "run", tiny_plan(epochs=1), data=with_label(-100))  # cross entropy ignores that one
    assert ledger.read(tmp_path / "run" / "ledger.jsonl").released


def test_labels_of_pixels_are_tried_too() -> None:
    model = torch.nn.Conv2d(1, 3, 1)
    inputs, targets = torch.zeros(4, 1, 2, 2), torch.zeros(4, 2, 2, dtype=torch.long)
    check_labels("data", model, CROSS_ENTROPY, inputs, targets)
    targets[1, 0, 1] = 5
    with pytest.raises(DataError, match="1 of 4 records"):
        check_labels("data", model, CROSS_ENTROPY, inputs, targets)


def test_targets_that_are_no_labels_are_left_alone() -> None:
    model = torch.nn.Linear(4, 1)
    mean_squared = per_example(torch.nn.functional.mse_loss)
    check_labels("data", model, mean_squared, torch.zeros(9, 4), torch.full((9, 1), 1e30))
    counts = per_example(lambda outputs, targets: (outputs[:, 0] - targets) ** 2)
    check_labels("data", model, counts, torch.zeros(30_000, 4), torch.arange(30_000))


def test_a_loss_that_meets_such_a_label_later_does_not_show_it() -> None:
    with pytest.raises(DataError, match="out of the range") as refusal:
        CROSS_ENTROPY(tiny_model()(torch.zeros(2, 4)), torch.tensor([0, 8675309]))
    assert "8675309" not in str(refusal.value)
