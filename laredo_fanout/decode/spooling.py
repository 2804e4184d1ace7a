"""Spooling of messages that are decoded only at their transaction's commit.

Those of a transaction that is streamed before its commit, and the rest of a giant
one. What isn't to be spooled is handed back, as a scan does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from laredo_fanout.decode.frames import Get
from laredo_fanout.decode.transaction_spool import TransactionSpool
from laredo_fanout.postgres import pgoutput as message_
from laredo_fanout.postgres import wal_message

LARGE_BYTES = 16 << 20
"""Of a logical message of another program."""

_PREFIX = wal_message.PREFIX.encode()
_KIND_END = message_.ENVELOPE + 1
_XID_END = _KIND_END + message_.XID_BYTES


class Spooled(NamedTuple):
    """Reason why spooling stopped, and its extent."""

    size: int
    """Last result of ``get``: 0 nothing has arrived, -1 the end; else a message, or the limit was
    reached."""
    message: bytes | None
    """A keepalive, or the end of what is spooled: it is to be handled elsewhere."""
    messages: int
    """Number of messages that were taken, that one included."""


class EmittedMessages:
    """Which of the messages that pg_logical_emit_message wrote may be ours; no other is spooled."""

    def __init__(self) -> None:
        self.swollen_at = 0
        """Position of another program's large message, for which libpq's buffer grew for good."""

    def large_at(self, position: int) -> None:
        """A large one that isn't ours was at ``position``."""
        self.swollen_at = max(self.swollen_at, position)

    def may_be_ours(self, data: bytes | memoryview, fields: int) -> bool:
        """True if the message in ``data``, whose fields begin at ``fields``, has our prefix."""
        if len(data) <= message_.KEPT_BYTES and message_.is_emitted_with(_PREFIX, data, fields):
            return True
        if len(data) > LARGE_BYTES:
            self.large_at(message_.emitted_at(data, fields))
        return False


Spooling = Callable[[Get, int, TransactionSpool, EmittedMessages], Spooled]
"""Signature of :func:`spool_part` and :func:`spool_transaction`."""


def spool_part(get: Get, limit: int, spool: TransactionSpool, emitted: EmittedMessages) -> Spooled:
    """Spool a part of a transaction that is streamed before its commit, until STREAM_STOP.

    Messages are kept as they would come at the commit, without the xid.
    """
    add = spool.add
    of = b""
    size = 1
    for taken in range(limit):
        size, data = get(1)
        if size <= 0:
            return Spooled(size, None, taken)
        if data[0] != message_.XLOG_DATA:
            return Spooled(size, bytes(data), taken + 1)
        kind = data[message_.ENVELOPE]
        if kind == message_.STREAM_STOP:
            return Spooled(size, bytes(data), taken + 1)
        if kind in (message_.ORIGIN, message_.TYPE):
            continue
        if kind == message_.MESSAGE and not emitted.may_be_ours(data, _XID_END):
            continue
        if data[_KIND_END:_XID_END] != of:
            of = bytes(data[_KIND_END:_XID_END])
            spool.begin(int.from_bytes(of, "big"))
        add(data[:_KIND_END], data[_XID_END:])
    return Spooled(size, None, limit)


def spool_transaction(
    get: Get, limit: int, spool: TransactionSpool, emitted: EmittedMessages
) -> Spooled:
    """Spool a transaction that comes at its commit and turned out giant, until COMMIT."""
    size = 1
    for taken in range(limit):
        size, data = get(1)
        if size <= 0:
            return Spooled(size, None, taken)
        kind = data[message_.ENVELOPE] if data[0] == message_.XLOG_DATA else None
        if kind is None or kind == message_.COMMIT:
            return Spooled(size, bytes(data), taken + 1)
        if kind != message_.MESSAGE or emitted.may_be_ours(data, _KIND_END):
            spool.add(data)
    return Spooled(size, None, limit)
