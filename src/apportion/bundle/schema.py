"""A small, strict validator for the JSON Schemas that we ship: no network, no new dependency, bounded work.

It knows the keywords that our schemas use and refuses a schema with any other, so that nothing is silently unchecked.
Numbers are numbers (true is not 1), and 1.0 is not an integer.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import cache
from importlib.resources import files
from typing import Any

from apportion.errors import BundleError

Schema = Mapping[str, Any]
_ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}


def check(value: Any, kind: str, number: int = 1) -> None:
    """Raise with the first place at which `value` is not what the schema `kind`-`number`.json says."""
    schema = load(kind, number)
    problem = next(_problems(value, schema, schema, kind), None)
    if problem:
        raise BundleError(problem)


@cache
def load(kind: str, number: int) -> Schema:
    text = (files("apportion.bundle.schemas") / f"{kind}-{number}.json").read_text(encoding="utf-8")
    loaded: Schema = json.loads(text)
    return loaded


def _problems(value: Any, schema: Schema, root: Schema, where: str) -> Iterator[str]:
    for keyword, argument in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        if keyword == "$ref":
            yield from _problems(value, root["$defs"][argument.rpartition("/")[2]], root, where)
        elif keyword == "anyOf":
            yield from _none_of(value, argument, root, where)
        elif keyword in ("properties", "items", "additionalProperties"):
            yield from _inside(value, keyword, schema, root, where)
        elif not _CHECKS[keyword](value, argument):
            yield f"{where}: {value!r:.60} does not satisfy {keyword} {argument!r:.100}"


def _none_of(value: Any, options: list[Schema], root: Schema, where: str) -> Iterator[str]:
    reasons = []
    for option in options:
        reason = next(_problems(value, option, root, where), None)
        if reason is None:
            return
        reasons.append(reason)
    # Where the options are told apart by a kind, the reason of the right one is the helpful one.
    fitting = [reason for reason in reasons if ".kind:" not in reason]
    yield (fitting or reasons)[0]


def _inside(value: Any, keyword: str, schema: Schema, root: Schema, where: str) -> Iterator[str]:
    if keyword == "items" and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _problems(item, schema["items"], root, f"{where}[{index}]")
    elif keyword == "properties" and isinstance(value, dict):
        for name, inner in schema["properties"].items():
            if name in value:
                yield from _problems(value[name], inner, root, f"{where}.{name}")
    elif keyword == "additionalProperties" and isinstance(value, dict):
        for name in value.keys() - schema.get("properties", {}).keys():
            if schema[keyword] is False:
                yield f"{where}: has an unknown field {name!r:.60}"
            else:
                yield from _problems(value[name], schema[keyword], root, f"{where}.{name!s:.60}")


def _is(value: Any, kind: str) -> bool:
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    exact = {"object": dict, "array": list, "string": str, "integer": int, "null": type(None), "boolean": bool}[kind]
    return type(value) is exact


def _number(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Holds for anything but numbers: the type is another keyword's business."""
    return lambda value, bound: not _is(value, "number") or test(value, bound)


def _sized(kind: type[Sized], test: Callable[[int, int], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, bound: not isinstance(value, kind) or test(len(value), bound)


def _same(value: Any, constant: Any) -> bool:
    return type(value) is type(constant) and value == constant


_CHECKS: Mapping[str, Callable[[Any, Any], bool]] = {
    "type": _is,
    "const": _same,
    "enum": lambda value, options: any(_same(value, option) for option in options),
    "required": lambda value, names: not isinstance(value, dict) or value.keys() >= set(names),
    "pattern": lambda value, pattern: not isinstance(value, str) or re.fullmatch(pattern, value) is not None,
    "minimum": _number(lambda value, bound: value >= bound),
    "maximum": _number(lambda value, bound: value <= bound),
    "exclusiveMinimum": _number(lambda value, bound: value > bound),
    "exclusiveMaximum": _number(lambda value, bound: value < bound),
    "maxLength": _sized(str, lambda length, bound: length <= bound),
    "minItems": _sized(list, lambda length, bound: length >= bound),
    "maxItems": _sized(list, lambda length, bound: length <= bound),
    "maxProperties": _sized(dict, lambda length, bound: length <= bound),
}
