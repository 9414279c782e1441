"""The TOML file of a run's settings, overruled by command-line options; all that is wrong is reported at once."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from apportion.by_epoch import ByEpoch
from apportion.errors import ConfigError, InvalidArgument
from apportion.settings import BY_EPOCH, COMPONENTS, GIVE_THE_DATA, TEST_PART, Settings

# TOML section → its keys and the fields they set. [features] is free-form: column = [low, high].
_PLAN = (
    "examples", "batching", "batches", "rate", "schedule", "sigma0", "decay", "period", "sigma_end", "epochs",
    "spare_epochs", "clip", "clipping", "layer_noise", "noise", "threshold", "average", "every", "floor", "order",
)  # fmt: skip
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "data": {
        "dataset": "dataset", "directory": "data_dir", "file": "data", "stream_to": "stream_to", "holdout": "holdout",
        "ignore": "ignore",
    },
    "target": {"column": "target", "classes": "classes"},
    "unit": {"column": "unit", "records": "records_per_unit", "gradient": "unit_gradient"},
    "budget": {"rho": "rho", "epsilon": "epsilon", "delta": "delta"},
    "plan": {name: name for name in _PLAN},
    "training": {name: name for name in _PLAN} | {"share": "training_share"},
    **{
        section: {key: f"{section}_{key}" for key in ("share", "sigma", *keys)} for section, keys in COMPONENTS.items()
    },
    "validation": {"file": "public_validation", "pay_per_look": "pay_per_look"},
    "model": {"hidden": "hidden", "activation": "activation"},
    "optimizer": {
        "name": "optimizer", "lr": "lr", "lr_end": "lr_end", "lr_epochs": "lr_epochs", "momentum": "momentum",
        "average_weights": "average_weights", "max_physical_batch": "max_physical_batch",
    },
}  # fmt: skip
_PATHS = ("data", "data_dir", "stream_to", "public_validation")


def load(
    path: Path | None, overrides: Mapping[str, Any], besides: Collection[str] = (), needs_data: bool = True
) -> Settings:
    """The file's settings, overruled by `overrides`; every unknown or misshapen key is reported together.

    Sections in `besides` are somebody else's to read. Without `needs_data` a file that names no data will do: a plan
    depends on none.
    """
    values = ({} if path is None else _read(path, besides)) | dict(overrides)
    for name in _PATHS:  # a path in the file is meant from where the file lies
        if path is not None and values.get(name, TEST_PART) != TEST_PART and name not in overrides:
            values[name] = str(path.parent / values[name])
    missing = [GIVE_THE_DATA] if needs_data and not {"dataset", "data"} & set(values) else []
    try:
        chosen = Settings(**values)
    except ConfigError as error:
        raise ConfigError([*error.problems, *missing]) from None
    if missing:
        raise ConfigError(missing)
    return chosen


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"cannot read the configuration {path}: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from error


def _read(path: Path, besides: Collection[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    problems: list[str] = []
    for section, keys in read_toml(path).items():
        if section in besides:
            continue
        if section == "features":
            _read_features(keys, values, problems)
        elif section not in SECTIONS or not isinstance(keys, dict):
            problems.append(f"[{section}] is not a section; known: {', '.join([*SECTIONS, 'features'])}")
        else:
            read_section(section, keys, values, problems)
    if problems:
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    return values


def _read_features(keys: Any, values: dict[str, Any], problems: list[str]) -> None:
    ranges = {}
    for name, bounds in keys.items() if isinstance(keys, dict) else ():
        if isinstance(bounds, list) and len(bounds) == 2 and all(type(b) in (int, float) for b in bounds):
            ranges[name] = (float(bounds[0]), float(bounds[1]))
        else:
            problems.append(f"[features] {name} must be [low, high]")
    values["ranges"] = ranges


def read_section(section: str, keys: dict[str, Any], values: dict[str, Any], problems: list[str]) -> None:
    known = SECTIONS[section]
    if section in COMPONENTS and not keys:
        problems.append(f"[{section}] is empty; known: {', '.join(known)}")
    for key, value in keys.items():
        if key not in known:
            problems.append(f"[{section}] {key} is not known; known: {', '.join(known)}")
            continue
        name = known[key]
        expected = _expected_type(name)
        if name in BY_EPOCH and isinstance(value, dict):
            _read_by_epoch(f"[{section}] {key}", name, value, values, problems)
            continue
        if expected is tuple:
            if not isinstance(value, list):
                problems.append(f"[{section}] {key} must be a list, got {value!r}")
                continue
            value = tuple(value) if name == "hidden" else tuple(str(item) for item in value)
        elif not _fits(value, expected):
            problems.append(f"[{section}] {key} must be a {expected.__name__}, got {value!r}")
            continue
        if name in values:
            problems.append(f"[{section}] {key} is given twice: [plan] and [training] are two names of one section")
        values[name] = value


def _read_by_epoch(
    where: str, name: str, entries: Mapping[str, Any], values: dict[str, Any], problems: list[str]
) -> None:
    """`{0 = 100, 20 = 50}`: first epoch = value."""
    if not all(start.isdecimal() and _fits(value, _expected_type(name)) for start, value in entries.items()):
        problems.append(f"{where} must be a number, or first epochs with their numbers, like {{0 = 100, 20 = 50}}")
        return
    try:
        values[name] = ByEpoch({int(start): value for start, value in entries.items()})
    except InvalidArgument as error:
        problems.append(f"{where}: {error}")


def _expected_type(name: str) -> type:
    annotation = str(next(f.type for f in fields(Settings) if f.name == name))
    for text, kind in (("Literal", str), ("tuple", tuple), ("str", str), ("int", int), ("float", float)):
        if text in annotation:
            return kind
    raise AssertionError(annotation)


def _fits(value: Any, expected: type) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) if expected is float else isinstance(value, expected)
