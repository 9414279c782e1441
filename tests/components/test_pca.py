"""Private principal components: sensitivity, noise, agreement with ordinary PCA, and its place in ledger and plan."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import sgd, tiny_data, tiny_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import apportion as ap
from apportion import events
from apportion import ledger as ledgers
from apportion import plan as plans
from apportion.components import pca
from apportion.components.release import Releaser, chunks_of
from apportion.errors import BudgetExhausted, DataError, IncompatibleModel, InvalidArgument, LedgerError, RunError
from apportion.events import GaussianRelease, NonPrivate
from apportion.randomness import RandomStream
from apportion.recording import LedgerWriter

UNIT = 2.0 ** (2 * pca.BITS)
TAIL = 6.2  # standard errors: a normal exceeds this with probability 6e-10


def writer(path: Path, *components: ap.PrincipalComponents, seeded: bool = False) -> LedgerWriter:
    plan = tiny_plan(budget=ap.Budget(rho=1e3), components=components)
    randomness: Any = "seeded-for-research-only" if seeded else "secure"
    return LedgerWriter.create(path, the_plan=plan, randomness=randomness, declared={})


def baseline(path: Path, component: ap.PrincipalComponents) -> LedgerWriter:
    plan = ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=3), epochs=1, components=(component,))
    return LedgerWriter.create(path, the_plan=plan, randomness="secure", declared={})


def low_rank(rows: int, features: int, rank: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    scales = 3.0 * 0.7 ** np.arange(rank)
    return (generator.normal(size=(rows, rank)) * scales) @ np.linalg.qr(generator.normal(size=(features, rank)))[0].T


extreme = st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e300, -1e308, math.nan, math.inf, -math.inf, 5e-324])
entries = st.one_of(extreme, st.floats(-2, 2))
rows_of_4 = st_numpy.arrays(np.float64, st.tuples(st.integers(1, 6), st.just(4)), elements=entries)


@given(rows=rows_of_4, extra=st_numpy.arrays(np.float64, (1, 4), elements=entries))
@settings(max_examples=300, deadline=None)
def test_one_row_moves_the_second_moments_by_a_frobenius_norm_of_at_most_1_and_a_replaced_one_by_root_2(
    rows: np.ndarray, extra: np.ndarray
) -> None:
    with_it = pca._second_moments([np.concatenate([rows, extra])])
    without = pca._second_moments([rows])
    zeroed = pca._second_moments([np.concatenate([rows, np.zeros((1, 4))])])
    replaced = pca._second_moments([np.concatenate([rows, extra[:, ::-1]])])
    assert np.array_equal(without, zeroed)
    # whole numbers: the comparison is exact
    squared = sum(int(change) ** 2 for change in (with_it - without).ravel())
    assert squared <= int(UNIT) ** 2
    assert sum(int(change) ** 2 for change in (with_it - replaced).ravel()) <= 2 * int(UNIT) ** 2


def test_replayed_on_a_neighbour_the_released_matrix_moves_by_that_row_alone(tmp_path: Path) -> None:
    data = low_rank(50, 6, 3)
    component = ap.PrincipalComponents(dimensions=2, sigma=2.0)
    released = []
    for number, rows in enumerate((data, data[:-1])):
        with writer(tmp_path / f"{number}", component, seeded=True) as ledger:
            releaser = Releaser(ledger, RandomStream(5))
            released.append(pca._noisy(pca._second_moments([rows]), 2.0, releaser))
    row = data[-1] / max(1.0, np.linalg.norm(data[-1]))
    assert np.linalg.norm(released[0] - released[1]) <= 1.0
    assert np.allclose(released[0] - released[1], np.outer(row, row), atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_counts_as_zeros_and_does_not_spread(bad: float) -> None:
    data = low_rank(20, 5, 2)
    spoiled = np.concatenate([data, data[:1]])
    spoiled[-1, 2] = bad
    assert np.array_equal(pca._second_moments([data]), pca._second_moments([spoiled]))


def test_a_huge_row_keeps_its_direction() -> None:
    rows = pca._clipped_rows(np.array([[3e300, 4e300], [3.0, 4.0], [0.3, 0.4]])) / 2.0**pca.BITS
    assert np.allclose(rows, [[0.6, 0.8], [0.6, 0.8], [0.3, 0.4]], atol=1e-5)


@pytest.mark.parametrize(("order", "features"), [("C", 9001), ("F", 33)])
def test_a_row_is_clipped_alike_alone_and_in_company_to_the_last_bit(order: Any, features: int) -> None:
    """A row at the very edge between two whole multiples, found by bisection: one row more must not tip it over."""
    generator = np.random.default_rng(0)
    for _ in range(5):
        row, other = generator.normal(size=(2, features))

        def cut(first: float, row: np.ndarray = row, other: np.ndarray = other) -> np.ndarray:
            row[0] = first
            return pca._clipped_rows(np.array([row, other], order=order))[0]

        low, high, target = 1.0, 2.0, cut(2.0)[0]
        while np.nextafter(low, high) < high:
            middle = (low + high) / 2
            low, high = (low, middle) if cut(middle)[0] >= target else (middle, high)
        for first in (low, high):
            together = cut(first)
            assert np.array_equal(together, pca._clipped_rows(np.array([row], order=order))[0])


def test_noise_is_n_0_sigma2_on_the_diagonal_and_half_of_that_off_it(tmp_path: Path) -> None:
    features, sigma = 700, 3.0
    component = ap.PrincipalComponents(dimensions=1, sigma=sigma)
    with writer(tmp_path / "ledger", component) as ledger:
        noise = pca._noisy(np.zeros((features, features), np.int64), sigma, Releaser(ledger))
    assert np.array_equal(noise, noise.T)
    upper, diagonal = noise[np.triu_indices(features, 1)], np.diagonal(noise)
    for values, deviation in ((upper, sigma / math.sqrt(2)), (diagonal, sigma)):
        standard = values / deviation
        for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
            error = math.sqrt(variance / len(values)) * (1 if power < 3 else 2)
            assert abs((standard**power).mean() - expected) < TAIL * error, (deviation, power)
        # Kolmogorov: the chance to exceed this is below 1e-9 (Massart)
        from scipy.special import ndtr

        probabilities = ndtr(np.sort(standard))
        distance = np.abs(probabilities - (np.arange(len(values)) + 0.5) / len(values)).max()
        assert math.sqrt(len(values)) * distance < math.sqrt(math.log(2 / 1e-9) / 2) + 1 / math.sqrt(len(values))
    assert abs(np.corrcoef(upper[:-1], upper[1:])[0, 1]) < TAIL / math.sqrt(len(upper))


@pytest.mark.parametrize(("rows", "features", "dimensions"), [(400, 12, 12), (400, 40, 7), (300, 900, 5)])
def test_without_noise_it_is_the_pca_of_numpy_without_centring_up_to_sign(
    tmp_path: Path, rows: int, features: int, dimensions: int
) -> None:
    data = low_rank(rows, features, min(features, 15))
    component = ap.PrincipalComponents(dimensions=dimensions, sigma=0.0)
    with baseline(tmp_path / "ledger", component) as ledger:
        found = pca.fit(data, dimensions, 0.0, ledger=ledger)
    assert found.event == NonPrivate()
    clipped = data / np.maximum(1.0, np.linalg.norm(data, axis=1, keepdims=True))
    expected = np.linalg.svd(clipped, full_matrices=False)[2][:dimensions].T
    assert np.allclose(np.abs((found.directions * expected).sum(axis=0)), 1.0, atol=1e-7)
    assert np.allclose(found.directions.T @ found.directions, np.eye(dimensions), atol=1e-10)
    assert np.allclose(np.abs(found(data)), np.abs(data @ expected), atol=1e-3)


def test_lanczos_and_the_full_decomposition_agree() -> None:
    generator = np.random.default_rng(3)
    noise = generator.normal(size=(700, 700))
    data = low_rank(2000, 700, 8)
    matrix = data.T @ data + (noise + noise.T) / 2
    expected = np.linalg.eigh(matrix)[1][:, ::-1][:, :8]
    assert np.allclose(np.abs((pca.leading_directions(matrix, 8) * expected).sum(axis=0)), 1.0, atol=1e-9)


@pytest.mark.slow
def test_five_thousand_features_from_a_stream(tmp_path: Path) -> None:
    features, directions = 5000, np.linalg.qr(np.random.default_rng(0).normal(size=(5000, 3)))[0]
    component = ap.PrincipalComponents(dimensions=3, sigma=1.0)

    def stream() -> Any:
        generator = np.random.default_rng(1)
        for _ in range(5):
            yield (generator.normal(size=(400, 3)) * 2) @ directions.T

    with writer(tmp_path / "ledger", component) as ledger:
        found = pca.fit(stream(), 3, 1.0, ledger=ledger)
    assert found.directions.shape == (features, 3)
    # 2,000 unit rows in 3 directions against noise of spectral norm about √5000: nearly all of them is found
    assert np.linalg.svd(directions.T @ found.directions, compute_uv=False).min() > 0.97


def test_pieces_arrays_and_iterables_give_the_same_sum() -> None:
    data = low_rank(5000, 8, 4).astype(np.float32)
    whole = pca._second_moments(chunks_of(data))
    assert np.array_equal(whole, pca._second_moments(chunks_of(iter([data[:1], data[1:4000], data[4000:]]))))
    assert np.array_equal(whole, pca._second_moments(chunks_of(data.reshape(-1, 2, 4))))
    with pytest.raises(DataError, match="no rows"):
        pca._second_moments(chunks_of(iter([])))
    with pytest.raises(DataError, match="same columns"):
        pca._second_moments(chunks_of([data, data[:, :3]]))


def test_the_event_is_on_disk_before_the_noise_is_drawn(tmp_path: Path) -> None:
    component = ap.PrincipalComponents(dimensions=2, sigma=4.0)
    seen: list[int] = []

    def watching(count: int, deviation: float, stream: RandomStream) -> np.ndarray:
        seen.append(len(ledgers.read(tmp_path / "ledger").events))
        return np.zeros(count, np.int64)

    with writer(tmp_path / "ledger", component) as ledger:
        pca.release(component, low_rank(30, 4, 2), Releaser(ledger, normals=watching))
    assert seen
    assert set(seen) == {1}
    recorded = ledgers.read(tmp_path / "ledger").events[0]
    assert recorded.component == 0
    assert recorded.event == GaussianRelease(sigma=4.0, replace_one=math.sqrt(2), purpose="pca")


def test_what_can_be_refused_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    component = ap.PrincipalComponents(dimensions=5, sigma=4.0)
    with writer(tmp_path / "ledger", component) as ledger:
        with pytest.raises(InvalidArgument, match="at most the 4 features"):
            pca.fit(low_rank(30, 4, 2), 5, 4.0, ledger=ledger)
        with pytest.raises(RunError, match="next component"):
            pca.fit(low_rank(30, 6, 2), 5, 3.0, ledger=ledger)
        with pytest.raises(RunError, match="seeded"):
            pca.fit(low_rank(30, 6, 2), 5, 4.0, ledger=ledger, stream=RandomStream(1))
    assert not ledgers.read(tmp_path / "ledger").events
    with pytest.raises(RunError, match="LedgerWriter"):
        pca.fit(low_rank(30, 6, 2), 5, 4.0, ledger=None)  # type: ignore[arg-type]


def test_the_plan_pays_for_it_run_or_not(tmp_path: Path) -> None:
    component = ap.PrincipalComponents(dimensions=2, sigma=4.0)
    budget = ap.Budget(rho=0.5)
    plan = ap.solve(
        budget=budget, examples=60, batching=ap.Shuffle(batches=3), schedule=ap.Uniform(), epochs=5, clip=1.0,
        components=[component],
    )  # fmt: skip
    assert plan.rho == pytest.approx(0.5, rel=1e-9)
    sigma = plan.sigmas[0]
    assert 5 / (2 * sigma**2) + 1 / 32 == pytest.approx(0.5, rel=1e-9)
    assert plans.from_json(plan.to_json()) == plan
    with LedgerWriter.create(tmp_path / "l", the_plan=plan, randomness="secure", declared={}):
        pass
    assert ap.certify(ledgers.read(tmp_path / "l")).guarantee.epsilon == pytest.approx(plan.guarantee.epsilon)
    with pytest.raises(BudgetExhausted, match="components alone"):
        ap.solve(
            budget=ap.Budget(epsilon=0.5, delta=1e-5), examples=60, batching=ap.Partition(batches=3),
            schedule=ap.Uniform(), epochs=5, clip=1.0, components=[ap.PrincipalComponents(dimensions=2, sigma=1.0)],
        )  # fmt: skip
    with pytest.raises(BudgetExhausted, match="components"):
        tiny_plan(components=(ap.PrincipalComponents(dimensions=2, sigma=0.0),))


def test_a_plan_without_components_is_written_as_ever() -> None:
    assert "components" not in tiny_plan().to_json()
    with pytest.raises(InvalidArgument, match="components must be a list"):
        plans.from_json({**tiny_plan().to_json(), "components": []})


@pytest.mark.parametrize(
    "change",
    [{"component": 1}, {"component": True}, {"component": 0, "slot": 0}, {"event": {"sigma": 5.0}}],
)
def test_a_ledger_whose_component_is_not_the_plans_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    component = ap.PrincipalComponents(dimensions=2, sigma=4.0)
    with writer(tmp_path / "l", component) as ledger:
        body: dict[str, Any] = {"slot": None, "component": 0, "event": events.to_json(component.event)}
        body["event"] |= change.pop("event", {})
        ledger._append("event", body | change)
    with pytest.raises(LedgerError):
        ledgers.read(tmp_path / "l")


def test_an_adaptive_plan_keeps_back_what_its_components_cost() -> None:
    values: dict[str, Any] = {
        "examples": 60, "batching": ap.Shuffle(batches=3), "clip": 1.0,
        "schedule": ap.ValidationDecay(sigma0=8.0, decay=0.7, period=2, window=1, threshold=2.0),
    }  # fmt: skip
    component = ap.PrincipalComponents(dimensions=2, sigma=4.0)
    epoch, spent = 1 / 128, 1 / 32
    ap.AdaptivePlan(budget=ap.Budget(rho=epoch + spent), components=(component,), **values)
    with pytest.raises(BudgetExhausted, match="beside the components"):
        ap.AdaptivePlan(budget=ap.Budget(rho=0.99 * epoch + spent), components=(component,), **values)


torch = pytest.importorskip("torch")


def model() -> Any:
    from apportion.training import Projection

    return torch.nn.Sequential(Projection(4, 2), torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def pca_plan(**changes: Any) -> ap.TrainingPlan:
    values = {"components": (ap.PrincipalComponents(dimensions=2, sigma=4.0),), "epochs": 2, "spare_epochs": 1}
    return tiny_plan(**(values | changes))


def train(out: Path, plan: Any = None, network: Any = None, **options: Any) -> Any:
    from apportion.training import fit

    return fit(
        model() if network is None else network, tiny_data(), pca_plan() if plan is None else plan,
        loss=torch.nn.functional.cross_entropy, optimizer=sgd, out=out, progress=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize("noise", ["float", "grid"])
def test_the_projection_is_published_with_the_model_and_the_certificate_covers_it(tmp_path: Path, noise: str) -> None:
    network = model()
    plan = pca_plan(noise=noise)
    run = train(tmp_path / "run", plan, network)
    certificate = run.publish(tmp_path / "bundle")
    assert ap.verify(tmp_path / "bundle").verified
    assert certificate.guarantee.epsilon == plan.guarantee.epsilon
    assert [part["purpose"] for part in certificate.to_json()["components"]] == ["training", "pca"]
    from safetensors.torch import load_file

    released = load_file(tmp_path / "bundle" / "model.safetensors")
    directions = released["0.directions"].double()
    assert torch.allclose(directions.T @ directions, torch.eye(2, dtype=torch.float64), atol=1e-6)
    assert not torch.equal(directions, torch.eye(4, 2, dtype=torch.float64))
    again = model()
    again.load_state_dict(released)
    assert torch.equal(again(tiny_data()[0]), network(tiny_data()[0]))


def test_a_resumed_run_uses_the_projection_that_was_paid_for(tmp_path: Path) -> None:
    def stop(epochs: int) -> None:
        from apportion.training import start

        with (
            pytest.raises(KeyboardInterrupt),
            start(
                model(), tiny_data(), pca_plan(),
                loss=torch.nn.functional.cross_entropy, optimizer=sgd, out=tmp_path / "run", resume=epochs > 1,
            ) as run,
        ):  # fmt: skip
            for number, epoch in enumerate(run, start=1):
                for batch in epoch:
                    run.step(batch)
                    if number == epochs:
                        raise KeyboardInterrupt

    stop(1)
    first = np.load(tmp_path / "run" / "components" / "0.npz")["directions"]
    train(tmp_path / "run", resume=True).publish(tmp_path / "bundle")
    recorded = ledgers.read(tmp_path / "run" / "ledger.jsonl")
    assert recorded.used_components == 1
    assert [event.component for event in recorded.events] == [0, None, None, None]
    from safetensors.torch import load_file

    released = load_file(tmp_path / "bundle" / "model.safetensors")["0.directions"]
    assert np.allclose(released.numpy(), first)


def test_a_projection_that_was_lost_after_it_was_paid_for_is_not_drawn_again(tmp_path: Path) -> None:
    from apportion.training import start

    with (
        pytest.raises(KeyboardInterrupt),
        start(
            model(), tiny_data(), pca_plan(),
            loss=torch.nn.functional.cross_entropy, optimizer=sgd, out=tmp_path / "run",
        ),
    ):  # fmt: skip
        raise KeyboardInterrupt
    (tmp_path / "run" / "components" / "0.npz").unlink()
    with pytest.raises(RunError, match="paid for"):
        train(tmp_path / "run", resume=True)


def test_model_and_plan_must_name_the_same_components(tmp_path: Path) -> None:
    from apportion.training import Projection

    wide, elsewhere = model(), torch.nn.Sequential(torch.nn.Linear(4, 4), Projection(4, 2), torch.nn.Linear(2, 2))
    wide[0] = Projection(5, 2)
    plain = torch.nn.Linear(4, 2)
    cases = [
        (plain, pca_plan(), "hold none"),
        (model(), tiny_plan(), "are none"),
        (elsewhere, pca_plan(), "must come first"),
        (wide, pca_plan(), "takes 5 features, but 4 enter it"),
        (model(), pca_plan(components=(ap.PrincipalComponents(dimensions=3, sigma=4.0),)), "has 2 dimensions"),
    ]
    for network, plan, message in cases:
        with pytest.raises(IncompatibleModel, match=message):
            train(tmp_path / "run", plan, network)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("floor", [None, ap.Uniform(sigma0=6.0)])
def test_an_adaptive_run_with_a_projection_is_certified_by_its_cap_or_floor(tmp_path: Path, floor: Any) -> None:
    plan = ap.AdaptivePlan(
        budget=ap.Budget(epsilon=3.0, delta=1e-5), examples=60, batching=ap.Shuffle(batches=3), clip=1.0, epochs=3,
        schedule=ap.ValidationDecay(sigma0=8.0, decay=0.7, period=2, window=1, threshold=2.0), floor=floor,
        components=(ap.PrincipalComponents(dimensions=2, sigma=4.0),),
    )  # fmt: skip
    run = train(tmp_path / "run", plan, validation=ap.Public(tiny_data(20)))
    certificate = run.publish(tmp_path / "bundle")
    assert certificate.guarantee.epsilon == plan.guarantees(1e-5)[0].epsilon
    assert ap.verify(tmp_path / "bundle").verified
    assert ledgers.read(run.directory / "ledger.jsonl").events[0].component == 0
    if floor is not None:  # Gaussian releases only: μ² = 1/4² + 3/6², written down anew
        from scipy.special import ndtr

        mu, epsilon = math.sqrt(1 / 16 + 3 / 36), certificate.guarantee.epsilon
        delta = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-3)


def test_a_baseline_without_privacy_may_use_noiseless_components_and_is_not_publishable(tmp_path: Path) -> None:
    component = ap.PrincipalComponents(dimensions=2, sigma=0.0)
    plan = ap.NonPrivatePlan(examples=60, batching=ap.Shuffle(batches=3), epochs=1, components=(component,))
    run = train(tmp_path / "run", plan)
    with pytest.raises(ap.ApportionError):
        run.publish(tmp_path / "bundle")
