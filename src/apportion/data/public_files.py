"""Files of public data sets: found in a directory of the user's, or downloaded once and checked.

A file that is already there is read as it is. What is downloaded must have the checksum written in the code, or it is not
kept. The directory is `--data-dir`, else the environment's APPORTION_DATA, else a cache in the user's home.
"""

import hashlib
import os
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import wrap_file

from apportion import durable
from apportion.errors import DataError, RunError

VARIABLE = "APPORTION_DATA"
_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicFile:
    """A file by its name, where it may be fetched, and the SHA-256 of what `unpacked` makes of it."""

    name: str
    sources: tuple[str, ...]
    sha256: str
    unpacked: Callable[[bytes], bytes] = field(default=bytes)


def data_directory(given: Path | None) -> Path:
    if given is not None:
        return given
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apportion"


def find(names: Sequence[str], folders: Sequence[str], directory: Path) -> Path | None:
    """The first of `names` that lies in one of the `folders` of `directory`."""
    candidates = (directory / folder / name for name in names for folder in folders)
    return next((path for path in candidates if path.is_file()), None)


def obtain(file: PublicFile, folders: Sequence[str], directory: Path) -> Path:
    """Where the file lies, after downloading it into the first of the `folders` if need be."""
    found = find([file.name], folders, directory)
    if found is not None:
        return found
    problems = []
    for source in file.sources:
        try:
            content = _download(source)
            _check(file, content, source)
            target = directory / folders[0] / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            durable.replace_file(target, content)
            return target
        except (OSError, ValueError, EOFError, DataError, RunError) as error:
            problems.append(f"  {source}: {error}")
    raise DataError(
        f"{file.name} is not in {directory}, and could not be downloaded. Either put it there yourself (or name the "
        f"directory that has it: --data-dir DIR, or {VARIABLE}=DIR in the environment), or connect to the network so that "
        "it can be fetched. Tried:\n" + "\n".join(problems)
    )


def _download(source: str) -> bytes:
    with urllib.request.urlopen(source, timeout=_SECONDS) as response:
        length = int(response.headers.get("Content-Length") or 0)
        console = Console(stderr=True)
        with wrap_file(
            response, length, description=source.rpartition("/")[2], console=console, transient=True
        ) as file:
            return file.read()


def _check(file: PublicFile, content: bytes, source: str) -> None:
    found = hashlib.sha256(file.unpacked(content)).hexdigest()
    if found != file.sha256:
        raise DataError(f"has SHA-256 {found[:16]}…, expected {file.sha256[:16]}…: not the file that was published")
