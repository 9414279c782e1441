"""Checkpoints at epoch boundaries: private, atomic, and tied to their run and to a place in its ledger."""

import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from apportion.durable import replace_file
from apportion.errors import RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state after `completed` epochs of the run `run`, the last of which used the slot `slot`.

    It says where training goes on, never which slot comes next: that is the ledger's to say.
    """

    run: str
    completed: int
    slot: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any] | None = None
    averages: dict[str, Any] | None = None
    averaged_steps: int = 0


def save(path: Path, checkpoint: Checkpoint) -> None:
    buffer = io.BytesIO()
    torch.save({field.name: getattr(checkpoint, field.name) for field in fields(checkpoint)}, buffer)
    replace_file(path, buffer.getvalue())


def load(path: Path, run: str, used_slots: int) -> Checkpoint | None:
    """The checkpoint of this run, or None if it had not finished an epoch yet."""
    if not path.exists():
        return None
    try:
        checkpoint = Checkpoint(**torch.load(path, weights_only=True))
    except Exception as error:
        raise RunError(
            f"{path} is not a readable checkpoint ({error}); put a good copy back, or remove it to go on from the start "
            "with the slots that are left"
        ) from error
    if checkpoint.run != run:
        raise RunError(f"{path} belongs to another run; put the right checkpoint back, or start a new run")
    if checkpoint.slot >= used_slots:
        raise RunError(
            f"the ledger is older than {path}: it counts {used_slots} used slots, but the checkpoint comes after slot "
            f"number {checkpoint.slot + 1}. Put the newer ledger back; going on would under-count"
        )
    return checkpoint
