"""The plan of a pipeline: shares of a budget become noise, and the whole spends the budget under what certifies it."""

import math
from pathlib import Path
from typing import Any

import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

import apportion as ap
from apportion import pipeline, settings, settings_file
from apportion.cli.pipeline import plan_of_file
from apportion.errors import BudgetExhausted, ConfigError, InvalidArgument

TRAINING = '[training]\nexamples = 600\nbatches = 6\nschedule = "uniform"\nepochs = 5\n'


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def plan_from(tmp_path: Path, text: str, **given: Any) -> Any:
    return plan_of_file(written(tmp_path / "pipeline.toml", text), given)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a μ-Gaussian mechanism (Balle and Wang 2018), written down anew."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def test_shares_of_a_rho_budget_are_exact(tmp_path: Path) -> None:
    text = "[budget]\nrho = 0.5\n[pca]\ndimensions = 2\nshare = 0.2\n[evaluation]\nshare = 0.1\n" + TRAINING
    plan = plan_from(tmp_path, text)
    pca, evaluation = plan.components
    assert 1 / (2 * pca.sigma**2) == pytest.approx(0.1, rel=1e-12)
    assert 1 / (2 * evaluation.sigma**2) == pytest.approx(0.05, rel=1e-12)
    assert sum(1 / (2 * sigma**2) for sigma in plan.sigmas) == pytest.approx(0.35, rel=1e-9)
    assert [(s.stage, round(s.share, 9)) for s in pipeline.shares_of(plan)] == [
        ("pca", 0.2), ("training", 0.7), ("evaluation", 0.1),
    ]  # fmt: skip


def test_shares_of_an_epsilon_budget_without_amplification_are_exact(tmp_path: Path) -> None:
    """Shuffled training is a Gaussian release per epoch, so everything is Gaussian: a closed form is the second source."""
    text = "[budget]\nepsilon = 2.0\ndelta = 1e-5\n[scaling]\nshare = 0.25\n[class_weights]\nshare = 0.05\n" + TRAINING
    plan = plan_from(tmp_path, text, batching="shuffle")
    mu = brentq(lambda m: gaussian_delta(m, 2.0) - 1e-5, 0.01, 5.0)
    scaling, weights = plan.components
    assert 1 / scaling.sigma**2 == pytest.approx(0.25 * mu**2, rel=1e-6)
    assert 1 / weights.sigma**2 == pytest.approx(0.05 * mu**2, rel=1e-6)
    total = math.sqrt(sum(1 / s**2 for s in (*plan.sigmas, scaling.sigma, weights.sigma)))
    assert 0.999 * mu <= total <= mu * (1 + 1e-9)
    assert 0.999 * 2.0 <= plan.guarantee.epsilon <= 2.0 * (1 + 1e-9)


def test_components_compose_with_sampled_training_as_dp_accounting_says(tmp_path: Path) -> None:
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    text = "[budget]\nepsilon = 3.0\ndelta = 1e-5\n[pca]\ndimensions = 2\nshare = 0.2\n[evaluation]\nshare = 0.2\n"
    text += '[training]\nexamples = 600\nbatching = "poisson"\nrate = 0.1\nepochs = 3\n'
    plan = plan_from(tmp_path, text)
    theirs = PLDAccountant(value_discretization_interval=1e-3)
    for component in plan.components:
        theirs.compose(dp.GaussianDpEvent(component.sigma))
    for sigma in plan.sigmas:
        theirs.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(sigma)), 10)
    assert plan.guarantee.epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=5e-3)
    assert 0.999 * 3.0 <= plan.guarantee.epsilon <= 3.0 * (1 + 1e-9)


def test_partition_training_gets_less_noise_than_its_gaussian_share(tmp_path: Path) -> None:
    text = "[budget]\nepsilon = 2.0\ndelta = 1e-5\n[pca]\ndimensions = 2\nshare = 0.3\n" + TRAINING
    amplified, plain = plan_from(tmp_path, text), plan_from(tmp_path, text, batching="shuffle")
    assert amplified.components == plain.components
    assert amplified.sigmas[0] < plain.sigmas[0]
    for plan in (amplified, plain):
        assert 0.999 * 2.0 <= plan.guarantee.epsilon <= 2.0 * (1 + 1e-9)


def test_a_component_is_given_its_share_from_python() -> None:
    budget = ap.Budget(epsilon=2.0, delta=1e-5)
    pca = pipeline.with_share(ap.PrincipalComponents(dimensions=3, sigma=1.0), 1 - 1e-9, budget, "add-remove")
    assert gaussian_delta(1 / pca.sigma, 2.0) == pytest.approx(1e-5, rel=1e-5)  # the whole budget in one release
    doubled = pipeline.with_share(pca, 0.25, budget, "add-remove")
    assert doubled.sigma == pytest.approx(2 * pca.sigma, rel=1e-8)
    replaced = pipeline.with_share(pca, 0.25, budget, "replace-one")
    assert replaced.sigma == pytest.approx(math.sqrt(2) * doubled.sigma, rel=1e-8)


def test_a_given_sigma_is_kept_and_the_rest_is_solved(tmp_path: Path) -> None:
    text = "[budget]\nepsilon = 2.0\ndelta = 1e-5\n[pca]\ndimensions = 60\nsigma = 16\n" + TRAINING
    plan = plan_from(tmp_path, text)
    assert plan.components == (ap.PrincipalComponents(dimensions=60, sigma=16.0),)
    assert 0.999 * 2.0 <= plan.guarantee.epsilon <= 2.0 * (1 + 1e-9)
    with pytest.raises(BudgetExhausted, match="components alone"):
        plan_from(tmp_path, text.replace("sigma = 16", "sigma = 0.5"))


def test_an_adaptive_plan_has_room_for_its_components(tmp_path: Path) -> None:
    text = "[budget]\nrho = 0.1\n[pca]\ndimensions = 2\nshare = 0.5\n[training]\nexamples = 600\nbatches = 6\n"
    text += 'schedule = "validation"\nsigma0 = 10\ndecay = 0.7\nperiod = 5\n[validation]\nfile = "test"\n'
    text += '[data]\ndataset = "wisconsin"\n'
    plan = plan_from(tmp_path, text)
    from apportion import outlook

    assert len(outlook.noise_kept(plan).sigmas) == 10  # half of 0.1, at 1/200 each
    assert [share.stage for share in pipeline.shares_of(plan)] == ["pca", "training"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pca]\ndimensions = 2\n", "needs either share"),
        ("[pca]\ndimensions = 2\nshare = 0.1\nsigma = 3\n", "needs either share"),
        ("[pca]\nshare = 0.1\n", "needs dimensions"),
        ("[pca]\n", "is empty"),
        ("[scaling]\nshare = 1.0\n", "strictly between 0 and 1"),
        ("[scaling]\nshare = 0.6\n[evaluation]\nshare = 0.5\n", "nothing is left for training"),
        ("[scaling]\nshare = 0.6\n[training]\nshare = 0.5\n", "must add up to 1"),
        ("[scaling]\nsigma = 6.0\n[training]\nshare = 0.5\n", "leave it out"),
        ("[plan]\nepochs = 3\n[training]\nepochs = 3\n", "given twice"),
        ("[evaluation]\nsigma = 5\nkind = 3\n", "is not known"),
        ('[evaluation]\nsigma = 5\n[data]\nfile = "a.csv"\n', "give holdout"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_file.load(written(tmp_path / "p.toml", text), {}, needs_data=False)


def test_wrong_values_of_a_component_are_refused_when_the_plan_is_made(tmp_path: Path) -> None:
    budget = "[budget]\nepsilon = 2.0\ndelta = 1e-5\n"
    for section in ('[scaling]\nsigma = 9.0\nmethod = "guess"\n', '[evaluation]\nsigma = 9.0\nmeasures = ["loss"]\n'):
        with pytest.raises(InvalidArgument, match="must be one of"):
            plan_from(tmp_path, budget + section + TRAINING)


def test_a_plan_needs_no_data_and_a_run_does(tmp_path: Path) -> None:
    path = written(tmp_path / "p.toml", "[budget]\nepsilon = 2.0\ndelta = 1e-5\n" + TRAINING)
    assert plan_of_file(path, {}).epochs == 5
    with pytest.raises(ConfigError, match="give the data"):
        settings_file.load(path, {})


def test_settings_written_before_there_were_pipelines_are_still_read() -> None:
    plain = settings.Settings(dataset="wisconsin", epsilon=1.0, delta=1e-5)
    old = {name: value for name, value in plain.to_json().items() if name.split("_")[0] not in (
        "pca", "scaling", "class", "evaluation", "training",
    )}  # fmt: skip
    assert settings.from_json(old) == plain
