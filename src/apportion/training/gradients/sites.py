"""Which layers of a model are handled by which rule."""

from collections.abc import Iterable, Mapping
from weakref import ref

import torch
from torch import Tensor

# Importing the families registers their rules.
from apportion.training.gradients import attention, convolution, embedding, linear, normalisation  # noqa: F401
from apportion.training.gradients.any_layer import noting_any_layer
from apportion.training.gradients.attention import is_plain, noting_attention
from apportion.training.gradients.convolution import channels_last
from apportion.training.gradients.pieces import Part
from apportion.training.gradients.recording import Forward, Recorder, Site
from apportion.training.gradients.registry import RULES, Rule, RuleDoesNotApply


def find_sites(model: torch.nn.Module) -> list[Site]:
    """The smallest layers that own all trainable parameters: known layers, and around unknown parameters any layer."""
    canonical = {id(parameter): name for name, parameter in model.named_parameters()}
    sites: list[Site] = []

    def visit(name: str, layer: torch.nn.Module) -> None:
        known = type(layer) in RULES or is_plain(layer)
        own = any(parameter.requires_grad for parameter in layer.parameters(recurse=known))
        if own:
            trainable = {n: p for n, p in layer.named_parameters() if p.requires_grad}
            parts = {n: Part(canonical[id(p)], p.shape) for n, p in trainable.items()}
            sites.append(Site(name, ref(layer), parts, trainable))
        elif not known:
            for child_name, child in layer.named_children():
                visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", model)
    return list({id(site.layer): site for site in sites}.values())


def noting(recorder: Recorder, site: Site) -> Forward:
    """The site's forward pass, telling the recorder."""
    layer = site.layer
    if isinstance(layer, torch.nn.MultiheadAttention) and is_plain(layer):
        return noting_attention(recorder, site.name, layer)
    forward: Forward = layer.forward
    rule = RULES.get(type(layer))
    if rule is None:
        return noting_any_layer(recorder, site.name, layer, forward)
    if recorder.channels_last and isinstance(layer, torch.nn.Conv2d):
        return _noting_layer(recorder, site.name, rule, lambda images: forward(channels_last(images)))
    return _noting_layer(recorder, site.name, rule, forward)


def _noting_layer(recorder: Recorder, site: str, rule: Rule, forward: Forward) -> Forward:
    note = recorder.note

    def noting(*args: Tensor, **kwargs: Tensor) -> Tensor:
        if len(args) + len(kwargs) != 1:
            raise RuleDoesNotApply(f"{site!r} was called with more than its input")
        (inputs,) = args or kwargs.values()
        return note(site, rule, inputs, forward(inputs))

    return noting


class Watch:
    """Sites that note to one recorder, for as many passes as one likes."""

    def __init__(self, sites: Iterable[Site], recorder: Recorder) -> None:
        self.recorder = recorder
        layers = [site.layer for site in sites]
        self._forwards = [layer.forward for layer in layers]
        self.replacements = [(layer, noting(recorder, site)) for layer, site in zip(layers, sites, strict=True)]

    def is_current(self) -> bool:
        """Whether every layer still does what it did: what one notes is what it computed then."""
        return self._forwards == [layer.forward for layer, _ in self.replacements]


def with_values(site: Site, values: Mapping[str, Tensor]) -> Site:
    """The same site with other values of its parameters, given by canonical name."""
    return Site(site.name, site.reference, site.parts, {name: values[part.name] for name, part in site.parts.items()})
