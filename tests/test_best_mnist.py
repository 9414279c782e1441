"""The best of MNIST: what is claimed was certified, and what was chosen was chosen without the test records."""

import numpy as np
import pytest

from experiments import best_mnist, kept
from experiments.experiment import Record

ROWS = best_mnist.rows(False)


def committed() -> list[Record]:
    return kept.of_rows(kept.read(kept.RESULTS / best_mnist.NAME), ROWS)


def test_configurations_were_tried_on_training_records_alone_and_all_are_on_record() -> None:
    tried = kept.lines_of(best_mnist.TUNING)
    assert len(tried) >= 20
    assert {one["part"] for one in tried} == {"validation"}
    assert {one["how"] for one in tried} <= {"simulated", "trained"}
    assert all(0 <= one["accuracy"] <= 1 for one in tried)


def test_no_committed_model_is_certified_for_more_than_its_budget() -> None:
    for record in committed():
        if record.settings["epsilon"] is not None:
            assert 0.99 * record.settings["epsilon"] <= record.result["epsilon"] <= record.settings["epsilon"] * 1.001
            assert record.result["adjacency"] == "add-remove"


def test_tuning_sees_training_records_alone_and_scores_those_it_did_not_train_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training, test = (np.arange(50), np.arange(50)), (np.arange(100, 110), np.arange(100, 110))
    monkeypatch.setattr(best_mnist, "parts", lambda model, records: (training, test))
    monkeypatch.setattr(best_mnist, "VALIDATION_RECORDS", 20)
    settings = {"model": best_mnist.LINEAR, "records": 50}
    (trained, _), (scored, _) = best_mnist.divided({**settings, "part": "validation"})
    assert (trained.tolist(), scored.tolist()) == (list(range(30)), list(range(30, 50)))
    assert best_mnist.divided({**settings, "part": "test"}) == (training, test)
