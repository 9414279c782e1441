"""Law 6 for counts: a record's result is its own, so that one record more or less moves one count by one.

The models here give a record another result at another place in a batch: on purpose, or as an ordinary matrix product
does in the last bit, with rows chosen so that the last bit decides.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import apportion as ap
from apportion.errors import InvalidArgument
from apportion.randomness import RandomStream
from apportion.training import publishing, trials, validation
from apportion.training.counting import one_by_one, right_answers
from apportion.training.frozen import Projection, Standardise
from apportion.training.preparation import Preparation
from apportion.training.tensors import PrivateData

RECORDS = 40
COUNTED = {
    "published scores": lambda model, data: publishing._counted(model, PrivateData.of(data, model), EVERYTHING),
    "selection": lambda model, data: trials.counts(model, *data),
    "paid looks": lambda model, data: look(model, data),
}
EVERYTHING = ap.PrivateEvaluation(sigma=1.0, measures=("confusion", "calibration"), bins=5)


class ByPlace(torch.nn.Module):
    """Whether a record is of class 0 or 1 depends on its place alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        second = (torch.arange(len(inputs)) % 2).to(inputs)
        return torch.stack([self.weight * (1 - second), self.weight * second], dim=1)


def by_place() -> tuple[torch.nn.Module, Tensor, Tensor]:
    return ByPlace().eval(), torch.randn(RECORDS, 3), torch.arange(RECORDS) % 2


def ties() -> tuple[torch.nn.Module, Tensor, Tensor]:
    """Rows in which two classes tie but for rounding, each labelled with its answer at its place."""
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(30, 10)
    with torch.no_grad():
        model.weight.copy_(torch.randn(10, 30, generator=generator))
        model.bias.zero_()
        candidates = torch.randn(1000, 30, generator=generator)
        best = model(candidates).topk(2, 1)
        towards = model.weight[best.indices[:, 1]] - model.weight[best.indices[:, 0]]
        gap = best.values[:, 0] - best.values[:, 1]
        tied = candidates + (gap / towards.square().sum(1))[:, None] * towards
        fickle = [row for row in tied if len(model(row.repeat(7, 1)).argmax(1).unique()) > 1]
        rows = (fickle + list(tied))[
            :RECORDS
        ]  # a machine whose products do not depend on the place has only the others
        inputs = torch.stack(rows)
        return model.eval(), inputs, model(inputs).argmax(1)


MODELS = {"by place": by_place, "ties": ties}


def look(model: torch.nn.Module, data: tuple[Tensor, Tensor]) -> tuple[int]:
    """The count of a paid look, without its noise."""
    scores: list[float] = []
    seen = object.__new__(validation.Validation)
    seen._source = ap.PaidLooks(data=data, sigma=1.0, examples=1)
    seen._model, seen._data, seen._at_once = model, PrivateData.of(data, model), 16
    book: Any = SimpleNamespace(noise="float", append_event=lambda event: None, append_score=scores.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "rounded_normals", lambda count, *_: np.zeros(count, np.int64))
        seen.record(book, RandomStream())
    return (int(scores[0]),)


def cells(counts: Any) -> list[np.ndarray]:
    """All histograms in a result; a record lies in at most one cell of each."""
    if isinstance(counts, tuple):
        return [np.array(counts)]
    return [counts.answers, *counts.tables.values()]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("count", COUNTED)
def test_law_6_without_any_one_record_one_cell_of_a_histogram_is_less_by_one(count: str, model: str) -> None:
    found, inputs, targets = MODELS[model]()
    counted = COUNTED[count]
    whole = cells(counted(found, (inputs, targets)))
    for left_out in range(RECORDS):
        kept = torch.arange(RECORDS) != left_out
        # Both a view (rows stay at their addresses) and a copy.
        neighbours = [(inputs[kept], targets[kept])] + [(inputs[1:], targets[1:])] * (left_out == 0)
        for neighbour in neighbours:
            for before, after in zip(whole, cells(counted(found, neighbour)), strict=True):
                assert np.abs(before - after).sum() <= 1


def test_law_6_what_enters_a_second_component_is_each_records_own() -> None:
    class Fickle(Projection):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) + torch.arange(len(inputs)).to(inputs)[:, None]

    components = (ap.PrincipalComponents(dimensions=2, sigma=50.0), ap.Scaling(sigma=50.0, low=-1, high=1))
    plan = ap.TrainingPlan(
        budget=ap.Budget(rho=10.0),
        examples=RECORDS,
        batching=ap.Partition(batches=2),
        schedule=ap.Uniform(sigma0=2.0),
        epochs=1,
        clip=1.0,
        components=components,
    )
    model = torch.nn.Sequential(Fickle(4, 2), Standardise(2), torch.nn.Linear(2, 2))
    inputs, targets = torch.randn(RECORDS, 4), torch.zeros(RECORDS, dtype=torch.long)
    preparation = Preparation(model, torch.nn.functional.cross_entropy, plan, inputs)

    def entering(kept: Tensor) -> np.ndarray:
        records = PrivateData.of((inputs[kept], targets[kept]), model)
        return np.concatenate([rows for rows, _ in preparation._entering(records, 1)])

    whole = entering(torch.arange(RECORDS) >= 0)
    assert np.array_equal(whole, inputs[:, :2].double().numpy())
    for left_out in (0, 7, RECORDS - 1):
        assert np.array_equal(entering(torch.arange(RECORDS) != left_out), np.delete(whole, left_out, axis=0))


def test_results_do_not_depend_on_how_records_come_in_parts() -> None:
    model, inputs, targets = ties()
    split = [(inputs[:3], targets[:3]), (inputs[:0], targets[:0]), (inputs[3:], targets[3:])]
    one, other = (
        torch.cat([scores for scores, _ in one_by_one(model, parts)]) for parts in ([(inputs, targets)], split)
    )
    assert torch.equal(one, other)
    assert list(one_by_one(model, [(inputs[:0], targets[:0])])) == []


def test_a_function_that_returns_its_input_is_not_overwritten_by_the_next_record() -> None:
    inputs = torch.randn(5, 3)
    assert torch.equal(next(one_by_one(torch.nn.Identity(), [(inputs, inputs)]))[0], inputs)


def test_counting_restores_the_modes_of_the_model_also_when_it_fails() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
    model[0].eval()
    modes = [module.training for module in model.modules()]
    right_answers(model, [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))])
    with pytest.raises(InvalidArgument, match="class numbers"):
        right_answers(model, [(torch.randn(4, 3), torch.zeros(4))])
    assert [module.training for module in model.modules()] == modes
