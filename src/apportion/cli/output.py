"""Printing: results on standard output, messages on standard error."""

import math
import sys
from typing import Any

from rich.console import Console

from apportion import canonical

out = Console(highlight=False)
messages = Console(stderr=True, highlight=False)


def complain(message: str) -> None:
    messages.print("[bold red]error:[/]", end=" ")
    messages.print(message, markup=False, soft_wrap=True)


def warn(message: str) -> None:
    messages.print("[bold yellow]warning:[/]", end=" ")
    messages.print(message, markup=False, soft_wrap=True)


def note(message: str) -> None:
    messages.print(message, markup=False, soft_wrap=True)


def print_json(value: dict[str, Any]) -> None:
    """One JSON object, infinities as null."""
    sys.stdout.write(canonical.pretty(_finite(value)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
