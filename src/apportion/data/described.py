"""The public description of a table model, from the settings of its run."""

from apportion.bundle.model import TableModel
from apportion.data.wisconsin import CLASSES, RANGE, TARGET, wisconsin
from apportion.settings import Settings


def table_model(chosen: Settings) -> TableModel:
    """Everything in it was declared before training; nothing is read off private data."""
    if chosen.dataset == "wisconsin":
        target, classes = TARGET, CLASSES
        ranges = dict.fromkeys(wisconsin()[0].features, RANGE)
    else:
        assert chosen.target is not None
        target, classes, ranges = chosen.target, chosen.classes, dict(chosen.ranges)
    return TableModel(
        target=target, classes=classes, ranges=ranges, hidden=chosen.hidden, activation=chosen.activation
    )
