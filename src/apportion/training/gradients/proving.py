"""Before rules are trusted with a model, they reproduce what autograd computes for it, example by example.

A few random examples go forward once, with parameters moved a little off their values, so that parameters that start at
zero hide nothing. The private data is not looked at: which way is taken must not depend on it. For each example autograd
gives the true gradient of its loss through that very pass, dropout and all; the rules must give the same. This finds
weights used outside their layer, layers that see examples in another place than thought, layers that draw random numbers
when run again, and rules that are wrong. A model that fails goes to the fallback, which is slow and right.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from apportion.training.clipping import as_rows, flat_norms
from apportion.training.gradients.attention import without_fast_path
from apportion.training.gradients.chain import Chain
from apportion.training.gradients.per_example import in_every_place
from apportion.training.gradients.pieces import Piece
from apportion.training.gradients.recording import Recorder, ReplacedForwards, Site
from apportion.training.gradients.sites import noting, with_values
from apportion.training.gradients.summation import clip_and_sum_pieces, instantiated
from apportion.training.losses import PerExampleLoss

# Relative, per parameter. Wrong rules are wrong by about 1.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
NEGLIGIBLE = 1e-3
VANISHED = 1e-15  # a norm that may come of squares that vanished, where the gradient is zero
EXAMPLES = (3, 5, 7, 11)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Whether parameters are moved, and inputs normal or else between 0 and 1: some models stand only one of them."""

    moved: bool
    normal: bool


ATTEMPTS = (Attempt(True, True), Attempt(True, False), Attempt(False, True), Attempt(False, False))


@dataclass(frozen=True, slots=True)
class Recipe:
    """What was proved: the rules are right when the model makes these calls, with the examples in these places.

    `chained`: the model may as well be run as a chain. `bytes_per_example`: of what layers note, and of the gradients that
    they wait for, all of it held at the same time.
    """

    channels_last: bool
    calls: tuple[str, ...]
    layouts: Mapping[str, Any]
    changed_in_place: frozenset[str]
    without_gradient: tuple[str, ...]
    chained: bool
    bytes_per_example: int


class NotFinite(Exception):
    """These examples cannot tell: their gradients are not finite."""


class _Comparison(torch.nn.Module):
    """All of it inside one `forward`, so that `functional_call` keeps the moved parameters in place throughout:
    checkpointed segments read them again during the backward pass."""

    def __init__(
        self, model: torch.nn.Module, loss: PerExampleLoss, sites: Sequence[Site], chain: Chain | None
    ) -> None:
        super().__init__()
        self.model, self.loss, self.sites, self.chain = model, loss, sites, chain

    def forward(
        self, inputs: Tensor, targets: Tensor, values: Mapping[str, Tensor], channels_last: bool
    ) -> Recipe | None:
        examples = len(inputs)
        recorder = Recorder(channels_last=channels_last)
        recorder.begin(examples)
        sites = {site.name: with_values(site, {n: v.detach() for n, v in values.items()}) for site in self.sites}
        with ReplacedForwards([(site.layer, noting(recorder, site)) for site in sites.values()]):
            losses = self.loss(self.model(inputs), targets)
            recorder.recording = False
            true = _true_gradients(losses, values)
            edges = [edge for call in recorder.calls for edge in call.edges]
            at_edges = list(torch.autograd.grad(losses.sum(), edges, allow_unused=True)) if edges else []
        held = {tensor.data_ptr(): tensor.nbytes for call in recorder.calls for tensor in call.noted}
        held |= {gradient.data_ptr(): gradient.nbytes for gradient in at_edges if gradient is not None}
        allowed = tolerance([losses, *values.values()], losses.device)
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            pieces: list[Piece] = []
            for site, call in zip(recorder.sites, recorder.calls, strict=True):
                own, at_edges = at_edges[: len(call.edges)], at_edges[len(call.edges) :]
                pieces += call.pieces(sites[site], own, examples)
            ours = instantiated(pieces, torch.arange(examples))
            if not agree(true, ours, allowed) or not _norms_agree(pieces, ours, values, allowed):
                return None
        chained = self._chained(inputs, targets, true, allowed)
        silent = tuple(name for name, gradient in true.items() if gradient is None)
        calls = tuple(call.label for call in recorder.calls)
        each = -(-sum(held.values()) // examples)
        return Recipe(channels_last, calls, recorder.layouts, recorder.changed_in_place(), silent, chained, each)

    def _chained(self, inputs: Tensor, targets: Tensor, true: Mapping[str, Tensor | None], allowed: float) -> bool:
        """Whether the model, run as a chain, says the same."""
        if self.chain is None or not self.chain.is_plain() or torch.is_autocast_enabled(inputs.device.type):
            return False
        with suppress(Exception):  # whatever it objects to, the model can be run as it is
            pieces = self.chain.pieces(self.loss, inputs, targets)
            with torch.no_grad():
                return agree(true, instantiated(pieces, torch.arange(len(inputs))), allowed)
        return False


def tolerance(tensors: Iterable[Tensor], device: torch.device) -> float:
    """By how much gradients may differ, relatively, that were computed from such tensors."""
    dtypes = {tensor.dtype for tensor in tensors}
    if torch.is_autocast_enabled(device.type):
        dtypes.add(torch.bfloat16)
    return max(TOLERANCE.get(dtype, 1e-3) for dtype in dtypes)


def prove(
    model: torch.nn.Module,
    loss: PerExampleLoss,
    sites: Sequence[Site],
    chain: Chain | None,
    inputs: Tensor,
    targets: Tensor,
) -> Recipe | None:
    """A recipe, or None if the rules and autograd disagree about this model.

    Images are held channels-last if the model has convolutions and does not object (`view` on an image does).
    """
    if any(isinstance(site.layer, torch.nn.Conv2d) for site in sites):
        with suppress(Exception):
            recipe = _prove(model, loss, sites, chain, inputs, targets, channels_last=True)
            if recipe is not None:
                return recipe
    return _prove(model, loss, sites, chain, inputs, targets, channels_last=False)


def _prove(
    model: torch.nn.Module,
    loss: PerExampleLoss,
    sites: Sequence[Site],
    chain: Chain | None,
    inputs: Tensor,
    targets: Tensor,
    *,
    channels_last: bool,
) -> Recipe | None:
    comparison = _Comparison(model, loss, sites, chain)
    for kind in ATTEMPTS:
        values = values_near(model, moved=kind.moved)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        named = {f"model.{name}": value for name, value in in_every_place(model, {**values, **buffers}).items()}
        x, y = random_examples(inputs, targets, normal=kind.normal)
        with torch.random.fork_rng(), torch.enable_grad(), without_fast_path():
            try:
                recipe: Recipe | None = functional_call(
                    comparison, named, (x, y, values, channels_last), tie_weights=False
                )
                return recipe
            except NotFinite:
                continue
    return None


def random_examples(
    inputs: Tensor, targets: Tensor, *, normal: bool, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """A few examples, or `count`, that share only shape and dtype with the given ones: whole numbers are 0 or 1."""
    if count is None:  # a number that no other axis has makes it plain by shape where the examples are
        count = next((n for n in EXAMPLES if n not in inputs.shape[1:]), EXAMPLES[0])
    generator = torch.Generator().manual_seed(0)

    def like(tensor: Tensor, draw: Callable[..., Tensor]) -> Tensor:
        shape = (count, *tensor.shape[1:])
        if tensor.is_floating_point():
            return draw(shape, generator=generator).to(tensor)
        return torch.randint(0, 2, shape, generator=generator).to(tensor)

    return like(inputs, torch.randn if normal else torch.rand), like(targets, torch.rand)


def values_near(model: torch.nn.Module, *, moved: bool) -> dict[str, Tensor]:
    """The trainable parameters, copied, and moved a little or not."""
    generator = torch.Generator().manual_seed(0)
    values = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            value = parameter.detach().clone()
            if moved:
                step = 0.02 + 0.1 * float(value.double().square().mean().sqrt()) if value.numel() else 0.0
                noise = torch.randn(value.shape, generator=generator, dtype=torch.float32)
                value += step * noise.to(value)
            values[name] = value.requires_grad_()
    return values


def _true_gradients(losses: Tensor, values: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """Parameter → (examples, *shape), or None where no example's loss depends on it."""
    each = [torch.autograd.grad(value, list(values.values()), retain_graph=True, allow_unused=True) for value in losses]
    true: dict[str, Tensor | None] = {}
    for (name, value), gradients in zip(values.items(), zip(*each, strict=True), strict=True):
        unused = all(gradient is None for gradient in gradients)
        filled = [torch.zeros_like(value) if gradient is None else gradient for gradient in gradients]
        true[name] = None if unused else torch.stack(filled).double()
    return true


def agree(true: Mapping[str, Tensor | None], ours: Mapping[str, Tensor], tolerance: float) -> bool:
    """Whether gradients are the same, parameter by parameter; raises `NotFinite` if fewer than two examples can tell."""
    rows = [as_rows(gradient) for gradient in true.values() if gradient is not None]
    if not rows:
        return not ours
    finite = torch.stack([torch.isfinite(row).all(1) for row in rows]).all(0)
    if int(finite.sum()) < 2:
        raise NotFinite
    overall = torch.stack([row[finite].norm() for row in rows]).norm()
    for name, gradient in true.items():
        reference = None if gradient is None else gradient[finite]
        own = ours[name][finite] if name in ours else None
        if reference is None or own is None:
            alone = reference if own is None else own
            difference = torch.zeros(()) if alone is None else alone.norm()
            allowed = NEGLIGIBLE * tolerance * overall
        else:
            difference = (own - reference).norm()
            allowed = tolerance * (reference.norm() + NEGLIGIBLE * overall)
        if not bool(difference <= allowed):
            return False
    return True


def _norms_agree(
    pieces: Sequence[Piece], ours: Mapping[str, Tensor], values: Mapping[str, Tensor], tolerance: float
) -> bool:
    """What the pieces say about norms without building gradients is what the built gradients say."""
    if not ours:
        return True
    expected = flat_norms(ours)
    examples = len(expected)
    norms = clip_and_sum_pieces(list(pieces), values, examples, 1.0).norms
    close = (norms - expected).abs() <= tolerance * expected + VANISHED
    return bool((close | ~torch.isfinite(expected)).all())
