"""Internal metrics take the same memory for any number of records, and are close enough to the exact numbers."""

import math

import pytest
import torch

from apportion.training.metrics import Norms


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_median_of_norms_is_right_to_half_a_per_cent(scale: float) -> None:
    values = scale * torch.rand(10_001, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    norms = Norms()
    for part in values.split(777):
        norms.add(part, scale / 4)
    assert norms.median() == pytest.approx(float(values.median()), rel=0.006)
    assert norms.above == int((values > scale / 4).sum())


def test_zero_infinite_and_missing_norms_do_no_harm() -> None:
    norms = Norms()
    assert norms.median() is None
    norms.add(torch.tensor([math.nan, math.inf]), 1.0)
    assert norms.median() is None
    assert (norms.records, norms.above) == (2, 1)
    norms.add(torch.zeros(3), 1.0)
    assert norms.median() == 0.0
    norms.add(torch.full((9,), 1e300, dtype=torch.float64), 1.0)
    assert norms.median() == pytest.approx(1e-13 * 1.01**5999.5)
