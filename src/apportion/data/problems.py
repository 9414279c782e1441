"""What is wrong with a table's values, by column and row number; values themselves are never told."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_SHOWN = 3


@dataclass(slots=True)
class RowNumbers:
    """How many rows, and the first few of them, counted from 1."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, rows: NDArray[np.int64]) -> None:
        self.count += len(rows)
        self.first += rows[: _SHOWN - len(self.first)].tolist()

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.first))
        return f"row {shown}" if self.count == 1 else f"{self.count} rows (first: {shown})"


class Problems:
    """Collected over a whole table, so that all are reported together."""

    def __init__(self) -> None:
        self._rows: dict[str, RowNumbers] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def missing_label(self, target: str, wrong: NDArray[np.bool_], before: int = 0) -> None:
        self._add(f"target {_literal(target)}: label missing in {{}}; drop those records", wrong, before)

    def unknown_label(self, target: str, classes: tuple[str, ...], wrong: NDArray[np.bool_], before: int = 0) -> None:
        listed = _literal(", ".join(classes))
        self._add(
            f"target {_literal(target)}: {{}} hold a label that is none of the declared classes ({listed})",
            wrong,
            before,
        )

    def missing_person(self, column: str, wrong: NDArray[np.bool_], before: int = 0) -> None:
        self._add(
            f"unit {_literal(column)}: no person is named in {{}}; drop those records, or give each an id",
            wrong,
            before,
        )

    def text(self, column: str, wrong: NDArray[np.bool_], before: int = 0) -> None:
        self._add(
            f"column {_literal(column)} is text in {{}}: encode it as numbers by a public rule, or --ignore it",
            wrong,
            before,
        )

    def missing_value(self, column: str, wrong: NDArray[np.bool_], before: int = 0) -> None:
        self._add(
            f"column {_literal(column)} lacks a value in {{}}: fill it by a public rule, or drop the records",
            wrong,
            before,
        )

    def _add(self, text: str, wrong: NDArray[np.bool_], before: int) -> None:
        """`wrong` marks rows of a piece of the table that has `before` rows before it."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            self._rows.setdefault(text, RowNumbers()).add(rows + before + 1)

    def __str__(self) -> str:
        return "\n".join(text.format(rows) for text, rows in self._rows.items())


def _literal(name: str) -> str:
    return name.replace("{", "{{").replace("}", "}}")
