"""What the publisher states beside the arithmetic. Nobody can recompute a statement; so it is short, typed and shown.

Earlier runs on the same data and hyperparameters tuned on it are the largest leak in practice, and no ledger of one run
can see them. What is not stated is published as "not declared".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from apportion import _checks
from apportion.errors import InvalidArgument

Hyperparameters = Literal["fixed", "public-data", "selected", "tuned-on-this-data"]
HYPERPARAMETERS: tuple[Hyperparameters, ...] = get_args(Hyperparameters)
NOT_DECLARED = "not declared"

MOST_EARLIER_RUNS = 1_000_000
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_LICENSE = r"[a-z0-9][a-z0-9.-]{0,39}"
# One line of ordinary text. Characters that Markdown or HTML would act upon are left out.
_SENTENCE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029<>&`|\\*_\[\]#~]{1,500}"

HYPERPARAMETERS_IN_WORDS: Mapping[str, str] = {
    "fixed": "fixed before this data was looked at",
    "public-data": "chosen on public data only",
    "selected": "chosen by a private selection that is recorded in the ledger and paid for",
    "tuned-on-this-data": "tuned on this data by runs that are not in the ledger: their cost is NOT in the guarantee",
    NOT_DECLARED: "not declared: if they were tuned on this data, the cost of that is not in the guarantee",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The publisher's statements. `earlier_runs` counts the runs on the same data before this one, published or not."""

    name: str = "model"
    hyperparameters: Hyperparameters | None = None
    earlier_runs: int | None = None
    intended_use: str | None = None
    license: str | None = None

    def __post_init__(self) -> None:
        _matches("name", self.name, _NAME, "letters, digits, dots, dashes and underscores, at most 96 of them")
        if self.hyperparameters is not None:
            _checks.choice("hyperparameters", self.hyperparameters, HYPERPARAMETERS)
        if self.earlier_runs is not None:
            runs = _checks.count("earlier_runs", self.earlier_runs, least=0)
            if runs > MOST_EARLIER_RUNS:
                raise InvalidArgument(f"earlier_runs must be at most {MOST_EARLIER_RUNS:,}")
        if self.intended_use is not None:
            _matches("intended_use", self.intended_use, _SENTENCE, "one line of at most 500 characters without markup")
        if self.license is not None:
            _matches("license", self.license, _LICENSE, "an identifier such as apache-2.0")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "hyperparameters": self.hyperparameters or NOT_DECLARED,
            "earlier_runs": NOT_DECLARED if self.earlier_runs is None else self.earlier_runs,
            "intended_use": self.intended_use or NOT_DECLARED,
            "license": self.license or NOT_DECLARED,
        }


def from_json(data: Mapping[str, Any]) -> Publication:
    """The inverse of `to_json`, for data whose shape was checked against the schema."""
    stated: dict[str, Any] = {name: None if value == NOT_DECLARED else value for name, value in data.items()}
    return Publication(**stated)


def name_for(text: str) -> str:
    """A publishable name made from, say, a directory's."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:96]
    return cleaned or "model"


def _matches(name: str, value: Any, pattern: str, meaning: str) -> None:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise InvalidArgument(f"{name} must be {meaning}; got {value!r:.120}")
