"""Spools of transactions whose messages come before their commit.

If a subtransaction is rolled back, all messages since its first one are dropped:
subtransactions are nested, so these are its own or its children's.
"""

from __future__ import annotations

import os
import shutil
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from laredo_fanout.decode.frames import SIZE, Get, new_frames
from laredo_fanout.postgres import pgoutput as message_
from laredo_fanout.postgres.connections import ReplicationStreamBroken

_SIZE_BYTES = SIZE.size
_WRITE_FROM_BYTES = 1 << 20
_PIECE_BYTES = 4 << 20


class TransactionSpool:
    """Messages of the top-level transaction ``xid``, in a file that is open only during a part."""

    def __init__(self, path: Path, xid: int) -> None:
        self._path = path
        self._top = xid
        self._descriptor: int | None = None
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._written = 0
        self.to_read = 0
        """Number of bytes that :meth:`pieces` hasn't yielded, or that are still being decoded."""
        self._subtransactions = array("I")
        self._starts = array("Q")
        self._seen = array("I")
        """Distances of ``_subtransactions`` from the top-level xid, sorted, which is nearly the
        order in which they come: an array, as a set of millions needs much memory."""

    @property
    def size(self) -> int:
        """Number of bytes of all messages."""
        return self._written + self._unwritten_bytes

    def add(self, *parts: bytes | memoryview) -> None:
        """Append a message, given in parts.

        :raises OSError: if it can't be written.
        """
        size = sum(map(len, parts))
        self._unwritten.append(b"".join((SIZE.pack(size), *parts)))
        self._unwritten_bytes += _SIZE_BYTES + size
        if self._unwritten_bytes >= _WRITE_FROM_BYTES:
            self._write()

    def begin(self, xid: int) -> None:
        """Note that the next messages are of this subtransaction, or the top-level one."""
        distance, seen = self._distance(xid), self._seen
        if not distance:
            return
        if not seen or distance > seen[-1]:
            seen.append(distance)
        else:
            at = bisect_left(seen, distance)
            if seen[at] == distance:
                return
            seen.insert(at, distance)
        self._subtransactions.append(xid)
        self._starts.append(self.size)

    def roll_back(self, xid: int) -> None:
        """Drop the messages of this subtransaction, if it has any."""
        if not self._has_seen(xid):
            return
        while True:
            last, start = self._subtransactions.pop(), self._starts.pop()
            del self._seen[bisect_left(self._seen, self._distance(last))]
            if last == xid:
                break
        self.rest()
        if self._written > start:
            os.truncate(self._path, start)
            self._written = start

    def pieces(self) -> Iterator[Get]:
        """Yield the messages in their order, a bounded number of bytes at a time.

        Each item returns its messages as ``get_copy_data`` does, and 0 after its last.

        :raises OSError: if they can't be read.
        :raises ReplicationStreamBroken: if the file isn't whole.
        """
        self.rest()
        self.to_read = self._written
        if not self._written:
            return
        frames = new_frames()
        with self._path.open("rb", buffering=0) as file:
            # A message may be larger than a piece: then the next piece is twice as large.
            while block := file.read(max(_PIECE_BYTES, frames.left)):
                frames.add(block)
                yield frames.get
                self.to_read -= len(block)
        if frames.left:
            raise ReplicationStreamBroken(
                f"{self._path} ends within a message; the stream is restarted"
            )

    def rest(self) -> None:
        """Close the file until messages are added again.

        :raises OSError: if the last messages can't be written.
        """
        self._write()
        self._close()

    def remove(self) -> None:
        """Forget the transaction."""
        self._close()
        self._path.unlink(missing_ok=True)

    def _has_seen(self, xid: int) -> bool:
        distance = self._distance(xid)
        at = bisect_left(self._seen, distance)
        return at < len(self._seen) and self._seen[at] == distance

    def _distance(self, xid: int) -> int:
        return (xid - self._top) & 0xFFFFFFFF

    def _write(self) -> None:
        if not self._unwritten:
            return
        if self._descriptor is None:
            self._path.parent.mkdir(exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
        rest = memoryview(b"".join(self._unwritten))
        self._unwritten.clear()
        self._written += self._unwritten_bytes
        self._unwritten_bytes = 0
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class TransactionSpools:
    """Spools of the transactions that have no commit yet, of which at most one has an open file.

    ``directory`` contains nothing else; files of an earlier session are removed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._spools: dict[int, TransactionSpool] = {}
        self._current: TransactionSpool | None = None
        shutil.rmtree(directory, ignore_errors=True)

    def part(self, xid: int, *, first: bool) -> TransactionSpool:
        """Return the spool for the next part of this transaction.

        :raises OSError: if the last messages of the current spool can't be written.
        :raises ReplicationStreamBroken: if an earlier part is missing.
        """
        if first:
            self.drop(xid)
            self._spools[xid] = TransactionSpool(self._directory / str(xid), xid)
        spool = self.get(xid)
        if self._current is not None and self._current is not spool:
            self._current.rest()
        self._current = spool
        return spool

    def has(self, xid: int) -> bool:
        """True if a part of this transaction has come."""
        return xid in self._spools

    def roll_back(self, xid: int, subtransaction: int) -> None:
        """Drop the messages of a subtransaction, or of the transaction if they are equal."""
        if subtransaction == xid:
            self.drop(xid)
        elif xid in self._spools:
            self._spools[xid].roll_back(subtransaction)

    def get(self, xid: int) -> TransactionSpool:
        """Return the spool of this transaction.

        :raises ReplicationStreamBroken: if no part of it has come.
        """
        try:
            return self._spools[xid]
        except KeyError:
            raise ReplicationStreamBroken(
                f"transaction {xid} goes on, but its beginning wasn't streamed; the stream is"
                " restarted"
            ) from None

    def drop(self, xid: int) -> None:
        """Remove the transaction's spool, if it has one."""
        spool = self._spools.pop(xid, None)
        if spool is not None:
            self._current = None if self._current is spool else self._current
            spool.remove()

    def close(self) -> None:
        """Remove all spools."""
        for xid in list(self._spools):
            with suppress(OSError):
                self.drop(xid)


# Spooling of messages that are decoded only at their transaction's commit.
#
# These are parts of a transaction that is streamed before its commit, and the rest of a giant one.
# Any other message is handed back, as by a scan.

LARGE_BYTES = 16 << 20
"""Size from which a logical message of another program is reported."""

_PREFIX = message_.PREFIX.encode()
_KIND_END = message_.ENVELOPE + 1
_XID_END = _KIND_END + message_.XID_BYTES


class SpoolEnd(NamedTuple):
    """Reason why spooling stopped, and its extent."""

    size: int
    """Last result of ``get``: 0 nothing has arrived, -1 the end; else a message, or the limit was
    reached."""
    message: bytes | None
    """A keepalive, or the end of the part or transaction, for the caller to handle."""
    messages: int
    """Number of messages that were taken, ``message`` included."""


class EmittedMessages:
    """Filter of messages of pg_logical_emit_message: only those that may be ours are spooled."""

    def __init__(self) -> None:
        self.oversized_at = 0
        """Position of another program's large message, for which libpq's buffer grew for good."""

    def large_at(self, position: int) -> None:
        """Record the position of a large message that isn't ours."""
        self.oversized_at = max(self.oversized_at, position)

    def may_be_ours(self, data: bytes | memoryview, fields: int) -> bool:
        """True if the message in ``data``, with fields from ``fields`` on, has our prefix."""
        if len(data) <= message_.KEPT_BYTES and message_.is_emitted_with(_PREFIX, data, fields):
            return True
        if len(data) > LARGE_BYTES:
            self.large_at(message_.emitted_at(data, fields))
        return False


Spooling = Callable[[Get, int, TransactionSpool, EmittedMessages], SpoolEnd]
"""Signature of :func:`spool_part` and :func:`spool_transaction`."""


def spool_part(get: Get, limit: int, spool: TransactionSpool, emitted: EmittedMessages) -> SpoolEnd:
    """Spool a part of a transaction that is streamed before its commit, until STREAM_STOP.

    Messages are spooled without the xid, as they would come at the commit.
    """
    add = spool.add
    of = b""
    size = 1
    for taken in range(limit):
        size, data = get(1)
        if size <= 0:
            return SpoolEnd(size, None, taken)
        if data[0] != message_.XLOG_DATA:
            return SpoolEnd(size, bytes(data), taken + 1)
        kind = data[message_.ENVELOPE]
        if kind == message_.STREAM_STOP:
            return SpoolEnd(size, bytes(data), taken + 1)
        if kind in (message_.ORIGIN, message_.TYPE):
            continue
        if kind == message_.MESSAGE and not emitted.may_be_ours(data, _XID_END):
            continue
        if data[_KIND_END:_XID_END] != of:
            of = bytes(data[_KIND_END:_XID_END])
            spool.begin(int.from_bytes(of, "big"))
        add(data[:_KIND_END], data[_XID_END:])
    return SpoolEnd(size, None, limit)


def spool_transaction(
    get: Get, limit: int, spool: TransactionSpool, emitted: EmittedMessages
) -> SpoolEnd:
    """Spool the rest of a giant transaction that comes at its commit, until COMMIT."""
    size = 1
    for taken in range(limit):
        size, data = get(1)
        if size <= 0:
            return SpoolEnd(size, None, taken)
        kind = data[message_.ENVELOPE] if data[0] == message_.XLOG_DATA else None
        if kind is None or kind == message_.COMMIT:
            return SpoolEnd(size, bytes(data), taken + 1)
        if kind != message_.MESSAGE or emitted.may_be_ours(data, _KIND_END):
            spool.add(data)
    return SpoolEnd(size, None, limit)
