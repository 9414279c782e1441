"""One way to write JSON and one strict way to read it, so that a hash of a document means something."""

import hashlib
import json
import re
from typing import Any, NoReturn

from apportion.errors import InvalidArgument

MAX_DEPTH = 32
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?')
_BRACKET = re.compile(r"[\[\]{}]")


def dumps(value: Any) -> str:
    """Sorted keys, no spaces, no NaN: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def pretty(value: Any) -> str:
    """For files that people read: sorted and indented, with a final newline."""
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def loads(text: str | bytes) -> Any:
    """Refuses duplicate keys, NaN, infinities, deep nesting and bytes that are not UTF-8."""
    try:
        content = text.decode("utf-8") if isinstance(text, bytes) else text
        _refuse_deep_nesting(content)
        return json.loads(
            content, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InvalidArgument(f"not valid JSON: {error}") from None
    except ValueError as error:
        raise InvalidArgument(f"not acceptable JSON: {error}") from None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest(value: Any) -> str:
    """SHA-256 of the canonical form."""
    return sha256(dumps(value).encode())


def _refuse_deep_nesting(text: str) -> None:
    """Before the parser recurses. Works on brackets outside of strings; an unfinished string is left to the parser."""
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return result


def _finite_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"number out of range: {text}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")
