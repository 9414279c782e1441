"""What is protected: one example, or one person with all of their records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from apportion import _checks
from apportion.errors import InvalidArgument

PersonGradient = Literal["mean", "sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Every record by itself."""

    kind: ClassVar[str] = "example"

    def to_json(self) -> Any:
        return self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """All records with the same id, together. The plan's `examples` then counts persons.

    Batches are drawn over persons, and what is clipped is a person's `gradient`: the mean or the sum over their records.
    A person with more than `most_records` takes part with that many, drawn afresh each time: which ones depends on
    coins and on nobody else's records. No bound on records is needed for the guarantee; it saves time and memory.
    """

    kind: ClassVar[str] = "person"
    gradient: PersonGradient = "mean"
    most_records: int | None = None

    def __post_init__(self) -> None:
        _checks.choice("gradient", self.gradient, get_args(PersonGradient))
        if self.most_records is not None:
            object.__setattr__(self, "most_records", _checks.count("most_records", self.most_records))

    def to_json(self) -> Any:
        return {"kind": self.kind, "gradient": self.gradient, "most_records": self.most_records}


Unit = Example | Person
EXAMPLE = Example()


def from_json(data: Any) -> Unit:
    """The inverse of `to_json`; unknown kinds and fields are refused."""
    if data == EXAMPLE.kind:
        return EXAMPLE
    if isinstance(data, Mapping) and set(data) == {"kind", "gradient", "most_records"} and data["kind"] == Person.kind:
        return Person(gradient=data["gradient"], most_records=data["most_records"])
    raise InvalidArgument(f"unit must be 'example', or a person with gradient and most_records; got {data!r:.80}")


def require_unit(value: Any) -> Unit:
    if not isinstance(value, Example | Person):
        raise InvalidArgument(f"unit must be Example() or Person(...), got {value!r:.80}")
    return value
