"""The one base of all rule tests: a loop over single examples, in float64, and the sensitivity law."""

import copy

import torch
from torch import Tensor, nn

from apportion.training.gradients import prepare
from apportion.training.gradients.prepared import Prepared


def loop(model: nn.Module, loss, inputs: Tensor, targets: Tensor, clip: float):
    """Clipped sums and norms by an ordinary backward pass for every example by itself."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in named.items()}
    norms = []
    for i in range(len(inputs)):
        value = loss(model(inputs[i : i + 1]), targets[i : i + 1]).sum()
        gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True, materialize_grads=True)
        norm = torch.cat([g.double().flatten() for g in gradients]).norm()
        norms.append(norm)
        factor = min(1.0, clip / float(norm)) if norm > 0 else 1.0
        for name, gradient in zip(sums, gradients, strict=True):
            sums[name] += factor * gradient.double()
    return sums, torch.stack(norms) if norms else torch.zeros(0, dtype=torch.float64)


def flat(sums) -> Tensor:
    return torch.cat([value.double().flatten() for value in sums.values()])


def used_rules(prepared: Prepared) -> bool:
    return bool(prepared.recipes) and all(recipe is not None for recipe in prepared.recipes.values())


def assert_matches_loop(model, loss, inputs, targets, *, rules=True, tolerance=1e-10) -> Prepared:
    """Agrees with the loop at a clip that cuts about half the examples, and leaves the model alone."""
    model = model.double()
    _, norms = loop(model, loss, inputs, targets, 1.0)
    clip = float(norms.median()) if len(norms) and norms.median() > 0 else 1.0
    reference, norms = loop(model, loss, inputs, targets, clip)
    before = fingerprint(model)
    prepared = prepare(model, loss)
    result = prepared(inputs, targets, clip)
    assert fingerprint(model) == before
    assert torch.allclose(result.norms, norms, rtol=tolerance, atol=1e-13)
    overall = flat(reference).norm()
    for name, expected in reference.items():
        difference = (result.sums[name] - expected).norm()
        # A gradient that is zero but for cancellation (a bias in front of a normalisation) is compared with the whole.
        assert difference <= tolerance * max(expected.norm(), 1e-6 * overall), name
    assert list(result.sums) == list(reference)
    assert used_rules(prepared) == rules
    return prepared


def fingerprint(model: nn.Module):
    return [
        (name, type(module), sorted(module.__dict__), len(module._forward_hooks), len(module._forward_pre_hooks))
        for name, module in model.named_modules()
    ] + [(name, p.requires_grad, p.grad is None, p._version) for name, p in model.named_parameters()]


def assert_bounded(prepared: Prepared, inputs: Tensor, targets: Tensor, clip: float, changes) -> None:
    """For each change (a function from inputs to inputs with one example altered), and for leaving the example out."""
    slack = 1e-12 if inputs.dtype == torch.float64 else 1e-5
    base = prepared(inputs, targets, clip)
    without = torch.arange(len(inputs)) != 0
    rest = flat(prepared(inputs[without], targets[without], clip).sums)
    assert (flat(base.sums) - rest).norm() <= clip * (1 + slack)
    for change in changes:
        changed = inputs.clone()
        changed[0] = change(inputs[0])
        result = prepared(changed, targets, clip)
        assert torch.isfinite(flat(result.sums)).all()
        assert (flat(result.sums) - rest).norm() <= clip * (1 + slack)


def copies(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)
