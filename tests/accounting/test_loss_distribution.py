"""Golden numbers, each against a source that shares no code with ours: Google's accountant, integrals, simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate
from scipy.special import comb, ndtr

from apportion.accounting import conversions
from apportion.accounting.accountant import Interval
from apportion.accounting.loss_distribution import LossDistribution
from apportion.errors import UnpricedEvent
from apportion.events import (
    Composed,
    DisjointParts,
    Event,
    ExponentialMechanism,
    GaussianRelease,
    NonPrivate,
    PartitionEpoch,
    PoissonEpoch,
    PoissonLaw,
    RepeatAndSelect,
    Repeated,
    ShuffleEpoch,
)

DELTA = 1e-5


def interval(event: Event, delta: float = DELTA, adjacency: str = "add-remove") -> Interval:
    accountant = LossDistribution(adjacency)
    return accountant.epsilon(accountant.cost(event), delta)


def delta_at(event: Event, epsilon: float) -> float:
    accountant = LossDistribution("add-remove")
    return accountant.delta(accountant.cost(event), epsilon)


def epochs(sigmas: list[float], bins: int = 100) -> Event:
    return Composed(events=tuple(PartitionEpoch(sigma=sigma, batches=bins) for sigma in sigmas))


def google(sigmas: list[float], rate: float, steps: int, delta: float = DELTA, interval: float = 1e-4) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=interval)
    for sigma in sigmas:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)), steps)
    return float(accountant.get_epsilon(delta))


class TestPoisson:
    def test_the_papers_setting_agrees_with_google(self) -> None:
        found = interval(Repeated(event=PoissonEpoch(sigma=6, rate=0.01, steps=100), count=400))
        assert 1.282 <= found.lower <= found.upper <= 1.2835
        assert found.upper == pytest.approx(1.2829, rel=5e-4)
        assert found.lower <= google([6.0], 0.01, 40_000) * (1 + 1e-9)
        assert found.upper <= google([6.0], 0.01, 40_000) * (1 + 1e-9)

    def test_a_schedule_agrees_with_google(self) -> None:
        sigmas = [10 * math.exp(-0.01 * epoch) for epoch in range(0, 71, 10)]
        event = Composed(events=tuple(PoissonEpoch(sigma=sigma, rate=0.01, steps=100) for sigma in sigmas))
        found, theirs = interval(event), google(sigmas, 0.01, 100)
        assert found.lower <= theirs
        assert found.upper == pytest.approx(theirs, rel=2e-3)

    @pytest.mark.parametrize(
        ("sigma", "rate", "steps"), [(0.5, 0.1, 20), (1.0, 0.02, 500), (2.0, 0.5, 30), (0.8, 1e-3, 10_000)]
    )
    def test_other_settings_agree_with_google(self, sigma: float, rate: float, steps: int) -> None:
        found = interval(PoissonEpoch(sigma=sigma, rate=rate, steps=steps), 1e-6)
        theirs = google([sigma], rate, steps, 1e-6)
        assert found.lower <= theirs
        assert found.upper == pytest.approx(theirs, rel=3e-3)

    @pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 3.0])
    @pytest.mark.parametrize(("sigma", "rate"), [(0.3, 0.01), (1.0, 0.1), (4.0, 0.5), (0.7, 0.9)])
    def test_one_step_agrees_with_the_integral(self, sigma: float, rate: float, epsilon: float) -> None:
        exact = max(one_step_delta(1 / sigma, rate, epsilon))
        found = delta_at(PoissonEpoch(sigma=sigma, rate=rate, steps=1), epsilon)
        assert exact * (1 - 1e-9) - 1e-17 <= found <= exact * 1.005 + 1e-15

    def test_certain_sampling_is_the_gaussian(self) -> None:
        found = interval(PoissonEpoch(sigma=6, rate=1.0, steps=400))
        assert found.upper == conversions.epsilon_of_mu(math.sqrt(400) / 6, DELTA)

    def test_almost_certain_sampling_is_almost_the_gaussian(self) -> None:
        found = interval(PoissonEpoch(sigma=6, rate=1 - 1e-9, steps=400))
        assert found.upper == pytest.approx(conversions.epsilon_of_mu(math.sqrt(400) / 6, DELTA), rel=2e-3)


def one_step_delta(mu: float, rate: float, epsilon: float) -> tuple[float, float]:
    """Removal and addition, from the two crossing points of the densities."""
    removal = addition = 0.0
    level = 1 + math.expm1(epsilon) / rate
    t = math.log(level) / mu + mu / 2
    removal = rate * (ndtr(mu - t) - level * ndtr(-t))
    level = 1 + math.expm1(-epsilon) / rate
    if level > 0:
        t = math.log(level) / mu + mu / 2
        addition = math.exp(epsilon) * rate * (level * ndtr(t) - ndtr(t - mu))
    return float(removal), float(addition)


class TestPartition:
    def test_the_papers_setting(self) -> None:
        found = interval(Repeated(event=PartitionEpoch(sigma=6, batches=100), count=400))
        assert 1.2782 <= found.upper <= 1.2825
        assert 1.275 <= found.lower <= found.upper

    @pytest.mark.parametrize(
        ("sigmas", "golden"),
        [
            ([8.0] * 100, 0.43627),
            ([10 / (1 + 0.05 * e) for e in range(38)], 0.43440),
            ([10 * 0.6 ** (e // 10) for e in range(31)], 0.41309),
            ([10 * math.exp(-0.01 * e) for e in range(71)], 0.43598),
            ([8 * (1 - e / 100) ** 3 + 2 for e in range(44)], 0.43675),
        ],
        ids=["uniform", "time", "step", "exponential", "polynomial"],
    )
    def test_the_papers_schedules(self, sigmas: list[float], golden: float) -> None:
        found = interval(epochs(sigmas))
        assert 0.99 * golden <= found.lower <= found.upper <= 1.005 * golden

    def test_one_bin_is_the_gaussian(self) -> None:
        found = interval(Repeated(event=PartitionEpoch(sigma=6, batches=1), count=400))
        assert found.upper == conversions.epsilon_of_mu(20 / 6, DELTA)

    @pytest.mark.parametrize(("sigma", "epsilon"), [(0.4, 2.0), (1.0, 1.0), (1.0, 3.0), (5.0, 0.2)])
    def test_two_bins_agree_with_the_double_integral(self, sigma: float, epsilon: float) -> None:
        mu = 1 / sigma
        nodes, weights = np.polynomial.legendre.leggauss(700)
        t, w = 10 * nodes + mu / 2, 10 * weights
        density = w * np.exp(-t * t / 2) / math.sqrt(2 * math.pi)
        shifted = w * np.exp(-((t - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
        ratio = np.add.outer(np.exp(mu * t - mu * mu / 2), np.exp(mu * t - mu * mu / 2)) / 2
        removal = shifted @ np.maximum(1 - math.exp(epsilon) / ratio, 0) @ density
        addition = density @ np.maximum(1 - math.exp(epsilon) * ratio, 0) @ density
        found = delta_at(PartitionEpoch(sigma=sigma, batches=2), epsilon)
        exact = max(removal, addition)
        assert exact * (1 - 2e-3) <= found <= exact * 1.01  # the integrand has a kink: the quadrature is good to 1e-3

    @pytest.mark.parametrize(
        ("sigma", "bins", "count", "epsilon"),
        [
            (1.0, 10, 1, 1.0),
            (1.0, 10, 5, 2.0),
            (0.5, 20, 1, 3.0),
            (0.5, 20, 4, 5.0),
            (0.3, 50, 1, 6.0),
            (0.3, 3, 1, 8.0),
            (2.0, 2, 3, 1.0),
            (5.0, 500, 10, 0.05),
            (0.4, 300, 2, 1.0),
        ],
    )
    def test_simulation_of_the_pair(self, sigma: float, bins: int, count: int, epsilon: float) -> None:
        removal, error = simulated_delta(1 / sigma, bins, count, epsilon, removing=True)
        addition, other_error = simulated_delta(1 / sigma, bins, count, epsilon, removing=False)
        found = delta_at(Repeated(event=PartitionEpoch(sigma=sigma, batches=bins), count=count), epsilon)
        assert found >= removal - 4 * error
        assert found >= addition - 4 * other_error
        assert found <= 1.01 * max(removal + 4 * error, addition + 4 * other_error)

    def test_never_above_the_gaussian_and_far_below_it_with_many_bins(self) -> None:
        plain = conversions.epsilon_of_mu(2.0, DELTA)
        few, many = (interval(PartitionEpoch(sigma=0.5, batches=bins)).upper for bins in (2, 10_000))
        assert many < 0.2 * plain < few <= plain


def simulated_delta(mu: float, bins: int, count: int, epsilon: float, removing: bool) -> tuple[float, float]:
    """(mean, standard error) of the hockey stick of the composed pair, by plain simulation."""
    generator = np.random.default_rng(20_240_607)
    draws = min(200_000, 20_000_000 // (bins * count))
    loss = np.zeros(draws)
    for _ in range(count):
        for part in np.array_split(np.arange(draws), max(draws * bins // 2_000_000, 1)):
            t = generator.standard_normal((len(part), bins))
            t[:, 0] += mu if removing else 0.0
            loss[part] += np.log(np.mean(np.exp(mu * t - mu * mu / 2), axis=1))
    gain = np.maximum(-np.expm1(epsilon - loss), 0) if removing else np.maximum(-np.expm1(epsilon + loss), 0)
    return float(gain.mean()), float(gain.std() / math.sqrt(draws))


class TestOtherEvents:
    def test_shuffle_is_never_amplified(self) -> None:
        found = interval(Repeated(event=ShuffleEpoch(sigma=6, batches=100), count=400), adjacency="zero-out")
        assert found.upper == conversions.epsilon_of_mu(20 / 6, DELTA)
        assert found.upper == pytest.approx(19.131, abs=1e-3)
        assert found.lower == pytest.approx(found.upper)

    def test_shuffle_is_refused_under_add_remove(self) -> None:
        with pytest.raises(UnpricedEvent, match="fixed sizes"):
            interval(ShuffleEpoch(sigma=6, batches=100))

    def test_the_three_batchings_are_told_apart(self) -> None:
        events = (
            ShuffleEpoch(sigma=2, batches=100),
            PartitionEpoch(sigma=2, batches=100),
            PoissonEpoch(sigma=2, rate=0.01, steps=100),
        )
        assert len({round(interval(event, adjacency="zero-out").upper, 4) for event in events}) == 3

    def test_replacing_gets_no_amplification(self) -> None:
        for event, mu in (
            (PartitionEpoch(sigma=4, batches=100), 0.5),
            (PoissonEpoch(sigma=4, rate=0.01, steps=4), 1.0),
            (GaussianRelease(sigma=4, replace_one=math.sqrt(2)), math.sqrt(2) / 4),
        ):
            assert interval(event, adjacency="replace-one").upper == conversions.epsilon_of_mu(mu, DELTA)

    @pytest.mark.parametrize(("epsilon", "count"), [(1.0, 10), (0.1, 200), (3.0, 1)])
    def test_exponential_mechanisms_are_randomised_responses(self, epsilon: float, count: int) -> None:
        wins = np.arange(count + 1)
        chance = 1 / (1 + math.exp(-epsilon))
        mass = comb(count, wins) * chance**wins * (1 - chance) ** (count - wins)
        loss = epsilon * (2 * wins - count)
        event = Repeated(event=ExponentialMechanism(epsilon=epsilon), count=count)
        found = interval(event)
        at_upper = float(mass @ np.maximum(-np.expm1(found.upper - loss), 0))
        at_lower = float(mass @ np.maximum(-np.expm1(found.lower - loss), 0))
        assert at_upper <= DELTA <= at_lower * (1 + 1e-6)
        assert found.upper <= epsilon * count

    def test_one_directional_counts_cost_half(self) -> None:
        counts = ExponentialMechanism(epsilon=1.0, counts=True)
        assert interval(counts, 1e-9).upper == pytest.approx(0.5, rel=1e-3)
        assert interval(counts, 1e-9, "replace-one").upper == pytest.approx(1.0, rel=1e-3)

    def test_a_pipeline_costs_more_than_its_training_and_less_than_the_sum(self) -> None:
        training, look = PoissonEpoch(sigma=1, rate=0.01, steps=1000), GaussianRelease(sigma=8)
        choice = ExponentialMechanism(epsilon=0.2)
        together = interval(Composed(events=(training, look, choice)))
        alone = [interval(event, DELTA / 3).upper for event in (training, look, choice)]
        assert interval(training).upper < together.lower <= together.upper < sum(alone)

    def test_the_gaussian_part_of_a_pipeline_is_exact(self) -> None:
        few = Composed(events=(PoissonEpoch(sigma=1e4, rate=1e-6, steps=10), GaussianRelease(sigma=2)))
        assert interval(few).upper == pytest.approx(conversions.epsilon_of_mu(0.5, DELTA), rel=2e-3)

    def test_disjoint_parts_cost_the_worst_way_through(self) -> None:
        parts = DisjointParts(parts=(GaussianRelease(sigma=2), PoissonEpoch(sigma=1, rate=0.01, steps=100)))
        training = PoissonEpoch(sigma=1, rate=0.01, steps=100)
        found = interval(Composed(events=(training, parts)))
        ways = [interval(Composed(events=(training, part))).upper for part in parts.parts]
        assert found.upper == max(ways)

    def test_many_ways_through_disjoint_parts_are_bounded_together(self) -> None:
        parts = DisjointParts(parts=tuple(PoissonEpoch(sigma=s, rate=0.01, steps=10) for s in (1, 2, 3)))
        found = interval(Repeated(event=parts, count=50))
        worst = interval(Repeated(event=parts.parts[0], count=50))
        assert found.upper >= worst.upper
        assert 0 <= found.lower <= worst.upper

    def test_repeat_and_select_is_refused(self) -> None:
        event = RepeatAndSelect(base=GaussianRelease(sigma=1), runs=PoissonLaw(mean=10))
        with pytest.raises(UnpricedEvent):
            interval(event)

    def test_non_private_is_infinite(self) -> None:
        accountant = LossDistribution("add-remove")
        assert accountant.guarantee(NonPrivate(), DELTA).epsilon == math.inf
        assert accountant.delta(accountant.cost(NonPrivate()), 1.0) == 1.0


class TestProfile:
    @pytest.mark.parametrize(
        "event",
        [PoissonEpoch(sigma=1, rate=0.01, steps=1000), PartitionEpoch(sigma=0.7, batches=50), GaussianRelease(sigma=2)],
    )
    def test_delta_undoes_epsilon(self, event: Event) -> None:
        accountant = LossDistribution("add-remove")
        cost = accountant.cost(event)
        for delta in (1e-3, 1e-6, 1e-9):
            assert accountant.delta(cost, accountant.epsilon(cost, delta).upper) == pytest.approx(delta, rel=0.02)

    def test_delta_falls_with_epsilon(self) -> None:
        event = PartitionEpoch(sigma=1, batches=20)
        found = [delta_at(event, epsilon) for epsilon in np.linspace(0, 4, 41)]
        assert all(later <= earlier * (1 + 1e-3) for earlier, later in itertools.pairwise(found))

    def test_answers_do_not_depend_on_what_was_asked_before(self) -> None:
        event = PoissonEpoch(sigma=1.3, rate=0.02, steps=77)
        first = interval(event, 1e-6)
        for delta in (1e-3, 1.1e-6, 1e-9):
            interval(event, delta)
        assert interval(event, 1e-6) == first

    def test_without_a_lower_bound_the_upper_one_is_the_same(self) -> None:
        event = PoissonEpoch(sigma=2, rate=0.01, steps=1000)
        fast = LossDistribution("add-remove", lower_bound=False)
        found = fast.epsilon(fast.cost(event), DELTA)
        assert found.lower is None
        assert found.upper == interval(event).upper

    def test_a_finer_tolerance_narrows_the_interval(self) -> None:
        event = PoissonEpoch(sigma=2, rate=0.01, steps=1000)
        fine = LossDistribution("add-remove", tolerance=1e-4)
        found = fine.epsilon(fine.cost(event), DELTA)
        assert interval(event).lower <= found.lower <= found.upper <= interval(event).upper
        assert found.upper - found.lower <= 1e-4 * found.upper


def test_one_step_formula_against_quadrature() -> None:
    """The closed form that the tests above lean on."""
    mu, rate, epsilon = 1.0, 0.1, 0.3

    def excess(t: float) -> float:
        return max(1 - rate + rate * math.exp(mu * t - mu * mu / 2) - math.exp(epsilon), 0) * math.exp(-t * t / 2)

    crossing = math.log(1 + math.expm1(epsilon) / rate) / mu + mu / 2
    value = integrate.quad(excess, crossing, 12)[0] / math.sqrt(2 * math.pi)
    assert one_step_delta(mu, rate, epsilon)[0] == pytest.approx(value, rel=1e-8)
