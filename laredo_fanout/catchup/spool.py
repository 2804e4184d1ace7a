"""A segment's spool: the stream's unchanged messages, in files that can be read independently.

A file, a *piece*, contains whole transactions: frames of a u32 size and the message with
its envelope. PostgreSQL announces a relation once in a session. The announcement is
repeated in each piece before the relation's first row, so that pieces can be removed one
by one, and a reader may begin with any of them.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from struct import Struct

from laredo_fanout.catchup.plan import Segment, SpoolPiece
from laredo_fanout.decode.frames import framed, new_frames
from laredo_fanout.postgres import pgoutput as message_
from laredo_service.files import sync_directory

_FINAL = Struct(">Q").unpack_from
_READ_BYTES = 8 << 20
_ENOUGH_BYTES = 1 << 20
_KIND = message_.ENVELOPE
OID = slice(message_.ENVELOPE + 1, message_.ENVELOPE + 5)
"""The relation's oid in a message with its envelope."""
ROWS = (message_.INSERT, message_.UPDATE, message_.DELETE)
_ANNOUNCING = (message_.RELATION, message_.TYPE)


def path(directory: Path, segment: int, piece: int) -> Path:
    """Path of a piece."""
    return directory / f"{segment:04d}-{piece:06d}"


def paths(directory: Path, segment: int) -> list[Path]:
    """Paths of all pieces of a segment, reported or not."""
    return list(directory.glob(f"{segment:04d}-*"))


def drop_unreported(directory: Path, segment: int, newest: int, size: int) -> None:
    """Remove what an ended process wrote after its last report.

    The report was of ``size`` bytes of the piece ``newest``. Nobody reads the rest, which would
    only take disk space.
    """
    for file in paths(directory, segment):
        number = int(file.name.rpartition("-")[2])
        if number > newest or (number == newest and not size):
            file.unlink(missing_ok=True)
        elif number == newest and _size(file) > size:
            os.truncate(file, size)


def remaining(directory: Path, segment: Segment, position: int) -> Segment:
    """The segment's part that its files have and the store, which is at ``position``, lacks.

    If a file is missing or too short, decoding continues before it.
    """
    pieces: list[SpoolPiece] = []
    start, done = segment.start, segment.done
    for piece in segment.pieces:
        if piece.position <= position:
            start = max(start, piece.position)
        elif _size(path(directory, segment.number, piece.number)) < piece.size:
            done = False
            break
        else:
            pieces.append(piece)
    return replace(segment, start=start, pieces=tuple(pieces), done=done)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def final_position(message: bytes | memoryview) -> int:
    """Position of the commit record of the transaction that this BEGIN opens."""
    found: int = _FINAL(message, message_.ENVELOPE + 1)[0]
    return found


class Announcements:
    """The announced relations and types, and those of them that must be repeated."""

    def __init__(self) -> None:
        self._relations: dict[bytes, bytes] = {}
        self._types: dict[bytes, bytes] = {}
        self._missing: set[bytes] = set()
        self._types_missing = False

    def forget(self) -> None:
        """Mark all announcements as unknown to a reader that begins here."""
        self._missing = set(self._relations)
        self._types_missing = bool(self._types)

    def add(self, message: bytes) -> None:
        """Add the announcement of a relation or type."""
        oid = message[OID]
        if message[_KIND] == message_.TYPE:
            self._types[oid] = message
        else:
            self._relations[oid] = message
            self._missing.discard(oid)

    def missing_before(self, message: bytes | memoryview) -> list[bytes]:
        """Messages that must be repeated before this one."""
        kind = message[_KIND]
        if kind in ROWS:
            return self._repeat(bytes(message[OID]))
        if kind == message_.TRUNCATE:
            repeated = []
            for oid in message_.truncate(bytes(message)).oids:
                repeated += self._repeat(oid.to_bytes(4, "big"))
            return repeated
        return []

    def _repeat(self, oid: bytes) -> list[bytes]:
        if oid not in self._missing:
            return []
        self._missing.discard(oid)
        repeated = [self._relations[oid]]
        if self._types_missing:
            self._types_missing = False
            repeated = [*self._types.values(), *repeated]
        return repeated


class PieceWriter:
    """Writer of one piece; used by a segment's process."""

    def __init__(self, directory: Path, segment: int, number: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._path = path(directory, segment, number)
        self._descriptor = os.open(self._path, flags, 0o600)
        self.number = number
        self.buffer = bytearray()
        """Frames that :meth:`flush` writes."""
        self._written = 0
        sync_directory(directory)

    @property
    def size(self) -> int:
        """Size of the piece, with bytes that aren't written yet."""
        return self._written + len(self.buffer)

    def add(self, message: bytes) -> None:
        """Append a message, which :meth:`flush` writes."""
        self.buffer += framed(message)

    def flush(self) -> None:
        """Write the appended messages.

        :raises OSError: if there is no room.
        """
        with memoryview(self.buffer) as rest:
            at = 0
            while at < len(rest):
                at += os.write(self._descriptor, rest[at:])
        self._written += at
        self.buffer.clear()

    def sync(self) -> None:
        """Make the piece durable.

        :raises OSError: if that fails, or if the file was deleted or replaced meanwhile.
        """
        self.flush()
        self.check_reachable()
        os.fdatasync(self._descriptor)

    def check_reachable(self) -> None:
        """Check that the file still has its path.

        :raises OSError: if the file was deleted or replaced.
        """
        if not os.path.samestat(self._path.stat(), os.fstat(self._descriptor)):
            raise FileNotFoundError(errno.ENOENT, "the spool was replaced", str(self._path))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class SegmentReader:
    """Reader of the reported transactions in one segment's pieces.

    Transactions whose commit record begins before ``after`` are skipped.
    ``piece`` is the number of the piece that is being read, -1 at first.
    """

    def __init__(self, directory: Path, segment: int, after: int) -> None:
        self._directory = directory
        self._segment = segment
        self._after = after
        self._pieces: Sequence[SpoolPiece] = ()
        self._descriptor: int | None = None
        self._offset = 0
        self._frames = new_frames()
        self._announced = Announcements()
        self._repeated: deque[bytes] = deque()
        self._passing, self._passing_by, self._passed = True, False, False
        self.piece = -1

    def know(self, pieces: Sequence[SpoolPiece]) -> None:
        """Set the pieces that exist now."""
        self._pieces = pieces

    @property
    def at_end(self) -> bool:
        """True if all messages of the known pieces were returned."""
        if self._frames.left or self._repeated:
            return False
        newest = self._pieces[-1] if self._pieces else None
        return newest is None or (newest.number, newest.size) <= (self.piece, self._offset)

    def read(self) -> int:
        """Read more messages for :attr:`get`; returns the bytes.

        :raises OSError: if a piece can't be read.
        """
        if self._frames.left > _ENOUGH_BYTES:
            return 0
        here = next((piece for piece in self._pieces if piece.number == self.piece), None)
        if here is None or self._offset == here.size:
            if self._frames.left or self._repeated or not self._open_next():
                return 0
            here = next(piece for piece in self._pieces if piece.number == self.piece)
        assert self._descriptor is not None
        block = os.read(self._descriptor, min(_READ_BYTES, here.size - self._offset))
        if not block and self._offset < here.size:
            raise OSError(errno.EIO, "the file is shorter than was reported", str(self._path))
        self._frames.add(block)
        self._offset += len(block)
        return len(block)

    @property
    def get(self) -> Callable[[int], tuple[int, bytes]]:
        """Function that returns messages like ``get_copy_data``: 0 if there are none for now."""
        return self._get_after if self._passing else self._frames.get

    @property
    def unread_bytes(self) -> int:
        """Number of bytes in the known pieces that weren't read yet."""
        sizes = sum(piece.size for piece in self._pieces if piece.number >= self.piece)
        return sizes - self._offset

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def _path(self) -> Path:
        return path(self._directory, self._segment, self.piece)

    def _open_next(self) -> bool:
        following = [piece.number for piece in self._pieces if piece.number > self.piece]
        if not following:
            return False
        self.close()
        self.piece = following[0]
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = 0
        self._announced = Announcements()
        self._passing = not self._passed
        return True

    def _get_after(self, _: int) -> tuple[int, bytes]:
        """Next message after position ``after``; earlier announcements are repeated."""
        while not self._repeated:
            size, message = self._frames.get(1)
            if size <= 0:
                return size, message
            kind = message[_KIND]
            if kind == message_.BEGIN:
                self._begun(message)
            if kind in _ANNOUNCING:
                self._announced.add(message)
            if self._passing_by:
                continue
            self._repeated.extend(self._announced.missing_before(message))
            self._repeated.append(message)
        message = self._repeated.popleft()
        return len(message), message

    def _begun(self, message: bytes) -> None:
        self._passing_by = final_position(message) < self._after
        if not self._passing_by and not self._passed:
            self._passed = True
            self._announced.forget()
