"""A rehearsal says what a run would be like, and leaves no trace."""

from pathlib import Path

import pytest
import torch
from conftest import sgd, tiny_data, tiny_model, tiny_plan

from apportion import outlook
from apportion.errors import IncompatibleModel
from apportion.training import rehearse
from apportion.training.rehearsal import _Timing


def test_nothing_is_written_and_the_model_is_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, seeds = tiny_model(), torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = rehearse(model, tiny_data(), tiny_plan(), loss=torch.nn.functional.cross_entropy, optimizer=sgd)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), seeds)
    assert not list(tmp_path.iterdir())
    assert found[0].change == "as planned"
    assert found[0].signal == outlook.signal(tiny_plan(), 4 * 5 + 5 + 5 * 2 + 2)
    assert all(prospect.seconds > 0 for prospect in found)


def test_what_fit_would_refuse_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    with pytest.raises(IncompatibleModel, match="GroupNorm"):
        rehearse(model, tiny_data(), tiny_plan(), loss=torch.nn.functional.cross_entropy, optimizer=sgd)


def test_seconds_are_those_of_steps_and_of_examples() -> None:
    signal = outlook.signal(tiny_plan(), 10)
    assert _Timing(0.5, 0.01).seconds(signal, 60) == pytest.approx(6 * 0.5 + 2 * 60 * 0.01)
