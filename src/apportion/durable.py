"""Files that survive a crash: synced to disk, replaced in one step, locked against a second process.

Everything that a run writes goes through this module, so that a test can crash at every write, sync and rename.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from apportion.errors import RunError

_MODE = 0o644


def sync_directory(path: Path) -> None:
    """Make new or renamed entries of a directory durable."""
    sync_file(path)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create `path`, which must not exist, for its owner alone: what it will hold is private."""
    try:
        path.mkdir(mode=0o700, parents=True)
        sync_directory(path.parent)
    except FileExistsError:
        raise RunError(f"{path} exists already; choose another directory, or resume the run in it") from None
    except OSError as error:
        raise RunError(f"{path} cannot be created: {error.strerror}; nothing was spent") from error


def replace_file(path: Path, data: bytes) -> None:
    """Write `path` so that a crash leaves either the old content or the new, never a mixture."""
    scratch = path.with_name(f".{path.name}.new")
    try:
        with _writing(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            _write(descriptor, data)
            os.fsync(descriptor)
        os.replace(scratch, path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(scratch)  # so that a half-written file does not keep a full disk full
        raise RunError(f"{path} could not be written: {error.strerror}; what it held before is untouched") from error


def shorten(path: Path, length: int) -> None:
    """Cut off what follows the first `length` bytes."""
    try:
        with _writing(path, os.O_WRONLY) as descriptor:
            os.ftruncate(descriptor, length)
            os.fsync(descriptor)
    except OSError as error:
        raise RunError(f"{path} could not be mended: {error.strerror}; try again once the cause is gone") from error


class Appender:
    """Appends to a file. When `append` returns, the data is durable; after a failure it refuses to go on.

    What a failed write or sync left behind is unknown, so nothing may follow it: the file has to be opened and read anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failed = False
        fresh = not path.exists()
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _MODE)
            if fresh:
                sync_directory(path.parent)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error

    def append(self, data: bytes) -> None:
        if self._failed:
            raise RunError(f"an earlier write to {self.path} failed; resume the run instead of going on")
        self._failed = True
        try:
            _write(self._descriptor, data)
            os.fsync(self._descriptor)
        except OSError as error:
            raise RunError(
                f"{self.path} could not be written: {error.strerror}. What was recorded before is safe; mend the cause "
                "(free space, permissions) and resume the run"
            ) from error
        self._failed = False

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lock(path: Path) -> IO[bytes]:
    """Hold `path` for this process until the returned file is closed; the system lets go of it if the process dies."""
    try:
        file = open(path, "ab")  # noqa: SIM115  the caller holds the lock as long as the file is open
    except OSError as error:
        raise RunError(f"{path.parent} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunError(f"{path.parent} is in use by another process; wait for it, or stop it first") from None
    return file


@contextlib.contextmanager
def _writing(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, _MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    """All of `data`: the system may take it in pieces."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
