"""Inputs and class labels as arrays, with the public facts about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.randomness import RandomStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """`inputs` (records, features) scaled to [−1, 1] by declared ranges; `targets` (records,) index into `classes`.

    Without classes, targets are numbers in [−1, 1]. `persons`, if known, are ids that say whose each record is.
    """

    inputs: NDArray[np.floating[Any]]
    targets: NDArray[Any]
    features: tuple[str, ...]
    classes: tuple[str, ...]
    persons: NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def units(self) -> int:
        """How many persons there are; records, if persons are not known."""
        return len(self) if self.persons is None else len(np.unique(self.persons))

    def select(self, chosen: NDArray[np.bool_]) -> "Dataset":
        return Dataset(
            inputs=self.inputs[chosen],
            targets=self.targets[chosen],
            features=self.features,
            classes=self.classes,
            persons=None if self.persons is None else self.persons[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDataset:
    """What is public about a data set with a name. `load` takes the directory of its files, if it has any."""

    source: str
    target: str
    classes: tuple[str, ...]
    ranges: Callable[[], Mapping[str, tuple[float, float]]]
    load: Callable[[Path | None], tuple[Dataset, Dataset]]


def draw_holdout(records: int, share: float, stream: RandomStream) -> NDArray[np.bool_]:
    """True for held-out records: one independent coin per record, so that a record's fate depends on no other record."""
    return stream.coins(share, records) if share > 0 else np.zeros(records, np.bool_)


def draw_holdout_of_persons(persons: NDArray[np.str_], share: float, stream: RandomStream) -> NDArray[np.bool_]:
    """The same with one coin per person: all records of a held-out person are held out."""
    everybody, owners = np.unique(persons, return_inverse=True)
    return draw_holdout(len(everybody), share, stream)[owners]
