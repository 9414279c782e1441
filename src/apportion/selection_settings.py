"""The `[select]` section of a configuration: which candidates there are, and how one of them is chosen.

[select]
kind = "repeat"                 # or "split"
mean_runs = 8
score_sigma = 6.0

[select.grid]                   # every combination is a candidate
lr = [0.2, 0.5]

[[select.candidates]]           # or one by one
schedule = "exponential"
decay = 0.05
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from apportion import _checks, settings, settings_file
from apportion.components.selection import Law, law_of_mean
from apportion.errors import ApportionError, ConfigError
from apportion.events import PoissonLaw
from apportion.settings import Settings

FILE = "selection.json"  # in a run directory: private, because it names the data file
SECTION = "select"
KINDS = ("repeat", "split")
LAWS = ("negative-binomial", "poisson")
MOST_RUNS = 10_000.0

# What a candidate may set: everything about training, nothing about the data or the budget.
_OWN = {
    key: (section, field)
    for section in ("plan", "model", "optimizer")
    for key, field in settings_file.SECTIONS[section].items()
    if field not in ("examples", "noise", "threshold", "average", "every", "floor", "order")
} | {"optimizer": ("optimizer", "optimizer")}
_ONLY: Mapping[str, tuple[str, ...]] = {
    "repeat": ("law", "mean_runs", "eta", "score_sigma"),
    "split": ("epsilon", "retrain_share"),
}
_NUMBERS = ("mean_runs", "eta", "score_sigma", "epsilon", "retrain_share", "score_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One candidate: its name, and the settings that it is trained with."""

    name: str
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSettings:
    """Everything public that defines a selection, as a person writes it. `section` is what the file says."""

    base: Settings
    candidates: tuple[Named, ...]
    section: Mapping[str, Any]

    @property
    def repeats(self) -> bool:
        return bool(self.section["kind"] == "repeat")

    @property
    def law(self) -> Law | None:
        """Of the number of runs, if they are repeated."""
        if not self.repeats:
            return None
        mean = float(self.section.get("mean_runs", 8.0))
        if self.section.get("law") == "poisson":
            return PoissonLaw(mean=mean)
        return law_of_mean(mean, float(self.section.get("eta", 0.0)))

    def number(self, name: str) -> float | None:
        value = self.section.get(name)
        return None if value is None else float(value)

    def to_json(self) -> dict[str, Any]:
        return {"settings": self.base.to_json(), SECTION: dict(self.section)}


def from_json(data: Mapping[str, Any]) -> SelectionSettings:
    return _made(settings.from_json(data["settings"]), data[SECTION])


def load(path: Path) -> SelectionSettings:
    """A configuration with a `[select]` section; all problems of the section are reported together."""
    section = settings_file.read_toml(path).get(SECTION)
    if not isinstance(section, dict):
        raise ConfigError([f"{path}: has no [{SECTION}] section, which says what to choose from and how"])
    return _made(settings_file.load(path, {}, besides=(SECTION,)), section)


def _made(base: Settings, section: Mapping[str, Any]) -> SelectionSettings:
    problems = _problems(section)
    if problems:
        raise ConfigError(problems)
    candidates = []
    for keys in (*section.get("candidates", ()), *_combinations(section.get("grid", {}))):
        own = _overrides(keys, problems)
        name = keys.get("name") or ", ".join(f"{key} = {value}" for key, value in keys.items()) or "as configured"
        try:
            candidates.append(Named(name=str(name), settings=replace(base, **own)))
        except ApportionError as error:
            problems.append(f"[{SECTION}] candidate {name!r}: {error}")
    if not candidates and not problems:
        problems.append(f"[{SECTION}] names no candidates: give [[{SECTION}.candidates]], or lists in [{SECTION}.grid]")
    if problems:
        raise ConfigError(problems)
    made = SelectionSettings(base=base, candidates=tuple(candidates), section=section)
    made.law  # noqa: B018  refuses a law that does not exist
    return made


def _problems(section: Mapping[str, Any]) -> list[str]:
    kind = section.get("kind")
    if kind not in KINDS:
        return [f"[{SECTION}] kind must be one of {', '.join(KINDS)}, got {kind!r}"]
    other = next(name for name in KINDS if name != kind)
    known = ("kind", "score_share", "candidates", "grid", *_ONLY[kind])
    problems = []
    for key, value in section.items():
        if key in _ONLY[other]:
            problems.append(f"[{SECTION}] {key} belongs to kind = {other!r}")
        elif key not in known:
            problems.append(f"[{SECTION}] {key} is not known; known: {', '.join(known)}")
        elif key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            problems.append(f"[{SECTION}] {key} must be a number, got {value!r}")
    return problems or _meaning_problems(section)


def _meaning_problems(section: Mapping[str, Any]) -> list[str]:
    problems = []
    if section.get("law", LAWS[0]) not in LAWS:
        problems.append(f"[{SECTION}] law must be one of {', '.join(LAWS)}, got {section['law']!r}")
    if section.get("law") == "poisson" and "eta" in section:
        problems.append(f"[{SECTION}] eta belongs to law = 'negative-binomial'")
    if section.get("mean_runs", 1.0) > MOST_RUNS:
        problems.append(f"[{SECTION}] mean_runs must be at most {MOST_RUNS:g}")
    candidates, grid = section.get("candidates", []), section.get("grid", {})
    if not isinstance(candidates, list) or not all(isinstance(keys, dict) for keys in candidates):
        problems.append(f"candidates must be tables: [[{SECTION}.candidates]]")
    if not isinstance(grid, dict) or not all(isinstance(values, list) and values for values in grid.values()):
        problems.append(f"[{SECTION}.grid] must give a list of values for each key")
    for name in ("score_share", "retrain_share"):
        if name in section:
            try:
                _checks.probability(name, section[name])
            except ApportionError as error:
                problems.append(f"[{SECTION}] {error}")
    return problems


def _combinations(grid: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []


def _overrides(keys: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The fields of `Settings` that a candidate changes."""
    own: dict[str, Any] = {}
    for key, value in keys.items():
        if key == "name":
            continue
        if key not in _OWN:
            problems.append(f"[{SECTION}] a candidate cannot set {key}; it can set: name, {', '.join(_OWN)}")
            continue
        section, field = _OWN[key]
        inside = next(name for name, target in settings_file.SECTIONS[section].items() if target == field)
        settings_file.read_section(section, {inside: value}, own, problems)
    return {**_not_inherited(own), **own}


def _not_inherited(own: Mapping[str, Any]) -> dict[str, Any]:
    """What the common settings say about another batching or another schedule than the candidate's."""
    dropped: dict[str, Any] = {}
    if "batching" in own:
        dropped |= {"batches": None} if own["batching"] == "poisson" else {"rate": None}
    if "schedule" in own:
        dropped |= {"decay": None, "period": None, "sigma_end": None}
    return dropped
