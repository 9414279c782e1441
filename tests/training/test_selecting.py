"""A selection as a whole: one event first, draws kept, interrupted trials run afresh, losers gone, bundle verified."""

import json
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import sgd, tiny_data, tiny_model

import apportion as ap
from apportion import ledger
from apportion.bundle import claims
from apportion.errors import BundleError, InvalidArgument, RunError
from apportion.events import PoissonLaw, TruncatedNegativeBinomial
from apportion.selection_plan import Candidate, RepeatRuns, SelectionPlan, SplitParts
from apportion.training import Configuration, FinishedRun, select, selecting, trials

RECORDS = 60
LAW = TruncatedNegativeBinomial(eta=1.0, gamma=0.5)


def training(sigma: float, examples: int) -> ap.TrainingPlan:
    return ap.TrainingPlan(
        budget=ap.Budget(rho=9.0),
        examples=examples,
        batching=ap.Partition(batches=2),
        schedule=ap.Uniform(sigma0=sigma),
        epochs=2,
        clip=1.0,
    )


def repeat_plan(law: Any = LAW) -> SelectionPlan:
    return SelectionPlan(
        budget=ap.Budget(epsilon=30.0, delta=1e-5),
        examples=RECORDS,
        method=RepeatRuns(runs=law, sigma=4.0),
        candidates=(
            Candidate(name="loud", trial=training(4.0, 48), description="small"),
            Candidate(name="quiet", trial=training(6.0, 48), description="large"),
        ),
        score_share=0.2,
    )


def split_plan(retraining: bool = True) -> SelectionPlan:
    candidates = tuple(
        Candidate(
            name=name,
            trial=training(sigma, 20),
            retraining=training(sigma, RECORDS) if retraining else None,
            description=name,
        )
        for name, sigma in (("loud", 4.0), ("quiet", 6.0))
    )
    return SelectionPlan(
        budget=ap.Budget(epsilon=30.0, delta=1e-5),
        examples=RECORDS,
        method=SplitParts(epsilon=1.0),
        candidates=candidates,
        score_share=1 / 3,
    )


def configuration(**changes: Any) -> Configuration:
    values = {"model": tiny_model, "optimizer": sgd, "loss": torch.nn.functional.cross_entropy}
    return Configuration(**(values | changes))


def chosen(out: Path, plan: SelectionPlan, **options: Any) -> FinishedRun:
    return select([configuration()] * 2, tiny_data(RECORDS), plan, out=out, progress=False, **options)


class Killed(Exception):
    """Stands for the end of a process."""


def killed_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """The `call`-th training from now on does not live to see its end."""
    ordinary, calls = trials.fit, iter(range(1000))

    def fit(*arguments: Any, **options: Any) -> Any:
        run = ordinary(*arguments, **options)
        if next(calls) == call:
            raise Killed
        return run

    monkeypatch.setattr(trials, "fit", fit)


def kinds(run: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in (run / "ledger.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("plan", [repeat_plan(), split_plan(), split_plan(False)], ids=["repeat", "split", "parts"])
def test_a_selection_publishes_a_bundle_that_verifies(tmp_path: Path, plan: SelectionPlan) -> None:
    run = chosen(tmp_path / "run", plan)
    retrained = plan.candidates[0].retraining is not None
    assert kinds(run.directory) == ["plan", "event", "choice", *["event"] * retrained, "release"]
    certificate = run.publish(tmp_path / "bundle", hyperparameters="selected")
    assert certificate.guarantee.epsilon == plan.guarantee.epsilon
    found = ap.verify(tmp_path / "bundle")
    assert found.verified, found.problems
    card = (tmp_path / "bundle" / "README.md").read_text()
    claimed = certificate.to_json()["selection"]
    assert f"Chosen: {claimed['candidates'][claimed['chosen']]}" in card
    assert f"chosen candidate: {claimed['configuration']}" in card
    assert "chosen by a private selection that is recorded in the ledger" in card
    assert (claimed["score"] is None) == isinstance(plan.method, SplitParts)


@pytest.mark.parametrize("change", ["chosen", "removed", "score", "candidates"])
def test_a_certificate_that_tells_of_another_selection_does_not_verify(tmp_path: Path, change: str) -> None:
    run = chosen(tmp_path / "run", repeat_plan())
    claimed = run.certificate().to_json()
    claims.check(claimed, run.certificate())
    match change:
        case "chosen":
            claimed["selection"]["chosen"] = 1 - claimed["selection"]["chosen"]
        case "removed":
            del claimed["selection"]
        case "score":
            claimed["selection"]["score"]["right"] += 1
        case "candidates":
            claimed["selection"]["candidates"].append("another")
    with pytest.raises(BundleError, match="selection"):
        claims.check(claimed, run.certificate())


def test_nothing_that_leaves_tells_the_number_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two selections that differ in K alone: their bundles have the same files, fields and numbers of lines."""
    shapes = []
    for runs in (1, 3):
        monkeypatch.setattr(selecting, "draw_candidates", lambda plan, stream, runs=runs: (1,) * runs)
        out = tmp_path / f"run{runs}"
        chosen(out, repeat_plan()).publish(tmp_path / f"bundle{runs}", name="same")
        assert not (out / "trials").exists()
        lines = [json.loads(line) for line in (tmp_path / f"bundle{runs}" / "ledger.jsonl").read_text().splitlines()]
        plan = lines[0]["body"]["plan"]
        names = sorted(path.name for path in (tmp_path / f"bundle{runs}").iterdir())
        left = sorted(path.name for path in out.iterdir())
        shapes.append((names, left, plan, [line["body"].keys() for line in lines], lines[1]["body"]))
    assert shapes[0] == shapes[1]


def test_the_event_is_on_disk_before_the_first_candidate_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "fit", lambda *a, **o: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        chosen(tmp_path / "run", split_plan())
    assert kinds(tmp_path / "run") == ["plan", "event"]
    recorded = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert ap.certify(recorded).guarantee.epsilon == split_plan().guarantee.epsilon


def test_a_resumed_selection_goes_on_with_the_same_draws_and_runs_afresh_only_what_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selecting, "draw_candidates", lambda plan, stream: (1, 0, 1))
    with monkeypatch.context() as patch:
        killed_at(patch, 1)
        with pytest.raises(Killed):
            chosen(tmp_path / "run", repeat_plan())
    trial = tmp_path / "run" / "trials"
    drawn, first = (trial / "drawn.json").read_bytes(), (trial / "000000.json").read_bytes()
    interrupted = (trial / "000001" / "ledger.jsonl").read_bytes()
    assert not (trial / "000001.json").exists()
    run = chosen(tmp_path / "run", repeat_plan(), resume=True, keep_private=True)
    assert (trial / "drawn.json").read_bytes() == drawn
    assert (trial / "000000.json").read_bytes() == first
    assert (trial / "000001" / "ledger.jsonl").read_bytes() != interrupted
    assert kinds(run.directory) == ["plan", "event", "choice", "release"]


def test_draws_that_are_lost_are_not_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        killed_at(patch, 0)
        with pytest.raises(Killed):
            chosen(tmp_path / "run", repeat_plan())
    (tmp_path / "run" / "trials" / "drawn.json").unlink()
    with pytest.raises(RunError, match="must not be drawn a second time"):
        chosen(tmp_path / "run", repeat_plan(), resume=True)


def test_once_a_choice_is_on_record_no_other_run_can_be_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner's result is lost: running it again would release a second output beside the recorded choice."""
    monkeypatch.setattr(selecting, "draw_candidates", lambda plan, stream: (1, 0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(selecting._Selection, "weights", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            chosen(tmp_path / "run", repeat_plan())
    results = {path: path.read_bytes() for path in (tmp_path / "run" / "trials").glob("0*.json")}
    for path, content in results.items():
        path.unlink()
        with pytest.raises(RunError, match="second output"):
            chosen(tmp_path / "run", repeat_plan(), resume=True)
        path.write_bytes(json.dumps({"right": 10**6, "wrong": 0}).encode())
        with pytest.raises(RunError, match="second output"):
            chosen(tmp_path / "run", repeat_plan(), resume=True)
        path.write_bytes(content)
    run = chosen(tmp_path / "run", repeat_plan(), resume=True)
    assert kinds(run.directory) == ["plan", "event", "choice", "release"]


def test_a_choice_is_made_once_however_often_the_retraining_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killed_at(patch, 2)
        with pytest.raises(Killed):
            chosen(tmp_path / "run", split_plan())
    before = ledger.read(tmp_path / "run" / "ledger.jsonl").choice
    monkeypatch.setattr(selecting, "exponential_mechanism", lambda *arguments: pytest.fail("chosen again"))
    run = chosen(tmp_path / "run", split_plan(), resume=True)
    assert ledger.read(run.directory / "ledger.jsonl").choice == before


def test_losers_are_deleted_unless_asked_for(tmp_path: Path) -> None:
    lost = chosen(tmp_path / "run", split_plan()).directory
    assert not any((lost / name).exists() for name in ("trials", "retraining"))
    kept = chosen(tmp_path / "kept", split_plan(), keep_private=True).directory
    assert {path.name for path in (kept / "trials").iterdir() if path.is_dir()} == {"000000", "000001"}


def test_several_processes_do_what_one_does(tmp_path: Path) -> None:
    run = chosen(tmp_path / "run", split_plan(False), processes=2, keep_private=True)
    assert kinds(run.directory) == ["plan", "event", "choice", "release"]
    assert {path.suffix for path in (run.directory / "trials").iterdir()} == {"", ".json", ".npy"}


PROGRAM = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
import test_selecting as t
if __name__ == "__main__":
    slow = [t.configuration(model=t.model_that_takes_long_in_a_worker)] * 2
    t.select(slow, t.tiny_data(t.RECORDS), t.split_plan(), out=Path(sys.argv[1]), processes=2, progress=False)
"""


def model_that_takes_long_in_a_worker() -> Any:
    if multiprocessing.parent_process() is not None:
        time.sleep(600)
    return tiny_model()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_a_selection_that_was_killed_leaves_no_worker_behind_and_goes_on(tmp_path: Path) -> None:
    here = Path(__file__).parent
    (tmp_path / "program.py").write_text(PROGRAM)
    run = tmp_path / "run"
    program = [sys.executable, str(tmp_path / "program.py"), str(run), str(here), str(here.parent)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers: list[Path] = []
    while len(workers) < 2:
        assert process.poll() is None
        time.sleep(0.1)
        found = [Path(f"/proc/{child}/cmdline") for child in children.read_text().split()]
        workers = [worker for worker in found if b"spawn_main" in _read(worker)]
    process.kill()
    process.wait()
    assert kinds(run) == ["plan", "event"]
    for _ in range(600):
        if not any(b"spawn_main" in _read(worker) for worker in workers):
            break
        time.sleep(0.1)
    else:
        pytest.fail("a worker outlived its parent")
    finished = chosen(run, split_plan(), resume=True)
    assert kinds(finished.directory) == ["plan", "event", "choice", "event", "release"]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_poisson_number_of_runs_may_be_none_and_then_nothing_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selecting, "draw_candidates", lambda plan, stream: ())
    with pytest.raises(RunError, match="no run at all"):
        chosen(tmp_path / "run", repeat_plan(PoissonLaw(mean=2.0)))
    assert kinds(tmp_path / "run") == ["plan", "event", "choice"]


def test_each_record_is_trained_on_or_scored_never_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record marked by its first feature: what each training saw, and what was scored, are disjoint."""
    inputs, targets = tiny_data(RECORDS)
    inputs[:, 0] = torch.arange(RECORDS)
    seen: list[set[float]] = []
    ordinary_fit, ordinary_counts = trials.fit, trials.counts

    def fit(model: Any, data: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(set(data[0][:, 0].tolist()))
        return ordinary_fit(model, data, *arguments, **options)

    def counts(model: Any, inputs: Any, targets: Any) -> Any:
        scored.append(set(inputs[:, 0].tolist()))
        return ordinary_counts(model, inputs, targets)

    scored: list[set[float]] = []
    monkeypatch.setattr(trials, "fit", fit)
    monkeypatch.setattr(trials, "counts", counts)
    select([configuration()] * 2, (inputs, targets), split_plan(False), out=tmp_path / "run", progress=False)
    assert scored[0] == scored[1]
    everything = Counter(record for part in (*seen, scored[0]) for record in part)
    assert everything == Counter(range(RECORDS))


@pytest.mark.parametrize("row", [0.0, 1e30, float("inf"), float("nan")])
def test_one_record_more_moves_one_count_by_one_whatever_it_holds(row: float) -> None:
    inputs, targets = tiny_data(30)
    model = tiny_model()
    before = trials.counts(model, inputs, targets)
    more = torch.cat([inputs, torch.full((1, 4), row)]), torch.cat([targets, torch.tensor([1])])
    after = trials.counts(model, *more)
    assert sorted((after[0] - before[0], after[1] - before[1])) == [0, 1]
    assert trials.counts(model, inputs[:0], targets[:0]) == (0, 0)


def test_a_model_that_was_trained_before_is_refused(tmp_path: Path) -> None:
    shared = tiny_model()
    with pytest.raises(RunError, match="must make a new one every time"):
        select(
            [configuration(model=lambda: shared)] * 2,
            tiny_data(RECORDS),
            split_plan(False),
            out=tmp_path / "run",
            progress=False,
        )


def test_what_cannot_be_trained_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    floats = (tiny_data(RECORDS)[0], torch.rand(RECORDS))
    for broken, data in (
        (configuration(loss=torch.nn.functional.mse_loss), floats),
        (configuration(model=lambda: torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))), None),
    ):
        with pytest.raises(ap.ApportionError):
            select([broken] * 2, data or tiny_data(RECORDS), split_plan(), out=tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()
    with pytest.raises(InvalidArgument, match="seeded"):
        configuration(options={"seeded_for_research_only": 1})


def test_losers_that_cannot_be_deleted_are_not_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / selecting.TRIALS).mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(selecting.shutil, "rmtree", lambda path, ignore_errors: None)  # as where permissions are lacking
        with pytest.raises(RunError, match="could not be deleted"):
            selecting.forget_losers(tmp_path)
    selecting.forget_losers(tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("keep_private", [False, True])
def test_a_selection_killed_right_after_its_release_forgets_the_losers_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_private: bool
) -> None:
    def killed(run: Path) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(selecting, "forget_losers", killed)
        with pytest.raises(Killed):
            chosen(tmp_path / "run", split_plan(False))
    assert (tmp_path / "run" / "trials").exists()
    with pytest.raises(RunError, match="is finished"):
        chosen(tmp_path / "run", split_plan(False), resume=True, keep_private=keep_private)
    assert (tmp_path / "run" / "trials").exists() == keep_private
