"""The local snapshot: the client's rows in a file, so that a restart needs none from the server.

The file has a header line of JSON (format, version, table, filters, position, columns), then blocks
of rows (two counts, the lengths of keys and lines, their bytes), then the sha256 of all before it.
It is written under another name and renamed, so it is never seen in part. It is read completely,
and its sha256 compared, before a row is used.
"""

import fcntl
import os
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO

import orjson

from laredo_fanout.client.errors import LocalSnapshotUnusable
from laredo_fanout.client.events import Filter
from laredo_fanout.client.table.replica import ReplicaPosition
from laredo_model import column as column_
from laredo_model import position as position_
from laredo_model.column import Column
from laredo_model.errors import ModelError
from laredo_service import files
from laredo_service.files import Digest

FORMAT = "laredo-local-snapshot"
VERSION = 1

_BLOCK = struct.Struct("<IQ")  # rows, bytes of keys and lines
_ROWS_AT_ONCE = 5000
_DIGEST = 32
_LONGEST_HEADER = 16 << 20
_LOCK_WAIT_S = 10.0
_LOCK_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class LocalSnapshot:
    """The content of the file."""

    reached: ReplicaPosition
    columns: tuple[Column, ...]
    keys: list[bytes] = field(default_factory=list)
    #: ``lines[i]`` is the row with the key ``keys[i]``.
    lines: list[bytes] = field(default_factory=list)


class SnapshotFile:
    """The local snapshot file of one table and one set of filters.

    ``path``: the file, or a directory that exists, in which the file is named after the table.
    """

    def __init__(self, path: Path, table: str, filters: Sequence[Filter]) -> None:
        self.path = path / f"{table}.snapshot" if path.is_dir() else path
        self._table = table
        self._filters = [condition.to_json() for condition in filters]

    def save(self, snapshot: LocalSnapshot) -> None:
        """Replace the file.

        :raises OSError: if it can't be written, or another client has been writing it for
            _LOCK_WAIT_S; the old file is unchanged then.
        """
        if not self.path.parent.exists():
            files.make_private(self.path.parent)
        new = self.path.with_name(f".{self.path.name}.new")
        with _opened_alone(new) as file, files.replacing(self.path, new, file):
            self._write(file, snapshot)

    def load(self) -> LocalSnapshot | None:
        """Read the file; None if there is none.

        :raises LocalSnapshotUnusable: if it is damaged, newer than this
            library, or of another table or other filters.
        """
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            return None
        except OSError as refused:
            raise self._unusable(f"can't be read: {refused.strerror}") from refused
        except (ModelError, KeyError, TypeError, ValueError, EOFError) as wrong:
            raise self._unusable(f"is damaged: {wrong}") from wrong

    def _write(self, file: BinaryIO, snapshot: LocalSnapshot) -> None:
        digest = Digest()

        def put(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        put(orjson.dumps(self._header(snapshot)) + b"\n")
        for start in range(0, len(snapshot.keys), _ROWS_AT_ONCE):
            keys = snapshot.keys[start : start + _ROWS_AT_ONCE]
            lines = snapshot.lines[start : start + _ROWS_AT_ONCE]
            lengths = array("I", [*map(len, keys), *map(len, lines)])
            if sys.byteorder == "big":
                lengths.byteswap()
            body = b"".join((*keys, *lines))
            put(_BLOCK.pack(len(keys), len(body)) + lengths.tobytes())
            put(body)
        put(_BLOCK.pack(0, 0))
        file.write(digest.digest())

    def _header(self, snapshot: LocalSnapshot) -> dict[str, Any]:
        reached = snapshot.reached
        return {
            "format": FORMAT,
            "version": VERSION,
            "table": self._table,
            "filters": self._filters,
            "position": None if reached.position is None else position_.text(reached.position),
            "history": None if reached.history is None else str(reached.history),
            "sequence": reached.sequence,
            "open_position": position_.text(reached.open_position),
            "open_changes": reached.open_changes,
            "rows": len(snapshot.keys),
            "columns": [column.to_json() for column in snapshot.columns],
        }

    def _read(self, file: BinaryIO) -> LocalSnapshot:
        digest = Digest()
        first = file.readline(_LONGEST_HEADER)
        digest.update(first)
        header = self._checked(orjson.loads(first))
        keys: list[bytes] = []
        lines: list[bytes] = []
        while self._read_block(file, digest, keys, lines):
            pass
        if file.read(_DIGEST + 1) != digest.digest():
            raise ValueError("its checksum is wrong")
        if len(keys) != header["rows"]:
            raise ValueError(f"it has {len(keys)} rows instead of {header['rows']}")
        columns = tuple(column_.from_json(stored) for stored in header["columns"])
        return LocalSnapshot(_position_of(header), columns, keys, lines)

    def _checked(self, header: dict[str, Any]) -> dict[str, Any]:
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        if header["version"] != VERSION:
            raise self._unusable(f"has version {header['version']}; this library reads {VERSION}")
        if header["table"] != self._table:
            raise self._unusable(f"is of table {header['table']!r}, not {self._table!r}")
        if header["filters"] != self._filters:
            raise self._unusable("was made with other filters")
        return header

    def _read_block(
        self, file: BinaryIO, digest: Digest, keys: list[bytes], lines: list[bytes]
    ) -> int:
        head = _exactly(file, _BLOCK.size)
        rows, size = _BLOCK.unpack(head)
        lengths = array("I")
        lengths.frombytes(_exactly(file, 2 * rows * lengths.itemsize))
        raw = lengths.tobytes()
        if sys.byteorder == "big":
            lengths.byteswap()
        body = _exactly(file, size)
        for part in (head, raw, body):
            digest.update(part)
        if sum(lengths) != size:
            raise ValueError("the lengths of a block don't add up")
        start = 0
        for number, length in enumerate(lengths):
            (keys if number < rows else lines).append(body[start : start + length])
            start += length
        return int(rows)

    def _unusable(self, why: str) -> LocalSnapshotUnusable:
        return LocalSnapshotUnusable(f"the local snapshot {self.path} {why}")


def _position_of(header: dict[str, Any]) -> ReplicaPosition:
    position, history = header["position"], header["history"]
    return ReplicaPosition(
        None if position is None else position_.parse(position),
        None if history is None else position_.parse_history(history),
        header["sequence"],
        position_.parse(header["open_position"]),
        int(header["open_changes"]),
    )


def _exactly(file: BinaryIO, size: int) -> bytes:
    if size > os.fstat(file.fileno()).st_size - file.tell():
        raise EOFError("it ends too early")
    return file.read(size)


@contextmanager
def _opened_alone(path: Path) -> Iterator[BinaryIO]:
    """A new file at ``path``, once no other process or thread has one open there; only its owner
    may read it.

    :raises TimeoutError: if another one has it open for _LOCK_WAIT_S.
    """
    deadline = monotonic() + _LOCK_WAIT_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            _lock(file, path, deadline)
            # Its former holder may have renamed or removed the file: then the lock is useless.
            if not _is_at(path, file):
                continue
            file.truncate()
            yield file
            return


def _lock(file: BinaryIO, path: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if monotonic() >= deadline:
                raise TimeoutError(
                    f"another client has had {path} open for {_LOCK_WAIT_S:g} s; give every client"
                    " its own local_snapshot_path, and end a process that hangs"
                    f" (fuser {path} shows it)"
                ) from None
        sleep(_LOCK_POLL_S)


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
