"""The experiments: resumable, honest about what was run, and a page on which every number comes from a result file."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from apportion import canonical
from experiments import accountings, catalogue, kept, mnist, page, paper, running, sweeps
from experiments.__main__ import main
from experiments.experiment import Experiment, Record, Report, Result, Row, Settings, Table

EXPERIMENTS = pytest.mark.parametrize("experiment", catalogue.EXPERIMENTS, ids=lambda experiment: experiment.name)
COMPUTED = ("renyi-divergence", "epsilon-by-epoch", "epsilon-by-rate", "epsilon-by-noise", "conjectured-bound",
            "schedules", "decay-rates")  # fmt: skip


def committed(name: str) -> list[Record]:
    return kept.of_rows(kept.read(kept.RESULTS / name), catalogue.find(name).rows(False))


def test_the_page_its_tables_and_its_pictures_are_what_the_committed_trials_make_of_them() -> None:
    assert page.out_of_date() == []
    assert main(["page", "--check"]) == 0


@EXPERIMENTS
def test_no_committed_trial_is_of_other_settings_or_counted_twice(experiment: Experiment) -> None:
    records = kept.read(kept.RESULTS / experiment.name)
    assert len(committed(experiment.name)) == len(records)
    assert len({kept.key(record.settings, record.trial) for record in records}) == len(records)
    assert all(record.machine and record.finished and record.seconds >= 0 for record in records)


@EXPERIMENTS
def test_the_quick_version_runs_on_a_fresh_clone(experiment: Experiment, tmp_path: Path) -> None:
    reason = experiment.missing() or experiment.absent()
    if reason is not None:
        pytest.skip(reason)
    assert main(["run", experiment.name, "--quick", "--out", str(tmp_path)]) == 0
    report = kept.report_of(experiment, tmp_path / experiment.name, quick=True)
    assert report is not None
    for name, content in kept.files(report).items():
        assert (tmp_path / experiment.name / name).read_text() == content


@pytest.mark.parametrize("name", COMPUTED)
def test_the_command_gives_the_committed_numbers_again(name: str, tmp_path: Path) -> None:
    experiment = catalogue.find(name)
    before = {canonical.dumps(record.settings): record.result for record in committed(name)}
    shared = [row for row in experiment.rows(True) if canonical.dumps(row.settings) in before]
    assert shared
    for row in shared:
        same(experiment.compute(row.settings, tmp_path), before[canonical.dumps(row.settings)])


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            same(found[name], value)
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == pytest.approx(expected, rel=1e-6)


def toy(computed: list[Settings], stop_at: int | None = None, trials: int = 3) -> Experiment:
    def compute(settings: Settings, scratch: Path) -> Result:
        if len(computed) == stop_at:
            raise KeyboardInterrupt
        computed.append(settings)
        return {"value": settings["x"] ** 2}

    def report(records: Sequence[Record]) -> Report:
        return Report(text="", tables={"t": Table(columns=("x",), lines=[[r.settings["x"]] for r in records])})

    rows = [Row(settings={"x": 1}, trials=trials), Row(settings={"x": 2}, trials=trials), Row(settings={"x": 3})]
    return Experiment(name="toy", title="", re_runs="", rows=lambda quick: rows, compute=compute, report=report)


def test_all_rows_get_their_first_trial_before_any_gets_its_second(tmp_path: Path) -> None:
    computed: list[Settings] = []
    assert running.run(toy(computed), tmp_path) == 7
    assert [settings["x"] for settings in computed] == [1, 2, 3, 1, 2, 1, 2]


def test_an_interrupted_run_keeps_what_is_finished_and_computes_only_the_rest(tmp_path: Path) -> None:
    computed: list[Settings] = []
    with pytest.raises(KeyboardInterrupt):
        running.run(toy(computed, stop_at=4), tmp_path)
    assert len(kept.read(tmp_path)) == 4
    assert running.run(toy(computed), tmp_path) == 3
    assert len(computed) == len(kept.read(tmp_path)) == 7
    assert running.run(toy(computed), tmp_path) == 0
    assert (tmp_path / "t.csv").read_text().splitlines() == ["x", *"1112223"]


def test_a_line_cut_short_by_a_crash_costs_one_trial(tmp_path: Path) -> None:
    running.run(toy([], trials=1), tmp_path)
    trials = tmp_path / kept.TRIALS
    trials.write_bytes(trials.read_bytes()[:-20])
    assert len(kept.read(tmp_path)) == 2
    assert running.run(toy([], trials=1), tmp_path) == 1
    assert len(kept.read(tmp_path)) == 3


def test_more_trials_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    running.run(toy([]), tmp_path, trials=1)
    assert running.run(toy([]), tmp_path, trials=2) == 2


def test_an_unknown_name_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nonsense"]) == 2
    assert "epsilon-by-epoch" in capsys.readouterr().err


def test_the_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(experiment.name in printed for experiment in catalogue.EXPERIMENTS)


def test_the_figures_that_the_paper_prints_are_met() -> None:
    last = committed("epsilon-by-epoch")[-1].result
    for name, printed in paper.EPSILON_AT_400.items():
        assert last[name] == pytest.approx(printed, rel=3e-3)
    for record in committed("schedules"):
        assert len(record.result["sigmas"]) == paper.SCHEDULES[record.settings["schedule"]]["epochs"]
        assert record.result["epsilon_partition_at_least"] <= record.result["epsilon_partition"]


def test_the_counterexample_is_inside_the_papers_condition_and_found_in_two_ways() -> None:
    (record,) = [r for r in committed("conjectured-bound") if r.settings["part"] == "counterexample"]
    assert record.settings["rate"] <= record.result["largest_rate"]
    assert record.settings["order"] <= record.result["largest_order"]
    assert math.isclose(record.result["divergence"], record.result["divergence_by_binomial"], rel_tol=1e-6)
    assert record.result["divergence_by_binomial"] > record.result["bound"]


@pytest.mark.parametrize(("noise", "layers"), [("each", 2), ("scaled", 1)])
def test_noise_on_each_layer_is_charged_for_every_layer_and_the_projection_is_in_the_total(
    noise: mnist.Noise, layers: int
) -> None:
    row = mnist.rows(noise, 10, quick=False)[0]
    plan = mnist.plan_of(row.settings, 60_000)
    assert len(plan.slots) == paper.SCHEDULES["uniform"]["epochs"]
    assert plan.rho == pytest.approx(layers * paper.RHO + 1 / 512, rel=1e-12)
    assert plan.batching.steps == paper.BATCHES


@pytest.mark.parametrize("name", [name for name in paper.SCHEDULES if name != "validation"])
@pytest.mark.parametrize("noise", ["each", "scaled"])
def test_a_schedule_runs_as_many_epochs_as_the_paper_says_however_layers_are_charged(
    name: str, noise: mnist.Noise
) -> None:
    (row,) = [
        r for r in mnist.rows(noise, 10, False) if (r.settings["kind"], r.settings.get("schedule")) == ("private", name)
    ]
    assert mnist.plan_of(row.settings, 60_000).epochs == paper.SCHEDULES[name]["epochs"]


def test_the_three_accountings_are_the_papers_the_exact_one_and_the_partitions(tmp_path: Path) -> None:
    found = accountings.compute(accountings.rows(False)[0].settings, tmp_path)
    assert found["paper"] == pytest.approx(6.78, abs=5e-3)
    assert found["exact"] == pytest.approx(5.68, abs=5e-3)
    assert 0.99 * 0.43627 <= found["partition_at_least"] <= found["partition"] <= 1.005 * 0.43627
    assert found["partition"] < found["partition_with_pca"] < 0.5


@pytest.mark.parametrize("name", ["cancer", "mnist-as-worded", "mnist-honest", "three-accountings"])
def test_no_committed_run_spent_more_than_is_certified(name: str) -> None:
    for record in committed(name):
        if "rho" in record.settings:
            assert record.result["rho"] <= record.result["rho_certified"] * (1 + 1e-9)


def test_in_the_sweeps_noise_that_falls_faster_ends_sooner_and_a_fixed_time_spends_the_budget_exactly() -> None:
    plans = [sweeps.plan_of(sweeps.settings_of(sweeps.DECAY, value), 60_000) for value in sweeps.VALUES[sweeps.DECAY]]
    assert [plan.epochs for plan in plans] == sorted({plan.epochs for plan in plans}, reverse=True)
    for name in ("uniform", "time", "step", "exponential", "polynomial"):
        plan = sweeps.plan_of(sweeps.settings_of(sweeps.TIME, 30, name), 60_000)
        assert plan.epochs == 30
        assert plan.rho == pytest.approx(paper.RHO + 1 / 512, rel=1e-6)


def test_every_sweep_has_at_most_six_values_and_its_rows_are_all_different() -> None:
    assert max(map(len, sweeps.VALUES.values())) <= 6
    keys = [canonical.dumps(row.settings) for row in sweeps.rows(False)]
    assert len(set(keys)) == len(keys)


def test_no_committed_attack_finds_more_members_than_is_certified() -> None:
    """By 7 standard errors of a share of that many independent members; those of one model are not quite independent."""
    private = [record.result for record in committed("membership") if record.result["bound"] is not None]
    assert private
    for result in private:
        for attack in result["attacks"].values():
            for found, bound in zip(attack["rates"], result["bound"], strict=True):
                assert found <= bound + 7 * math.sqrt(bound * (1 - bound) / result["attacked"][0])
