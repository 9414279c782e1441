"""Private scaling: sensitivity, noise, agreement with ordinary statistics, and layers that hold it."""

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import sgd, tiny_data, tiny_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from scipy.special import ndtr

import apportion as ap
from apportion import ledger as ledgers
from apportion.components import pca, scaling
from apportion.components.release import Releaser, Whole
from apportion.errors import DataError, InvalidArgument, RunError
from apportion.randomness import RandomStream
from apportion.recording import LedgerWriter
from apportion.stages import Component

TAIL = 6.2  # standard errors: a normal exceeds this with probability 6e-10
KOLMOGOROV = math.sqrt(math.log(2 / 1e-9) / 2)  # √N·D exceeds this with probability below 1e-9 (Massart)
FEATURES = 3


def writer(path: Path, *components: Component, examples: int = 60, **options: Any) -> LedgerWriter:
    plan = tiny_plan(budget=ap.Budget(rho=1e3), components=components, examples=examples)
    return LedgerWriter.create(path, the_plan=plan, declared={}, **({"randomness": "secure"} | options))


def statistic(rows: np.ndarray, component: ap.Scaling) -> np.ndarray:
    """What noise is added to, divided by its stated sensitivity."""
    records = list(scaling._units_of([rows], component))
    if component.method == "quantiles":
        return scaling._histograms(records, component.bins) / math.sqrt(FEATURES)
    sums = scaling._moment_sums(records)
    return np.stack([sums[0] / 2.0**scaling.BITS, sums[1] / 4.0**scaling.BITS]) / math.sqrt(2 * FEATURES)


entries = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 1e300, -1e308, math.nan, math.inf, -math.inf, 5e-324]), st.floats(-3, 3)
)
rows_of_3 = st_numpy.arrays(np.float64, st.tuples(st.integers(1, 5), st.just(FEATURES)), elements=entries)
row_of_3 = st_numpy.arrays(np.float64, (1, FEATURES), elements=entries)


@pytest.mark.parametrize("method", ["standard", "quantiles"])
@given(rows=rows_of_3, extra=row_of_3, other=row_of_3)
@settings(max_examples=200, deadline=None)
def test_one_record_moves_the_statistics_by_at_most_the_stated_bound(
    method: Any, rows: np.ndarray, extra: np.ndarray, other: np.ndarray
) -> None:
    component = ap.Scaling(sigma=1.0, method=method, low=-1.0, high=2.0, bins=4)
    without = statistic(rows, component)
    with_it = statistic(np.concatenate([rows, extra]), component)
    replaced = statistic(np.concatenate([rows, other]), component)
    assert np.linalg.norm(with_it - without) <= 1 + 1e-12
    assert np.linalg.norm(with_it - replaced) <= math.sqrt(2) + 1e-12
    spoiled = np.concatenate([rows, np.full((1, FEATURES), math.nan)])
    assert np.array_equal(statistic(spoiled, component), without)


def test_the_bounds_are_attained() -> None:
    component = ap.Scaling(sigma=1.0)
    ones, none = np.ones((1, FEATURES)), np.empty((0, FEATURES))
    assert np.linalg.norm(statistic(ones, component) - statistic(none, component)) == pytest.approx(1.0)
    assert np.linalg.norm(statistic(ones, component) - statistic(-ones, component)) == pytest.approx(math.sqrt(2))


@given(labels=st.lists(st.integers(-2, 5), max_size=8), extra=st.integers(-2, 5), other=st.integers(-2, 5))
@settings(max_examples=200, deadline=None)
def test_one_record_moves_one_class_count_by_one(labels: list[int], extra: int, other: int) -> None:
    def counts(values: list[int]) -> Whole:
        return scaling._class_counts([np.array(values, np.int64)], 4)

    assert np.linalg.norm(counts([*labels, extra]) - counts(labels)) <= 1
    assert np.linalg.norm(counts([*labels, extra]) - counts([*labels, other])) <= math.sqrt(2) + 1e-12


@pytest.mark.parametrize("method", ["standard", "quantiles"])
def test_replayed_on_a_neighbour_only_that_record_shows(tmp_path: Path, method: Any) -> None:
    """The same noise on neighbouring data: released statistics differ by the record's own contribution."""
    seen: list[list[np.ndarray]] = []
    component = ap.Scaling(sigma=2.0, method=method)
    data = np.random.default_rng(0).uniform(-1, 1, (40, FEATURES))
    for number, rows in enumerate((data, data[1:])):
        released: list[np.ndarray] = []
        with writer(tmp_path / f"{number}", component, randomness="seeded-for-research-only") as ledger:
            releaser = Releaser(ledger, RandomStream(3))
            plain = releaser.noisy

            def watched(values: Whole, deviation: float, plain: Any = plain, kept: Any = released) -> Whole:
                kept.append(plain(values, deviation) / (deviation / component.sigma))
                return plain(values, deviation)

            releaser.noisy = watched  # type: ignore[method-assign]
            scaling.release(component, rows, 40, releaser)
        seen.append(released)
    change = math.sqrt(sum(float(((a - b) ** 2).sum()) for a, b in zip(*seen, strict=True)))
    assert 0 < change <= 1 + 1e-9


@pytest.mark.parametrize("method", ["standard", "quantiles", "classes"])
def test_noise_has_the_stated_law(tmp_path: Path, method: Any) -> None:
    features, sigma = 30_000, 3.0
    component: Component = (
        ap.ClassWeights(sigma=sigma) if method == "classes" else ap.Scaling(sigma=sigma, method=method)
    )
    drawn: list[np.ndarray] = []
    with writer(tmp_path / "ledger", component) as ledger:
        releaser = Releaser(ledger)
        plain = releaser.noisy

        def watched(values: Whole, deviation: float) -> Whole:
            found = plain(values, deviation)
            drawn.append(((found - values) / deviation).ravel())
            assert deviation >= sigma
            return found

        releaser.noisy = watched  # type: ignore[method-assign]
        if isinstance(component, ap.Scaling):
            scaling.release(component, np.zeros((1, features // (1 if method == "standard" else 64))), 1, releaser)
        else:
            scaling.release_class_weights(component, [np.zeros(1)], features, releaser)
    standard = np.concatenate(drawn)
    count = len(standard)
    assert abs(standard.mean()) < TAIL / math.sqrt(count)
    rounding = 1 / 12 / sigma**2 if method == "classes" else 0.0  # whole counts at a deviation of 3
    assert abs((standard**2).mean() - 1 - rounding) < TAIL * math.sqrt(2 / count) + rounding / 10
    half_a_step = 0.5 / sigma * 0.4 if method == "classes" else 0.5 / (sigma * math.sqrt(400)) * 0.4
    distance = np.abs(ndtr(np.sort(standard)) - (np.arange(count) + 0.5) / count).max()
    assert distance < (KOLMOGOROV + 1) / math.sqrt(count) + half_a_step


def test_with_many_records_the_scale_is_the_ordinary_one(tmp_path: Path) -> None:
    data = np.random.default_rng(1).normal([1.0, -0.5, 0.2], [0.4, 0.2, 0.6], (200_000, FEATURES))
    for number, method in enumerate(("standard", "quantiles")):
        component = ap.Scaling(sigma=4.0, method=method, low=-4.0, high=4.0, bins=256)  # type: ignore[arg-type]
        with writer(tmp_path / f"{number}", component, examples=200_000) as ledger:
            found = scaling.fit(
                data, 4.0, examples=200_000, ledger=ledger, method=method, low=-4.0, high=4.0, bins=256  # type: ignore[arg-type]
            )  # fmt: skip
        assert np.allclose(found.shift, data.mean(axis=0), atol=0.02), method
        assert np.allclose(found.scale, data.std(axis=0), atol=0.02), method
        assert np.allclose(found(data).std(axis=0), 1.0, atol=0.1)


def test_quantiles_of_exact_counts_are_those_of_numpy_up_to_a_bin() -> None:
    values = np.random.default_rng(2).uniform(-1, 1, 5000) ** 3
    counts = np.histogram(values, bins=200, range=(-1, 1))[0][None]
    for level, found in zip((0.1, 0.5, 0.9), scaling.quantiles(counts, (0.1, 0.5, 0.9)), strict=True):
        assert abs(found[0] - np.quantile(values, level)) <= 0.01
    drowned = scaling.quantiles(np.array([[-5, 3, -2, -4]]), (0.5,))[0]
    assert -1 <= drowned[0] <= 1


def test_rare_classes_weigh_more_within_bounds(tmp_path: Path) -> None:
    labels = np.repeat([0, 1, 2], [9000, 1000, 10])
    with writer(tmp_path / "l", ap.ClassWeights(sigma=2.0, most=5.0)) as ledger:
        weights = scaling.fit_class_weights(labels, 2.0, classes=3, ledger=ledger, most=5.0)
    assert weights[0] == pytest.approx(10010 / 27000, rel=0.05)
    assert weights[1] == pytest.approx(10010 / 3000, rel=0.1)
    assert weights[2] == 5.0


@pytest.mark.parametrize("targets", [np.eye(3), np.zeros((5, 4), np.int64), np.zeros((5, 1), np.int64), np.int64(1)])
def test_a_record_with_several_labels_is_refused_because_it_would_move_several_counts(
    tmp_path: Path, targets: np.ndarray
) -> None:
    with (
        writer(tmp_path / "l", ap.ClassWeights(sigma=2.0)) as ledger,
        pytest.raises(DataError, match="one class number"),
    ):
        scaling.fit_class_weights(targets, 2.0, classes=3, ledger=ledger)
    assert not ledgers.read(tmp_path / "l").events


def test_scaling_by_the_data_without_an_event_is_impossible(tmp_path: Path) -> None:
    """Every way of the public interface to data-dependent scaling asks for an open ledger whose plan declares it."""
    data = np.zeros((10, 2))
    with pytest.raises(TypeError, match="ledger"):
        scaling.fit(data, 1.0, examples=60)  # type: ignore[call-arg]
    with pytest.raises(RunError, match="LedgerWriter"):
        scaling.fit(data, 1.0, examples=60, ledger=None)  # type: ignore[arg-type]
    with writer(tmp_path / "l") as ledger:
        with pytest.raises(RunError, match="no further component"):
            scaling.fit(data, 1.0, examples=60, ledger=ledger)
        with pytest.raises(RunError, match="no further component"):
            scaling.fit_class_weights(np.zeros(3), 1.0, classes=2, ledger=ledger)
    recorded = ledgers.read(tmp_path / "l")
    assert not recorded.events
    from apportion.data import Declared

    with pytest.raises(InvalidArgument):  # a table's ranges are declared: an empty or unknown one is refused
        Declared(target="y", classes=("a", "b"), ranges={"x": (0.0, 0.0)})


@pytest.mark.parametrize("module", [pca, scaling], ids=["pca", "scaling"])
def test_whatever_takes_private_data_takes_a_ledger_too(module: Any) -> None:
    """Statistics without noise are nobody's to ask for: only private names compute them."""
    private = {"data", "targets", "rows", "chunks", "records"}
    public = {
        name: set(inspect.signature(function).parameters)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    taking = {name: parameters for name, parameters in public.items() if parameters & private}
    assert {"fit", "release"} <= set(taking)
    for name, parameters in taking.items():
        assert parameters & {"ledger", "releaser"}, name


def test_what_can_be_refused_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    component = ap.Scaling(sigma=8000.0)
    with writer(tmp_path / "l", component) as ledger:
        with pytest.raises(InvalidArgument, match="too large"):
            scaling.fit(np.zeros((2, 40_000)), 8000.0, examples=60, ledger=ledger)
        with pytest.raises(DataError, match="no rows"):
            scaling.fit(iter([]), 8000.0, examples=60, ledger=ledger)
        with pytest.raises(InvalidArgument, match="the 60 that the plan declares"):
            scaling.fit(np.zeros((59, 2)), 8000.0, examples=59, ledger=ledger)
    assert not ledgers.read(tmp_path / "l").events
    for wrong in ({"sigma": -1.0}, {"sigma": 1e6}, {"low": 1.0}, {"method": "none"}, {"bins": 1}):
        with pytest.raises(InvalidArgument):
            ap.Scaling(**({"sigma": 1.0} | wrong))  # type: ignore[arg-type]


torch = pytest.importorskip("torch")


def test_projection_scaling_and_class_weights_in_one_run(tmp_path: Path) -> None:
    from apportion.training import ClassWeighted, Projection, Standardise, fit

    components = (
        ap.PrincipalComponents(dimensions=3, sigma=8.0),
        ap.Scaling(sigma=8.0, low=-3.0, high=3.0),
        ap.ClassWeights(sigma=8.0),
    )
    plan = tiny_plan(budget=ap.Budget(epsilon=6.0, delta=1e-5), components=components)
    model = torch.nn.Sequential(Projection(4, 3), Standardise(3), torch.nn.Linear(3, 2))
    loss = ClassWeighted(torch.nn.functional.cross_entropy, classes=2)
    run = fit(model, tiny_data(), plan, loss=loss, optimizer=sgd, out=tmp_path / "run", progress=False)
    recorded = ledgers.read(run.directory / "ledger.jsonl")
    assert recorded.used_components == 3
    assert run.certificate().guarantee.epsilon == plan.guarantee.epsilon
    released = np.load(run.directory / "components" / "2.npz")["weights"]
    assert np.array_equal(loss.weights.numpy(), released)
    assert not torch.equal(model[1].scale, torch.ones(3))
    values = loss(torch.zeros(2, 2), torch.tensor([0, 1]))
    assert torch.allclose(values, loss.weights.float() * math.log(2))
    purposes = [part["purpose"] for part in run.publish(tmp_path / "bundle").to_json()["components"]]
    assert purposes == ["training", "pca", "scaling", "class-weights"]
    assert ap.verify(tmp_path / "bundle").verified
