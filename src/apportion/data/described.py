"""The public description of a table model, from the settings of its run."""

from pathlib import Path

from apportion import canonical
from apportion.bundle.model import TableModel
from apportion.data.wisconsin import CLASSES, RANGE, TARGET, wisconsin
from apportion.settings import FILE, Settings, from_json


def table_model(chosen: Settings) -> TableModel:
    """Everything in it was declared before training; nothing is read off private data."""
    if chosen.dataset == "wisconsin":
        target, classes = TARGET, CLASSES
        ranges = dict.fromkeys(wisconsin()[0].features, RANGE)
    else:
        assert chosen.target is not None
        target, classes, ranges = chosen.target, chosen.classes, dict(chosen.ranges)
    return TableModel(target=target, classes=classes, ranges=ranges, hidden=chosen.hidden, activation=chosen.activation)


def table_of_run(run: Path) -> TableModel | None:
    """The description of a run that `apportion train` began; None for a run of one's own code."""
    path = run / FILE
    return table_model(from_json(canonical.loads(path.read_bytes()))) if path.is_file() else None
