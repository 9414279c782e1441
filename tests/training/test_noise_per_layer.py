"""The noise of per-layer clipping has the standard deviation that is charged for, in every layer."""

import math

import pytest
import torch
from scipy.special import chdtr, chdtrc
from torch import nn

import apportion as ap
from apportion.randomness import RandomStream
from apportion.training.gradients import clipped_sum
from apportion.training.noise import add_noise

FALSE_ALARM = 1e-10


@pytest.mark.parametrize("kind", ["float", "grid"])
@pytest.mark.parametrize("how", ["scaled", "each"])
def test_every_layer_has_noise_in_proportion_to_its_own_bound(how, kind):
    """`scaled`: σ√L·C_l; `each`: σ·C_l, because the plan charges σ/√L."""
    model = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 30))
    clipping = ap.PerLayer(layers={"0": 1.0, "2": 0.01}, noise=how)
    clip, sigma = 4.0, 1.7
    inputs, targets = torch.randn(0, 40), torch.zeros(0)
    clipped = clipped_sum(model, lambda outputs, targets: outputs.sum(1), inputs, targets, clip=clip, clipping=clipping)
    noisy = add_noise(clipped, clipping.charged(sigma), RandomStream(), kind)
    for prefix, relative in (("0", 1.0), ("2", 0.01)):
        noise = torch.cat([value.flatten() for name, value in noisy.sums.items() if name.startswith(prefix)])
        expected = sigma * clip * relative * (math.sqrt(2) if how == "scaled" else 1.0)
        squares = float((noise / expected).square().sum())
        assert min(chdtr(len(noise), squares), chdtrc(len(noise), squares)) > FALSE_ALARM
