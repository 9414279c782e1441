"""`apportion select`: the cost first, one run directory, a bundle that verifies, and mistakes that name themselves."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]

COMMON = """
[data]
dataset = "wisconsin"
[budget]
epsilon = {epsilon}
delta = 1e-5
[plan]
examples = 560
batches = 2
epochs = 2
sigma0 = 4.0
[select]
{select}
[[select.candidates]]
lr = 0.2
[[select.candidates]]
name = "wide"
hidden = [20]
optimizer = "adam"
lr = 0.05
"""
REPEAT = 'kind = "repeat"\nmean_runs = 1.5\neta = 1.0\nscore_sigma = 6.0'
SPLIT = 'kind = "split"\nepsilon = 1.0\nretrain_share = 0.5'


def config(directory: Path, select: str, epsilon: float = 6.0) -> Path:
    path = directory / "selection.toml"
    path.write_text(COMMON.format(select=select, epsilon=epsilon))
    return path


@pytest.mark.parametrize("select", [REPEAT, SPLIT], ids=["repeat", "split"])
def test_a_selection_from_configuration_to_verified_bundle(apportion: Call, tmp_path: Path, select: str) -> None:
    file, run, bundle = config(tmp_path, select), tmp_path / "run", tmp_path / "bundle"
    code, printed, err = apportion("select", file, "--dry-run", "--json")
    assert code == 0, err
    foreseen = json.loads(printed)
    assert not run.exists()
    code, printed, err = apportion("select", file, "--out", run, "--processes", "1", "--json")
    assert code == 0, err
    assert "The whole selection costs" in err
    found = json.loads(printed)
    assert found["epsilon"] == pytest.approx(foreseen["epsilon"], rel=1e-3)
    assert found["candidates"] == ["lr = 0.2", "wide"]
    code, printed, err = apportion("select", "--resume", run, "--json")
    assert code == 0, err
    assert json.loads(printed) == found
    assert apportion("publish", run, "--to", bundle, "--evaluate-privately", "5")[0] == 0
    code, printed, err = apportion("verify", bundle, "--json")
    assert code == 0, printed
    assert json.loads(printed)["publication"]["hyperparameters"] == "selected"
    assert json.loads(apportion("status", run, "--json")[1])["finished"] is True


def test_a_selection_over_budget_is_refused_before_anything_is_written(apportion: Call, tmp_path: Path) -> None:
    code, _, err = apportion("select", config(tmp_path, SPLIT, epsilon=0.5), "--out", tmp_path / "run")
    assert code == 1
    assert "more than the budget" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ('kind = "best"', "kind must be one of repeat, split"),
        ('kind = "split"\nmean_runs = 4', "mean_runs belongs to kind = 'repeat'"),
        ('kind = "repeat"\nruns = 4', "runs is not known"),
        ('kind = "repeat"\nmean_runs = "many"', "must be a number"),
        ('kind = "repeat"\nmean_runs = 1', "greater than 1"),
        ('kind = "repeat"\nlaw = "uniform"', "law must be one of"),
        ('kind = "split"\n[[select.candidates]]\nepsilon = 3', "cannot set epsilon"),
        ('kind = "split"\n[[select.candidates]]\nlr = "fast"', "lr must be a float"),
        ('kind = "split"\nepsilon = 1.0\n[[select.candidates]]\nbatching = "shuffle"', "drawn by coins"),
        ('kind = "split"\nepsilon = 1.0\n[select.grid]\nlr = 3', "must give a list"),
    ],
)
def test_mistakes_in_the_section_are_named(apportion: Call, tmp_path: Path, select: str, reason: str) -> None:
    code, _, err = apportion("select", config(tmp_path, select), "--dry-run")
    assert code == 2
    assert reason in " ".join(err.split())


def test_a_grid_makes_every_combination(apportion: Call, tmp_path: Path) -> None:
    grid = SPLIT + "\n[select.grid]\nlr = [0.1, 0.3]\nhidden = [[4], []]"
    code, printed, err = apportion("select", config(tmp_path, grid), "--dry-run", "--json")
    assert code == 0, err
    names = [candidate["name"] for candidate in json.loads(printed)["candidates"]]
    assert names[2:] == [f"lr = {lr}, hidden = {hidden}" for lr in (0.1, 0.3) for hidden in ("[4]", "[]")]


def test_a_candidate_with_another_batching_or_schedule_does_not_inherit_the_sizes_of_the_common_one(
    apportion: Call, tmp_path: Path
) -> None:
    file = config(tmp_path, SPLIT + '\n[[select.candidates]]\nbatching = "poisson"\nrate = 0.25\nschedule = "uniform"')
    file.write_text(file.read_text().replace("sigma0 = 4.0", 'sigma0 = 4.0\nschedule = "exponential"\ndecay = 0.1'))
    code, printed, err = apportion("select", file, "--dry-run", "--json")
    assert code == 0, err
    trials = [candidate["trial"] for candidate in json.loads(printed)["candidates"]]
    assert trials[0]["sigma_last"] == trials[0]["sigma_first"] == 4.0
    assert trials[1]["sigma_last"] < trials[1]["sigma_first"] == 4.0


def test_questions_that_cannot_be_meant(apportion: Call, tmp_path: Path) -> None:
    file = config(tmp_path, SPLIT)
    assert apportion("select")[0] == 2
    assert "--out DIR is missing" in apportion("select", file)[2]
    assert "exists already" in apportion("select", file, "--out", tmp_path)[2]
    assert "was not begun by apportion select" in apportion("select", "--resume", tmp_path)[2]
    plain = tmp_path / "plain.toml"
    plain.write_text('[data]\ndataset = "wisconsin"\n')
    assert "no [select] section" in apportion("select", plain, "--dry-run")[2]
    assert "[select] is not a section" in apportion("train", file, "--dry-run")[2]
