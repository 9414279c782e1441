"""Checkpoints at epoch boundaries: private, atomic, and tied to their run."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from apportion.durable import replace_file
from apportion.errors import RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state after `completed` epochs of the run `run`."""

    run: str
    completed: int
    model: dict[str, Any]
    optimizer: dict[str, Any]


def save(path: Path, checkpoint: Checkpoint) -> None:
    buffer = io.BytesIO()
    torch.save({name: getattr(checkpoint, name) for name in Checkpoint.__slots__}, buffer)
    path.parent.mkdir(exist_ok=True)
    replace_file(path, buffer.getvalue())


def load(path: Path, run: str) -> Checkpoint | None:
    """The checkpoint of this run, or None if it had not finished an epoch yet."""
    if not path.exists():
        return None
    try:
        state = torch.load(path, weights_only=True)
        checkpoint = Checkpoint(**state)
    except Exception as error:
        raise RunError(f"{path} is not a readable checkpoint: {error}") from error
    if checkpoint.run != run:
        raise RunError(f"{path} belongs to another run; put the right checkpoint back, or start a new run")
    return checkpoint
