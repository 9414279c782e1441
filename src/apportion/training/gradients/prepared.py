"""A model and its loss, made ready for clipped sums of per-example gradients."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial, reduce
from types import TracebackType
from typing import Self, TypeVar

import torch
from torch import Tensor

from apportion import _checks
from apportion.clipping import FLAT, Clipping
from apportion.training.clipping import ClippedSum
from apportion.training.gradients.allocation import keep_freed_memory
from apportion.training.gradients.attention import without_fast_path
from apportion.training.gradients.by_layer import clip_pieces
from apportion.training.gradients.by_unit import UnitSums
from apportion.training.gradients.chain import find_chain
from apportion.training.gradients.compiled import Compiled
from apportion.training.gradients.per_example import clipped_sum_by_examples, gradients_by_examples, trainable
from apportion.training.gradients.pieces import Piece, in_chunks
from apportion.training.gradients.proving import Recipe, prove
from apportion.training.gradients.recording import Recorder, ReplacedForwards, Site, WithoutGradients
from apportion.training.gradients.registry import RuleDoesNotApply
from apportion.training.gradients.sites import Watch, find_sites
from apportion.training.gradients.structure import Structure
from apportion.training.losses import PerExampleLoss, per_example

NOTED, LEAST = 5 * 2**24, 8  # bytes that layers note at a time, and examples that they note in any case

Recipes = MutableMapping[Hashable, Recipe | None]
R = TypeVar("R")


class Preparation:
    """What is known about a model's structure, without holding on to the model itself."""

    def __init__(self, model: torch.nn.Module, compiled_rows: int | None = None) -> None:
        """`compiled_rows`: how many rows at a time to compile for, if at all; see `compiled`."""
        keep_freed_memory()
        self.parameters = trainable(model)
        self.compiled = None if compiled_rows is None else Compiled(self.parameters, compiled_rows)
        self.sites = {site.name: site for site in find_sites(model)}
        self.structure = Structure(model)
        self.chain = find_chain(model, self.sites.values())
        self.recipes: Recipes = {}
        self._losses: dict[Callable[..., Tensor], PerExampleLoss] = {}
        transformers = (torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
        self.has_fast_path = any(isinstance(module, transformers) for module in model.modules())
        self._watch: tuple[Recipe, Watch] | None = None
        self._may_keep_watch = all(site.layer is not model for site in self.sites.values())

    def fits(self, model: torch.nn.Module) -> bool:
        return self.structure.fits(model)

    def clipped_sum(
        self,
        model: torch.nn.Module,
        loss: Callable[..., Tensor],
        inputs: Tensor,
        targets: Tensor,
        clip: float,
        clipping: Clipping,
    ) -> ClippedSum:
        clip = _checks.positive("clip", clip)
        if inputs.shape[0] == 0:
            return self._of_pieces([], 0, clip, clipping)
        compute, use = self._per_example(loss), partial(self._of_pieces, clip=clip, clipping=clipping)

        def slowly(inputs: Tensor, targets: Tensor) -> ClippedSum:
            return clipped_sum_by_examples(model, compute, inputs, targets, clip, clipping)

        return reduce(ClippedSum.plus, self._portions(model, loss, inputs, targets, use, slowly))

    def add_to_units(
        self, units: UnitSums, model: torch.nn.Module, loss: Callable[..., Tensor], inputs: Tensor, targets: Tensor
    ) -> None:
        """The next records of a batch, to the units they belong to."""
        if inputs.shape[0] == 0:
            return

        def slowly(inputs: Tensor, targets: Tensor) -> None:
            for rows in in_chunks(torch.arange(len(inputs)), units.at_once):
                built = gradients_by_examples(model, self._per_example(loss), inputs[rows], targets[rows])
                units.add(built.gradients, len(rows))

        for _ in self._portions(model, loss, inputs, targets, units.add_pieces, slowly):
            pass  # it is in the units

    def _portions(
        self,
        model: torch.nn.Module,
        loss: Callable[..., Tensor],
        inputs: Tensor,
        targets: Tensor,
        use: Callable[[list[Piece], int], R],
        otherwise: Callable[[Tensor, Tensor], R],
    ) -> Iterator[R]:
        """What `use` makes of the pieces of every portion of a batch, one after the other, in the quickest way there is.

        Where the rules do not apply, `otherwise` gets the portion; `use` has seen nothing of it then.
        """
        compute, key = self._per_example(loss), self._key(model, loss, inputs, targets)
        recipe = self._recipe(key, model, compute, inputs, targets)
        if self.compiled is not None and (recipe is None or not recipe.chained):  # a chain is quicker as it is
            for piece in self.compiled.pieces(key, model, compute, inputs, targets):
                with torch.no_grad(), _in_full_precision(inputs.device.type):
                    made = use([piece], len(piece))
                yield made
        elif recipe is None:
            yield otherwise(inputs, targets)
        else:
            for part in _in_portions(inputs, targets, recipe):
                try:
                    made = self._by_rules(recipe, model, compute, *part, use)
                except RuleDoesNotApply:  # this batch made the model do something else than what was proved
                    made = otherwise(*part)
                yield made

    def _per_example(self, loss: Callable[..., Tensor]) -> PerExampleLoss:
        compute = self._losses.get(loss)
        if compute is None:
            compute = self._losses[loss] = per_example(loss)
        return compute

    def _key(
        self, model: torch.nn.Module, loss: Callable[..., Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[Hashable, ...]:
        """What a batch has in common with those that are treated like it: shapes and types, never values."""
        return (
            loss,
            inputs.shape[1:],
            inputs.dtype,
            targets.shape[1:],
            targets.dtype,
            torch.is_autocast_enabled(inputs.device.type),
            model.training,
            tuple([module.training for module in self.structure.modules]),
        )

    def _recipe(
        self, key: Hashable, model: torch.nn.Module, compute: PerExampleLoss, inputs: Tensor, targets: Tensor
    ) -> Recipe | None:
        """What was proved for such batches, proving it if this is the first one."""
        if key not in self.recipes:
            try:
                self.recipes[key] = prove(model, compute, list(self.sites.values()), self.chain, inputs, targets)
            except Exception:
                # Whatever the model objects to here, it will say again to the fallback, or it is only our way of asking.
                self.recipes[key] = None
            self._report(self.recipes[key])
        return self.recipes[key]

    def _report(self, recipe: Recipe | None) -> None:
        if recipe is not None and recipe.without_gradient:
            names = ", ".join(recipe.without_gradient)
            warnings.warn(
                f"no example's loss depends on {names}: they will receive noise only; freeze them with "
                "requires_grad_(False), or use them",
                stacklevel=6,
            )

    def _by_rules(
        self,
        recipe: Recipe,
        model: torch.nn.Module,
        loss: PerExampleLoss,
        inputs: Tensor,
        targets: Tensor,
        use: Callable[[list[Piece], int], R],
    ) -> R:
        if recipe.chained and self.chain is not None and self.chain.is_plain():
            pieces = self.chain.pieces(loss, inputs, targets)
            with torch.no_grad():
                return use(pieces, inputs.shape[0])
        watch, examples = self._watch_for(recipe), inputs.shape[0]
        recorder = watch.recorder
        recorder.begin(examples)
        try:
            with WithoutGradients(self.parameters.values()), ReplacedForwards(watch.replacements), torch.enable_grad():
                with without_fast_path() if self.has_fast_path else nullcontext():
                    losses = loss(model(inputs), targets)
                recorder.recording = False
                if tuple([call.label for call in recorder.calls]) != recipe.calls:
                    raise RuleDoesNotApply("the model called its layers in another order than before")
                edges = [edge for call in recorder.calls for edge in call.edges]
                gradients = torch.autograd.grad(losses, edges, torch.ones_like(losses), allow_unused=True)
            with torch.no_grad(), _in_full_precision(inputs.device.type):
                return use(self._pieces(recorder, list(gradients)), examples)
        finally:
            recorder.begin(0)  # holds nothing between calls

    def _watch_for(self, recipe: Recipe) -> Watch:
        """The one of the last call, if it will do."""
        if self._watch is not None and self._watch[0] is recipe and self._watch[1].is_current():
            return self._watch[1]
        recorder = Recorder(recipe.layouts, recipe.changed_in_place, channels_last=recipe.channels_last)
        watch = Watch(self.sites.values(), recorder)
        if self._may_keep_watch:  # it holds the layers, and what is known about a model may not hold the model
            self._watch = recipe, watch
        return watch

    def _pieces(self, recorder: Recorder, gradients: list[Tensor | None]) -> list[Piece]:
        """From the last layer to the first.

        Empties recorder and gradients, so that each can be freed as soon as its layer's rule is done with it; and begins
        with the first layer, where activations are largest and what is built is smallest.
        """
        pieces: list[Piece] = []
        while recorder.calls:
            call, site = recorder.calls.pop(0), self.sites[recorder.sites.pop(0)]
            own = [gradients.pop(0) for _ in call.edges]
            pieces += call.pieces(site, own, recorder.examples)
        return pieces[::-1]

    def _of_pieces(self, pieces: list[Piece], examples: int, clip: float, clipping: Clipping) -> ClippedSum:
        return clip_pieces(pieces, self.parameters, examples, clip, clipping)


def _in_portions(inputs: Tensor, targets: Tensor, recipe: Recipe) -> list[tuple[Tensor, Tensor]]:
    """On a processor, as many examples at a time as note `NOTED` bytes: more take memory, and time, because what is noted
    has left the cache when it is needed. A public number, and a power of two, so that it does not waver."""
    at_once = max(LEAST, 1 << (NOTED // max(1, recipe.bytes_per_example)).bit_length() >> 1)
    if inputs.shape[0] <= at_once or recipe.chained or inputs.device.type != "cpu":
        return [(inputs, targets)]
    return list(zip(torch.split(inputs, at_once), torch.split(targets, at_once), strict=True))


def _in_full_precision(device: str) -> AbstractContextManager[object]:
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


class Prepared:
    """`prepared(inputs, targets, clip)` → `ClippedSum`.

    Between calls the model is exactly as the user left it: layers are replaced only while a call runs. A change of the
    model's modules, or of which parameters are trainable, asks for a new `Prepared`.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Tensor], compiled_rows: int | None = None) -> None:
        self.model, self.loss = model, loss
        self._preparation = Preparation(model, compiled_rows)

    @property
    def recipes(self) -> Recipes:
        return self._preparation.recipes

    @property
    def sites(self) -> Mapping[str, Site]:
        return self._preparation.sites

    def __call__(self, inputs: Tensor, targets: Tensor, clip: float, clipping: Clipping = FLAT) -> ClippedSum:
        return self._preparation.clipped_sum(self.model, self.loss, inputs, targets, clip, clipping)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forgets what was learnt about the model; there is nothing else to undo."""
        self.recipes.clear()
