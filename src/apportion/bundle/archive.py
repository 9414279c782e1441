"""The bundle as one file: a zip archive in exactly one form, so that equal bundles give equal archives.

Members are stored, not compressed, in sorted order, without directories, dates, comments or extra fields. Reading accepts
this form and no other: there is nothing to inflate, nowhere to hide bytes, and no path to leave the directory by.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from apportion.bundle.files import ALLOWED
from apportion.errors import BundleError

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_VERSION, _UNIX = 20, 3 << 8
_MIDNIGHT_1980 = (0, 0x21)  # the earliest date that the format can say
_REGULAR_644 = 0o100644 << 16
MOST_BYTES = 0xFFFFFFFF - (1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    name: str
    size: int
    crc: int
    start: int  # of the member's own bytes

    def local_header(self) -> bytes:
        name = self.name.encode()
        return (
            _LOCAL.pack(b"PK\3\4", _VERSION, 0, 0, *_MIDNIGHT_1980, self.crc, self.size, self.size, len(name), 0) + name
        )

    def central_header(self) -> bytes:
        name = self.name.encode()
        offset = self.start - _LOCAL.size - len(name)
        fixed = (b"PK\1\2", _UNIX | _VERSION, _VERSION, 0, 0, *_MIDNIGHT_1980, self.crc, self.size, self.size)
        return _CENTRAL.pack(*fixed, len(name), 0, 0, 0, 0, _REGULAR_644, offset) + name


def write(paths: Mapping[str, Path], to: BinaryIO) -> None:
    if sum(path.stat().st_size for path in paths.values()) > MOST_BYTES:
        raise BundleError("a bundle of more than 4 GB does not fit this archive; publish the directory")
    members, position = [], 0
    for name in sorted(paths):
        start = position + _LOCAL.size + len(name.encode())
        with open(paths[name], "rb") as file:
            size, crc = _size_and_crc(file)
            member = Member(name=name, size=size, crc=crc, start=start)
            to.write(member.local_header())
            file.seek(0)
            while piece := file.read(1 << 20):
                to.write(piece)
        members.append(member)
        position = start + size
    to.write(_directory(members, position))


def read(file: BinaryIO, total: int) -> tuple[Member, ...]:
    """The members of an archive of `total` bytes; everything in it is accounted for, or it is refused."""
    members: list[Member] = []
    position = 0
    while (head := _at(file, position, _LOCAL.size))[:4] == b"PK\3\4" and len(head) == _LOCAL.size:
        *_, crc, size, _, length, _ = _LOCAL.unpack(head)
        raw = _at(file, position + _LOCAL.size, min(length, 100))
        name = raw.decode("ascii", "replace")
        if name not in ALLOWED or (members and name <= members[-1].name):
            raise BundleError(f"the archive holds {name!r:.60}, which is not a bundle's file or not in its place")
        start = position + _LOCAL.size + len(raw)
        member = Member(name=name, size=size, crc=crc, start=start)
        if _at(file, position, start - position) != member.local_header() or start + size > total:
            raise BundleError(f"the archive's entry for {name} is not in the form that apportion writes{_ADVICE}")
        members.append(member)
        position = start + size
    directory = _directory(members, position)
    if position + len(directory) != total or _at(file, position, len(directory)) != directory:
        raise BundleError(f"not an archive in the form that apportion writes{_ADVICE}")
    return tuple(members)


_ADVICE = "; if another program packed it, unpack it and verify the directory"


def _directory(members: Sequence[Member], position: int) -> bytes:
    central = b"".join(member.central_header() for member in members)
    return central + _END.pack(b"PK\5\6", 0, 0, len(members), len(members), len(central), position, 0)


def _at(file: BinaryIO, position: int, length: int) -> bytes:
    file.seek(position)
    return file.read(length)


def _size_and_crc(file: BinaryIO) -> tuple[int, int]:
    size, crc = 0, 0
    while piece := file.read(1 << 20):
        size, crc = size + len(piece), zlib.crc32(piece, crc)
    return size, crc
