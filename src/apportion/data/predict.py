"""Predictions of a published table model, by the receiver: numpy only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apportion.bundle import files, model, read, tensors
from apportion.bundle.verify import check_manifest
from apportion.data.table import prepare_features, read_table
from apportion.errors import BundleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """One label and one row of probabilities per record, in the order of the table."""

    classes: tuple[str, ...]
    labels: tuple[str, ...]
    probabilities: tuple[tuple[float, ...], ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "classes": list(self.classes),
            "predictions": [
                {"predicted": label, "probabilities": list(row)}
                for label, row in zip(self.labels, self.probabilities, strict=True)
            ],
            "warnings": list(self.warnings),
        }


def predict_table(bundle: Path, data: Path) -> Predictions:
    table, weights = load_table_model(bundle)
    inputs, clipped = prepare_features(read_table(data), table.ranges)
    scores = table.scores(inputs, weights)
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    warnings = [f"{clipped} values lie outside the model's range and were clipped to it"] if clipped else []
    return Predictions(
        classes=table.classes,
        labels=tuple(table.classes[index] for index in scores.argmax(axis=1)),
        probabilities=tuple(tuple(map(float, row)) for row in probabilities),
        warnings=tuple(warnings),
    )


def load_table_model(bundle: Path) -> tuple[model.TableModel, dict[str, Any]]:
    """The network and its weights, from files that are those of the manifest."""
    with read.opened(bundle) as source:
        contents = read.read_all(source)
        check_manifest(contents)
        if files.MODEL not in contents.texts:
            raise BundleError(f"{bundle} describes no table model (no {files.MODEL}); load its weights with PyTorch")
        table = model.table_of(model.parse(contents.texts[files.MODEL]))
        if table is None:
            raise BundleError(f"{bundle} holds a model that does not read tables; load its weights with PyTorch")
        with source.open(files.WEIGHTS) as file:
            size = contents.fingerprints[files.WEIGHTS]["bytes"]
            weights = dict(tensors.load(file, size))
    if {name: array.shape for name, array in weights.items()} != table.shapes():
        raise BundleError("the weights do not have the shapes of the network that model.json describes")
    return table, weights
