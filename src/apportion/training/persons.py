"""Records that belong to persons: batches are drawn over persons, and a person brings their records along."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from apportion.batching import Batching
from apportion.errors import DataError
from apportion.randomness import RandomStream
from apportion.training.records import Indices, Part, Records, Units
from apportion.units import Person


@dataclass(frozen=True, slots=True, kw_only=True)
class Persons:
    """Whose each record is. Sensitive throughout, their number included."""

    order: Indices  # records, person after person
    starts: Indices  # where in `order` each person begins; one more for the end
    unit: Person

    @staticmethod
    def of(ids: Any, records: int, unit: Person) -> "Persons":
        found = _checked_ids(ids, records)
        _, owners = np.unique(found, return_inverse=True)
        counts = np.bincount(owners)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Persons(order=np.argsort(owners, kind="stable"), starts=starts, unit=unit)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def records(self, persons: Indices, stream: RandomStream) -> tuple[Indices, Indices]:
        """(records, how many are whose): all records of these persons, or as many as the plan allows.

        Guarantees: which records of a person are taken depends on fresh coins and on that person's own records.
        """
        taken = [self._of_one(person, stream) for person in persons]
        sizes = np.array([len(records) for records in taken], dtype=np.int64)
        return np.concatenate(taken) if taken else np.empty(0, np.int64), sizes

    def _of_one(self, person: int, stream: RandomStream) -> Indices:
        own = self.order[self.starts[person] : self.starts[person + 1]]
        most = self.unit.most_records
        if most is None or len(own) <= most:
            return own
        return own[stream.permutation(len(own))[:most]]

    def epoch(
        self, records: Records, batching: Batching, at_once: int | None, stream: RandomStream
    ) -> Iterator[tuple[Iterable[Part], Units]]:
        """Batches of persons, as parts with their records in order, and which of them are whose."""
        sizes: deque[Indices] = deque()

        def drawn() -> Iterator[Indices]:
            for persons in batching.draw(len(self), stream):
                indices, counts = self.records(persons, stream)
                sizes.append(counts)
                yield indices

        for parts in records.epoch(drawn(), at_once):
            yield parts, Units(sizes=sizes.popleft(), averaged=self.unit.gradient == "mean")


_MISSING = "unit must hold whole numbers or texts as ids, not both, and none may be missing"


def _checked_ids(ids: Any, records: int) -> np.ndarray:
    if np.ma.is_masked(ids):
        raise DataError(_MISSING)
    # Of a list numpy would make texts of all, of a NaN as well: everybody without an id would be one and the same person.
    found = np.asarray(ids) if hasattr(ids, "dtype") else np.asarray(ids, dtype=object)
    if found.ndim != 1 or len(found) != records:
        raise DataError(f"unit must hold one id per record: {records} records, but the ids have shape {found.shape}")
    if found.dtype.kind == "O":
        texts = {isinstance(one, str) for one in found}
        if len(texts) > 1 or not all(isinstance(one, str | int | np.integer) for one in found):
            raise DataError(_MISSING)
        found = np.asarray(found.tolist())
    if found.dtype.kind not in "iuU":
        raise DataError(f"unit must hold whole numbers or texts as ids, got {found.dtype}")
    if found.dtype.kind == "U" and bool((np.char.str_len(np.char.strip(found)) == 0).any()):
        raise DataError(
            "unit must name every record's person, but some ids are empty: records without an id cannot be protected "
            "together; leave them out, or give each an id of its own"
        )
    return found
