"""Private evaluation: sensitivity, noise, scores against ordinary ones, and error bars that include the noise."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tiny_data, tiny_model, tiny_plan, train
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import apportion as ap
from apportion import canonical, plain_words, scores
from apportion import ledger as ledgers
from apportion.components import evaluation
from apportion.errors import InvalidArgument, LedgerError, RunError

TAIL = 6.2  # standard errors: a normal exceeds this with probability 6e-10
EVERYTHING = ap.PrivateEvaluation(sigma=3.0, measures=("confusion", "calibration", "auroc"), bins=5)


def counted(logits: np.ndarray, targets: np.ndarray, component: ap.PrivateEvaluation = EVERYTHING) -> evaluation.Counts:
    return evaluation.tables_of([(logits, targets)], logits.shape[1], component)


def vector(counts: evaluation.Counts) -> np.ndarray:
    return np.concatenate([counts.answers, *(table.ravel() for table in counts.tables.values())])


entries = st.one_of(st.sampled_from([0.0, 1e308, -1e308, math.nan, math.inf, -math.inf]), st.floats(-5, 5))


@pytest.mark.parametrize("classes", [2, 4])
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_one_record_moves_all_tables_together_by_at_most_the_root_of_their_number(classes: int, data: Any) -> None:
    def draw(records: int) -> tuple[np.ndarray, np.ndarray]:
        logits = data.draw(st_numpy.arrays(np.float64, (records, classes), elements=entries))
        return logits, data.draw(st_numpy.arrays(np.int64, records, elements=st.integers(-1, classes)))

    (rows, labels), (extra, label), (other, another) = draw(4), draw(1), draw(1)
    before = vector(counted(rows, labels))
    after = vector(counted(np.concatenate([rows, extra]), np.concatenate([labels, label])))
    replaced = vector(counted(np.concatenate([rows, other]), np.concatenate([labels, another])))
    tables = scores.number_of_tables(counted(rows, labels).tables)
    assert tables == (4 if classes == 2 else 7)
    assert ((after - before) ** 2).sum() <= tables
    assert ((after - replaced) ** 2).sum() <= 2 * tables


def problem(records: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(records, classes)) * 2
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return logits, np.array([generator.choice(classes, p=row) for row in chances])


def stated(counts: evaluation.Counts, sigma: float = 1e-9) -> dict[str, Any]:
    tables = {name: table.tolist() for name, table in counts.tables.items()}
    return {"right": int(counts.answers[0]), "wrong": int(counts.answers[1]), "sigma": sigma, "tables": tables}


def exact_auroc(chance: np.ndarray, member: np.ndarray) -> float:
    inside, outside = chance[member], chance[~member]
    ranks = (inside[:, None] > outside[None]).mean() + (inside[:, None] == outside[None]).mean() / 2
    return float(ranks)


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_exact_tables_are_the_ordinary_ones(classes: int) -> None:
    logits, targets = problem(3000, classes)
    component = ap.PrivateEvaluation(sigma=1.0, measures=("confusion", "calibration", "auroc"), bins=200)
    counts = counted(logits, targets, component)
    found = scores.scores(stated(counts))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    predicted = logits.argmax(axis=1)
    assert found["accuracy"].value == pytest.approx((predicted == targets).mean())
    compared = [1] if classes == 2 else range(classes)
    expected = np.mean([exact_auroc(chances[:, k], targets == k) for k in compared])
    assert found["auroc"].value == pytest.approx(expected, abs=2e-3)
    for k in range(classes):
        assert found[f"recall of class {k}"].value == pytest.approx((predicted[targets == k] == k).mean())
        assert counts.tables["confusion"][k].sum() == (targets == k).sum()
    confidence = chances.max(axis=1)
    gap = confidence.mean() - (predicted == targets).mean()
    assert found["overconfidence"].value == pytest.approx(gap, abs=5e-3)
    assert found["overconfidence"].value < 4 * found["overconfidence"].error  # these probabilities are calibrated
    total = sum(abs(confidence[b].mean() - hit.mean()) * len(hit) for b, hit in _bins(confidence, predicted == targets))
    coarse = counted(logits, targets, ap.PrivateEvaluation(sigma=1.0, measures=("calibration",), bins=10))
    assert scores.scores(stated(coarse))["calibration error"].value == pytest.approx(total / 3000, abs=0.03)


def _bins(confidence: np.ndarray, hit: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    place = np.minimum((confidence * 10).astype(int), 9)
    return [(place == b, hit[place == b]) for b in range(10) if (place == b).any()]


def test_error_bars_are_the_spread_over_repetitions_of_data_and_noise() -> None:
    """A simulation as second source: draw records and noise anew, and compare the scores' spread with their errors."""
    generator = np.random.default_rng(4)
    logits, targets = problem(20_000, 2)
    drawn: dict[str, list[scores.Score]] = {}
    for _ in range(300):
        rows = generator.choice(len(logits), 800)
        counts = counted(logits[rows], targets[rows])
        noise = scores.deviation(4.0, counts.tables)
        noisy = evaluation.Counts(
            answers=counts.answers + np.rint(generator.normal(0, noise, 2)).astype(np.int64),
            tables={
                name: table + np.rint(generator.normal(0, noise, table.shape)).astype(np.int64)
                for name, table in counts.tables.items()
            },
        )
        for name, score in scores.scores(stated(noisy, sigma=4.0)).items():
            drawn.setdefault(name, []).append(score)
    for name in ("accuracy", "auroc", "recall of class 0", "overconfidence"):
        spread = np.std([score.value for score in drawn[name]])
        claimed = np.mean([score.error for score in drawn[name]])
        assert claimed == pytest.approx(spread, rel=0.25), name  # 6 standard errors of a spread over 300
    without = scores.scores(stated(counted(logits[:800], targets[:800])))["accuracy"].error
    assert without == pytest.approx(math.sqrt(0.82 * 0.18 / 800), rel=0.1)
    assert np.mean([score.error for score in drawn["accuracy"]]) > 1.1 * without


def test_what_the_noise_drowned_has_no_score() -> None:
    drowned = {
        "right": -3,
        "wrong": 2,
        "sigma": 5.0,
        "tables": {"auroc": [[[1, -4], [2, 2]]], "calibration": [[-5], [2]]},
    }
    assert scores.scores(drowned) == {}


@pytest.mark.parametrize("row", [[3.0, -1.0], [math.nan, 0.0], [math.inf, 1.0], [1e308, -1e308]])
def test_replayed_on_a_neighbour_the_released_tables_move_by_that_record_alone(
    kept: Path, tmp_path: Path, row: Any
) -> None:
    logits, targets = problem(30, 2)
    released = []
    for number, records in enumerate((30, 31)):
        shutil.copytree(kept / "run", tmp_path / str(number))
        run, generator = tmp_path / str(number), np.random.default_rng(8)
        counts = counted(np.concatenate([logits, [row]])[:records], np.append(targets, 1)[:records])
        found = evaluation.release(
            run / "ledger.jsonl", run / "lock", EVERYTHING, counts, on_top_of_the_plan=True,
            normals=lambda count, deviation, _, drawn=generator: np.rint(drawn.normal(0, deviation, count)).astype(int),
        )  # fmt: skip
        assert found.tables is not None
        tables = [np.ravel(table) for table in found.tables.values()]
        released.append(np.concatenate([[found.right, found.wrong], *tables]))
    assert 1 <= ((released[1] - released[0]) ** 2).sum() <= 4


@pytest.fixture
def evaluated(tmp_path: Path) -> Any:
    plan = tiny_plan(components=(EVERYTHING,), budget=ap.Budget(epsilon=4.0, delta=1e-5))
    run = train(tmp_path / "run", plan)
    return run, plan, run.evaluate(tiny_model(), tiny_data())


def test_a_planned_evaluation_is_inside_the_budget_and_its_tables_are_published(evaluated: Any, tmp_path: Path) -> None:
    run, plan, found = evaluated
    assert {"accuracy", "auroc", "calibration error", "overconfidence"} >= set(found) - {
        "recall of class 0", "recall of class 1",
    }  # fmt: skip
    certificate = run.publish(tmp_path / "bundle")
    assert certificate.guarantee.epsilon == plan.guarantee.epsilon
    assert ap.verify(tmp_path / "bundle").verified
    published = canonical.loads((tmp_path / "bundle" / "certificate.json").read_bytes())
    (entry,) = published["evaluations"]
    assert entry["sigma"] == 3.0
    assert {name: np.shape(table) for name, table in entry["tables"].items()} == {
        "confusion": (2, 2), "calibration": (2, 5), "auroc": (1, 2, 5),
    }  # fmt: skip
    assert "standard deviation 6" in plain_words.words(published)  # 3 times the root of four tables
    if "accuracy" in found:
        assert f"accuracy {found['accuracy']}" in plain_words.words(published)
    with pytest.raises(RunError, match="no evaluation that has not run"):
        run.evaluate(tiny_model(), tiny_data())


def test_an_evaluation_that_did_not_run_is_paid_for_all_the_same(tmp_path: Path) -> None:
    plan = tiny_plan(components=(EVERYTHING,), budget=ap.Budget(epsilon=4.0, delta=1e-5))
    run = train(tmp_path / "run", plan)
    assert run.certificate().guarantee.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-12)
    assert run.publish(tmp_path / "bundle").to_json()["components"][1]["purpose"] == "evaluation"


def test_an_evaluation_that_its_event_or_its_plan_does_not_cover_is_refused(evaluated: Any) -> None:
    path = evaluated[0].directory / "ledger.jsonl"
    lines = [canonical.loads(line) for line in path.read_bytes().splitlines()]
    assert ledgers.parse(rechained(lines)).evaluations

    undeclared = [*lines[:-1], {**lines[-1], "body": {**lines[-1]["body"], "tables": {}}}]
    with pytest.raises(LedgerError, match="not the measures"):
        ledgers.parse(rechained(undeclared))

    cheap = {"kind": "gaussian-release", "sigma": 50.0, "replace_one": 1.0, "purpose": "evaluation"}
    on_top = [*lines, {"kind": "event", "body": {"slot": None, "event": cheap}}, lines[-1]]
    with pytest.raises(LedgerError, match="moves two counts"):
        ledgers.parse(rechained(on_top))


def rechained(lines: list[dict[str, Any]]) -> bytes:
    """These lines as a valid chain, whatever they say."""
    previous, whole = ledgers.START, b""
    for index, line in enumerate(lines):
        content = {"index": index, "previous": previous, "kind": line["kind"], "body": line["body"]}
        previous = ledgers.seal(content)
        whole += canonical.dumps({**content, "hash": previous}).encode() + b"\n"
    return whole


def test_an_evaluation_of_the_words_before_there_were_tables_keeps_them() -> None:
    old = {"evaluations": [{"right": 90, "wrong": 10, "sigma": 5.0}]}
    assert plain_words.evaluation_in_words(old) == (
        "; and a noisy test score: about 90 right and 10 wrong answers on held-out records (accuracy about 0.9), each "
        "count with Gaussian noise of standard deviation 5"
    )


def test_the_noise_of_every_count_has_the_stated_law(tmp_path: Path) -> None:
    component = ap.PrivateEvaluation(sigma=3.0, measures=("confusion", "calibration"), bins=2)
    plan = tiny_plan(components=(component,), budget=ap.Budget(rho=1.0))
    run = train(tmp_path / "run", plan)
    nothing = evaluation.no_counts(300, component)
    found = evaluation.release(run.directory / "ledger.jsonl", run.directory / "lock", component, nothing)
    assert found.tables is not None
    noise = np.array(found.tables["confusion"], float).ravel() / (3 * math.sqrt(3))
    assert abs(noise.mean()) < TAIL / math.sqrt(len(noise))
    rounding = 1 / 12 / 27
    assert abs((noise**2).mean() - 1 - rounding) < TAIL * math.sqrt(2 / len(noise))
    assert abs((noise**4).mean() - 3) < TAIL * math.sqrt(96 / len(noise)) + 7 * rounding
    from scipy.special import ndtr

    steps = np.sort(noise) + 0.5 / (3 * math.sqrt(3))  # P(round(N) ≤ n) = Φ(n + ½)
    empirical = np.searchsorted(np.sort(noise), np.sort(noise), side="right") / len(noise)
    assert np.abs(ndtr(steps) - empirical).max() < math.sqrt(math.log(2 / 1e-9) / 2 / len(noise))


def test_the_event_is_on_disk_before_the_noise_is_drawn(tmp_path: Path) -> None:
    component = ap.PrivateEvaluation(sigma=3.0)
    run = train(tmp_path / "run", tiny_plan(components=(component,), budget=ap.Budget(epsilon=4.0, delta=1e-5)))
    seen: list[int] = []

    def watching(count: int, deviation: float, stream: Any) -> np.ndarray:
        assert deviation == 3.0
        recorded = ledgers.read(run.directory / "ledger.jsonl")
        seen.append(recorded.used_components)
        assert not recorded.evaluations
        return np.zeros(count, np.int64)

    found = evaluation.release(
        run.directory / "ledger.jsonl", run.directory / "lock", component, counted(*problem(50, 2), component),
        normals=watching,
    )  # fmt: skip
    assert seen == [1]
    assert found.right + found.wrong == 50


@pytest.mark.parametrize(
    "tables",
    [
        {"other": [[1]]}, {"confusion": [[1, 2]]}, {"confusion": [[1, 2], [3]]}, {"calibration": [[1.5], [2]]},
        {"auroc": [[[1], [2], [3]]]}, {"auroc": [[1], [2]]}, {"confusion": []}, {"calibration": [[True], [2]]}, None, 7,
    ],
)  # fmt: skip
def test_tables_of_another_shape_are_no_ledger(run: Any, tables: Any) -> None:
    from apportion.recording import LedgerWriter

    with LedgerWriter.reopen(run.directory / "ledger.jsonl") as writer:
        writer.append_event(EVERYTHING.event)
        writer._append("evaluation", {"right": 1, "wrong": 2, "tables": tables})
    with pytest.raises(LedgerError):
        ledgers.read(run.directory / "ledger.jsonl")


def test_what_cannot_be_meant_is_refused() -> None:
    for wrong in ({"sigma": 0.0}, {"measures": ("loss",)}, {"measures": ("auroc", "auroc")}, {"bins": 10**6}):
        with pytest.raises(InvalidArgument):
            ap.PrivateEvaluation(**({"sigma": 1.0} | wrong))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="last of the components"):
        tiny_plan(components=(EVERYTHING, ap.ClassWeights(sigma=9.0)))
    with pytest.raises(InvalidArgument, match="cells"):
        evaluation.no_counts(1000, EVERYTHING)
