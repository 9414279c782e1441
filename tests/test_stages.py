"""Components as a plan declares them: read back as written, and nothing else read."""

import math
from typing import Any

import pytest
from conftest import tiny_plan

import apportion as ap
from apportion import plan as plans
from apportion import stages
from apportion.errors import InvalidArgument
from apportion.events import GaussianRelease

ALL = (
    ap.PrincipalComponents(dimensions=3, sigma=9.0),
    ap.Scaling(sigma=8.0, method="quantiles", low=-2.0, high=5.0, bins=16),
    ap.ClassWeights(sigma=7.0, most=4.0),
    ap.PrivateEvaluation(sigma=6.0, measures=("auroc", "confusion"), bins=20),
)


def test_a_plan_with_components_is_read_back_as_written() -> None:
    plan = tiny_plan(components=ALL, budget=ap.Budget(rho=1.0))
    assert plans.from_json(plan.to_json()) == plan
    assert [component["kind"] for component in plan.to_json()["components"]] == list(stages.COMPONENTS)


def test_every_component_is_one_gaussian_release_that_grows_by_root_2_when_a_record_is_replaced() -> None:
    for component in ALL:
        event = component.event
        assert event == GaussianRelease(sigma=component.sigma, replace_one=math.sqrt(2), purpose=component.kind)


@pytest.mark.parametrize(
    "wrong",
    [
        [], "pca", [7], [{}], [{"kind": "pca"}], [{"kind": ["pca"]}],
        [{"kind": "pca", "dimensions": 3, "sigma": 9.0, "more": 1}],
        [{"kind": "pca", "dimensions": [3], "sigma": 9.0}], [{"kind": "pca", "dimensions": 3, "sigma": "9"}],
        [{"kind": "pca", "dimensions": 3, "sigma": math.nan}], [{"kind": "pca", "dimensions": 0, "sigma": 9.0}],
        [{"kind": "class-weights", "sigma": 9.0, "most": 0.5}],
        [{"kind": "evaluation", "sigma": 9.0, "measures": [["auroc"]], "bins": 5}],
        [{"kind": "evaluation", "sigma": 9.0, "measures": "auroc", "bins": 5}],
        [{"kind": "pca", "dimensions": 3, "sigma": 9.0}] * 101,
    ],
)  # fmt: skip
def test_what_is_no_list_of_components_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        plans.from_json({**tiny_plan().to_json(), "components": wrong})


def test_only_components_are_components() -> None:
    with pytest.raises(InvalidArgument, match="components must hold"):
        tiny_plan(components=(GaussianRelease(sigma=3.0),))
