"""Reading a bundle that a stranger made: a directory or an archive, only known names, only regular files, bounded sizes."""

import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from apportion.bundle import archive, files
from apportion.errors import BundleError

MOST_BYTES = {files.LEDGER: 1 << 25, files.CERTIFICATE: 1 << 24}
MOST_OTHER_BYTES = 1 << 20
MOST_ENTRIES = 64


class Source(Protocol):
    """Where the files of a bundle come from."""

    def sizes(self) -> dict[str, int]: ...
    def open(self, name: str) -> BinaryIO: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The texts of a bundle, and the fingerprint of every file; weights are never held in memory."""

    texts: dict[str, bytes]
    fingerprints: dict[str, dict[str, Any]]


class Directory:
    """Opens names in one directory, never through a link."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sizes(self) -> dict[str, int]:
        sizes = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    raise BundleError(f"{entry.name!r:.80} is not a regular file")
                sizes[entry.name] = status.st_size
                if len(sizes) > MOST_ENTRIES:
                    raise BundleError(f"the directory holds more than {MOST_ENTRIES} files; a bundle has a dozen")
        return sizes

    def open(self, name: str) -> BinaryIO:
        descriptor = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BundleError(f"{name} is not a regular file")
        return os.fdopen(descriptor, "rb")


class Archive:
    """Members of an archive that is already open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members = {member.name: member for member in archive.read(file, file.seek(0, io.SEEK_END))}

    def sizes(self) -> dict[str, int]:
        return {name: member.size for name, member in self._members.items()}

    def open(self, name: str) -> BinaryIO:
        return io.BufferedReader(_Window(self._file, self._members[name]))


class _Window(io.RawIOBase):
    """A part of a file, read from start to end; its checksum is compared when the end is reached."""

    def __init__(self, file: BinaryIO, member: archive.Member) -> None:
        self._file, self._member = file, member
        self._done, self._crc = 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._member.start + self._done)
        piece = self._file.read(min(len(buffer), self._member.size - self._done))
        buffer[: len(piece)] = piece
        self._done, self._crc = self._done + len(piece), zlib.crc32(piece, self._crc)
        if self._done == self._member.size and self._crc != self._member.crc:
            raise BundleError(f"{self._member.name} does not match its checksum in the archive")
        return len(piece)


@contextmanager
def opened(bundle: Path) -> Iterator[Source]:
    """The bundle as a source, whichever form it has."""
    if bundle.is_dir():
        yield Directory(bundle)
    elif bundle.is_file():
        with open(bundle, "rb") as file:
            yield Archive(file)
    else:
        raise BundleError(f"{bundle} is neither a directory nor an archive")


def read_all(source: Source) -> Contents:
    sizes = source.sizes()
    _refuse_names(set(sizes))
    texts, fingerprints = {}, {}
    for name in sorted(sizes):
        most = MOST_BYTES.get(name, MOST_OTHER_BYTES)
        with source.open(name) as file:
            if name in files.BINARY:
                fingerprints[name] = files.fingerprint_of(file)
                continue
            # One byte more than allowed tells a file that grew since it was listed.
            data = b"" if sizes[name] > most else file.read(most + 1)
        if sizes[name] > most or len(data) > most:
            raise BundleError(f"{name} is too large ({sizes[name]} bytes; at most {most} are read)")
        texts[name] = data
        fingerprints[name] = files.fingerprint_of(io.BytesIO(data))
    return Contents(texts=texts, fingerprints=fingerprints)


def _refuse_names(found: set[str]) -> None:
    missing = sorted(set(files.REQUIRED) - found)
    unexpected = sorted(name[:60] for name in found - set(files.ALLOWED))
    if missing or unexpected:
        raise BundleError(
            f"a bundle holds exactly {', '.join(sorted(files.REQUIRED))} and perhaps {', '.join(files.OPTIONAL)}; "
            f"missing: {missing}, unexpected: {unexpected}"
        )
