"""Files that survive a crash: synced to disk, replaced in one step, locked against a second process."""

import fcntl
import os
from pathlib import Path
from typing import IO

from apportion.errors import RunError


def sync_directory(path: Path) -> None:
    """Make new or renamed entries of a directory durable."""
    sync_file(path)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write `path` so that a crash leaves either the old content or the new, never a mixture."""
    scratch = path.with_name(f".{path.name}.new")
    with open(scratch, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)
    sync_directory(path.parent)


def lock(path: Path) -> IO[bytes]:
    """Hold `path` for this process until the returned file is closed; the system lets go of it if the process dies."""
    file = open(path, "ab")  # noqa: SIM115  the caller holds the lock as long as the file is open
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunError(f"{path.parent} is in use by another process; wait for it, or stop it first") from None
    return file
