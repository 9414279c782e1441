"""The public description of a table model, from the settings of its run."""

from collections.abc import Mapping
from pathlib import Path

from apportion import canonical
from apportion.bundle.model import TableModel
from apportion.data.named import NAMED
from apportion.settings import FILE, Settings, from_json


def table_model(chosen: Settings) -> TableModel:
    """Everything in it was declared before training; nothing is read off private data."""
    if chosen.dataset is not None:
        named = NAMED[chosen.dataset]
        return _network(chosen, named.target, named.classes, named.ranges())
    assert chosen.target is not None
    return _network(chosen, chosen.target, chosen.classes, chosen.ranges)


def _network(
    chosen: Settings, target: str, classes: tuple[str, ...], ranges: Mapping[str, tuple[float, float]]
) -> TableModel:
    return TableModel(
        target=target,
        classes=classes,
        ranges=dict(ranges),
        hidden=chosen.hidden,
        activation=chosen.activation,
        projection=chosen.pca_dimensions if chosen.has("pca") else None,
        standardised=chosen.has("scaling"),
    )


def table_of_run(run: Path) -> TableModel | None:
    """The description of a run that `apportion train` began; None for a run of one's own code."""
    path = run / FILE
    return table_model(from_json(canonical.loads(path.read_bytes()))) if path.is_file() else None
