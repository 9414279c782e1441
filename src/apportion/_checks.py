"""Validators that name the argument and its value.

Each returns the value in its canonical type, so that `__post_init__` can check and normalise in one line.
Booleans are numbers in Python but never meant as numbers here, so they are refused.
"""

import math
from collections.abc import Iterable
from typing import Any

from apportion.errors import InvalidArgument


def number(name: str, value: Any) -> float:
    """A finite real number."""
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str):
        raise InvalidArgument(f"{name} must be a number, got {value!r:.40}")
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{name} must be a number, got {value!r:.40}") from error
    if not math.isfinite(result):
        raise InvalidArgument(f"{name} must be finite, got {value!r:.40}")
    return result


def positive(name: str, value: Any) -> float:
    result = number(name, value)
    if result <= 0:
        raise InvalidArgument(f"{name} must be greater than 0, got {value!r:.40}")
    return result


def at_least(name: str, value: Any, least: float) -> float:
    result = number(name, value)
    if result < least:
        raise InvalidArgument(f"{name} must be at least {least:g}, got {value!r:.40}")
    return result


def probability(name: str, value: Any) -> float:
    """Strictly between 0 and 1."""
    result = number(name, value)
    if not 0 < result < 1:
        raise InvalidArgument(f"{name} must lie strictly between 0 and 1, got {value!r:.40}")
    return result


def rate(name: str, value: Any) -> float:
    """Greater than 0 and at most 1."""
    result = number(name, value)
    if not 0 < result <= 1:
        raise InvalidArgument(f"{name} must be greater than 0 and at most 1, got {value!r:.40}")
    return result


MOST_COUNTED = 10**15  # beyond it floating point no longer tells whole numbers apart, and nothing real is counted


def count(name: str, value: Any, least: int = 1) -> int:
    """A whole number, at least `least` and at most `MOST_COUNTED`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidArgument(f"{name} must be a whole number, got {value!r:.40}")
    result = int(value.__index__())
    if result < least:
        raise InvalidArgument(f"{name} must be at least {least}, got {value!r:.40}")
    if result > MOST_COUNTED:
        raise InvalidArgument(f"{name} must be at most 10^15")
    return result


def choice(name: str, value: Any, options: Iterable[str]) -> str:
    allowed = tuple(options)
    if value not in allowed:
        raise InvalidArgument(f"{name} must be one of {', '.join(allowed)}; got {value!r:.40}")
    return str(value)
