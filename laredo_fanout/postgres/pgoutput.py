"""The parser of pgoutput's messages, and the server's own messages in the WAL.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
(versions 1 and 2). Every message arrives in an XLogData envelope of 25 bytes ('w',
start, end, send time), which the offsets here include.
"""

from __future__ import annotations

import re
import secrets
from struct import Struct
from struct import error as beyond_the_end
from typing import TYPE_CHECKING, NamedTuple

import structlog

from laredo_fanout.postgres.connections import ReplicationStreamBroken

if TYPE_CHECKING:
    from collections.abc import Callable

    from laredo_fanout.postgres.connections import Connection

ENVELOPE = 25
"""Bytes before the message's kind."""

KEEPALIVE, XLOG_DATA = ord("k"), ord("w")
BEGIN, COMMIT, ORIGIN, TYPE = ord("B"), ord("C"), ord("O"), ord("Y")
RELATION, MESSAGE, TRUNCATE = ord("R"), ord("M"), ord("T")
INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = ord("S"), ord("E"), ord("c"), ord("A")

XID_BYTES = 4
"""Size of the transaction's id, between kind and content of a message in a streamed part."""

KEPT_BYTES = 1024
"""Bytes of a MESSAGE that are kept: any role may write one of a gigabyte, ours are short."""

CUT_SHORT = (beyond_the_end, IndexError)
"""Errors of a message that has fewer bytes than its kind needs; caught once around many."""

_EPOCH_US = 946_684_800_000_000
"""2000-01-01, the start of PostgreSQL's clock, in microseconds since 1970."""
_EARLIEST_US, _LATEST_US = -_EPOCH_US, 252_455_615_999_999_999
"""1970 and the end of 9999: the wire has no other times."""

_begin = Struct(">26x16x4s").unpack_from
_row = Struct(">26x4s").unpack_from
_commit = Struct(">8xQ8xxxQQq").unpack_from
_stream_start = Struct(">IB").unpack_from
_stream_commit = Struct(">8xQ8xxIxQQq").unpack_from
_stream_abort = Struct(">II").unpack_from
_keepalive = Struct(">QqB").unpack_from
_message = Struct(">BQ").unpack_from
_truncate = Struct(">IB").unpack_from
_relation = Struct(">I").unpack_from
_column = Struct(">Ii").unpack_from
_envelope = Struct(">QQq").unpack_from


class Commit(NamedTuple):
    """The end of a transaction."""

    #: End of the commit record: the position of all the transaction's changes.
    position: int
    #: Microseconds since 1970.
    time_us: int


class StreamStart(NamedTuple):
    """The beginning of a part of a transaction that is still running."""

    xid: int
    #: True if this is the transaction's first part.
    first: bool


class StreamAbort(NamedTuple):
    """The rollback of a subtransaction; of the whole transaction if it equals ``xid``."""

    xid: int
    subtransaction: int


class KeepaliveMessage(NamedTuple):
    """A keepalive of the walsender."""

    #: The position up to which the walsender has decoded.
    wal_end: int
    #: True if the walsender asks for a status update at once.
    wants_reply: bool


class RelationColumn(NamedTuple):
    """A column as the stream announces it."""

    name: str
    type_oid: int
    #: pg_attribute.atttypmod; -1 for none.
    type_modifier: int
    #: True if the column is part of the replica identity.
    in_key: bool


class Relation(NamedTuple):
    """A table as the stream announces it before its rows."""

    oid: int
    schema: str
    name: str
    #: pg_class.relreplident: d, n, f or i.
    replica_identity: str
    columns: tuple[RelationColumn, ...]


class LogicalMessage(NamedTuple):
    """A message of pg_logical_emit_message; any role may write one, of any size."""

    transactional: bool
    prefix: bytes
    #: Empty if KEPT_BYTES don't contain the prefix and the whole content.
    content: bytes
    #: The message's position in the WAL.
    position: int


class Truncate(NamedTuple):
    """TRUNCATE of these tables, in one statement."""

    oids: tuple[int, ...]


def cut_short(error: Exception) -> ReplicationStreamBroken:
    """The error to raise for one of CUT_SHORT."""
    return ReplicationStreamBroken(f"a message of the stream is cut short ({error})")


def begin_xid(message: bytes) -> bytes:
    """The 32-bit xid of the BEGIN in ``message``, as four bytes."""
    xid: bytes = _begin(message)[0]
    return xid


def row_oid(message: bytes) -> bytes:
    """The relation's oid of the row in ``message``, as four bytes."""
    oid: bytes = _row(message)[0]
    return oid


def commit(message: bytes) -> Commit:
    """The COMMIT in ``message``.

    :raises ReplicationStreamBroken: if its position or time can't be a commit's.
    """
    return _checked_commit(message, *_commit(message, 1))


def _checked_commit(message: bytes, sent_at: int, begin: int, end: int, time: int) -> Commit:
    # The position will be confirmed, and PostgreSQL never sends again what was before it.
    if not begin < end <= sent_at or not _EARLIEST_US <= time <= _LATEST_US:
        raise ReplicationStreamBroken(
            f"a COMMIT message has an impossible position or time: {message[:80]!r}"
        )
    return Commit(end, time + _EPOCH_US)


def stream_start(message: bytes) -> StreamStart:
    """The beginning of a part in ``message``."""
    xid, first = _stream_start(message, ENVELOPE + 1)
    return StreamStart(xid, bool(first))


def stream_commit(message: bytes) -> tuple[int, Commit]:
    """The xid of the streamed transaction in ``message``, and its commit.

    :raises ReplicationStreamBroken: if its position or time can't be a commit's.
    """
    sent_at, xid, begin, end, time = _stream_commit(message, 1)
    return xid, _checked_commit(message, sent_at, begin, end, time)


def stream_abort(message: bytes) -> StreamAbort:
    """The rollback in ``message``."""
    return StreamAbort(*_stream_abort(message, ENVELOPE + 1))


def keepalive(message: bytes) -> KeepaliveMessage:
    """The keepalive in ``message``, which has no envelope."""
    wal_end, _, wants_reply = _keepalive(message, 1)
    return KeepaliveMessage(wal_end, bool(wants_reply))


def wal_end(message: bytes) -> int:
    """End of the server's WAL when it sent ``message``."""
    end: int = _envelope(message, 1)[1]
    return end


def emitted(message: bytes) -> LogicalMessage:
    """The MESSAGE in ``message``, of which KEPT_BYTES suffice."""
    flags, position = _message(message, ENVELOPE + 1)
    prefix, _, rest = message[ENVELOPE + 10 :].partition(b"\0")
    size = int.from_bytes(rest[:4], "big")
    content = rest[4 : 4 + size] if len(rest) >= 4 + size else b""
    return LogicalMessage(bool(flags & 1), prefix, content, position)


def kept(data: bytes | memoryview) -> bytes | memoryview:
    """The whole of ``data``, or the first KEPT_BYTES of a MESSAGE."""
    is_long = len(data) > KEPT_BYTES and data[0] == XLOG_DATA and data[ENVELOPE] == MESSAGE
    return data[:KEPT_BYTES] if is_long else data


def is_emitted_with(prefix: bytes, message: bytes | memoryview, fields: int = ENVELOPE + 1) -> bool:
    """True if the MESSAGE with fields from ``fields`` on has this prefix; nothing is copied."""
    start = fields + 9
    return message[start : start + len(prefix) + 1] == prefix + b"\0"


def emitted_at(message: bytes | memoryview, fields: int) -> int:
    """Position in the WAL of the MESSAGE with fields from ``fields`` on."""
    position: int = _message(message, fields)[1]
    return position


def truncate(message: bytes) -> Truncate:
    """The TRUNCATE in ``message``."""
    count, _ = _truncate(message, ENVELOPE + 1)
    return Truncate(Struct(f">{count}I").unpack_from(message, ENVELOPE + 6))


def relation(message: bytes) -> Relation:
    """The relation in ``message``.

    :raises ReplicationStreamBroken: if it is cut short.
    """
    try:
        (oid,) = _relation(message, ENVELOPE + 1)
        schema, at = _text(message, ENVELOPE + 5)
        name, at = _text(message, at)
        identity = chr(message[at])
        count = int.from_bytes(message[at + 1 : at + 3], "big")
        at += 3
        columns = []
        for _ in range(count):
            in_key = bool(message[at] & 1)
            column, at = _text(message, at + 1)
            type_oid, modifier = _column(message, at)
            at += 8
            columns.append(RelationColumn(column, type_oid, modifier, in_key))
    except (ValueError, *CUT_SHORT) as short:
        raise ReplicationStreamBroken(
            f"a Relation message is cut short: {message[:120]!r}"
        ) from short
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _text(message: bytes, start: int) -> tuple[str, int]:
    end = message.index(0, start)
    return message[start:end].decode(), end + 1


# Messages that the server writes into the WAL and recognizes in its stream.
#
# A catalog check's message marks the position from which its catalog snapshot is valid (and lets
# an idle slot advance). A *barrier* marks a position after each commit that a copy could read.
# Every slot of the database gets the messages, a crash repeats them, and every role may write them
# (pg_logical_emit_message is granted to PUBLIC). So each has a random number that is shown nowhere
# before the message is in the WAL, and counts once: a message that isn't expected is ignored.

_log = structlog.get_logger()

PREFIX = "laredo"

_OF_A_SERVER = re.compile(
    rb"([a-z0-9_]{1,63}):[0-9a-f]{32}:(look|barrier|made:[0-9]+|claim:[0-9a-f:]+)"
)
_MOST_BYTES = 200
"""Length of the longest message that is compared; all of ours are shorter."""


def new_token() -> str:
    """A random name, never used before; it may be shown."""
    return secrets.token_hex(8)


def new_secret() -> str:
    """A random secret, never used before; only a message's sender and receivers know it."""
    return secrets.token_hex(16)


def check_payload(slot: str) -> str:
    """The content of a new catalog check's message."""
    return f"{slot}:{new_secret()}:look"


def barrier_payload(slot: str) -> str:
    """The content of a new barrier's message; store it durably before it is sent."""
    return f"{slot}:{new_secret()}:barrier"


def made_payload(slot: str, token: str, position: object) -> str:
    """The content of the message by which a store recognizes the slot that was created for it.

    ``position`` (a number) is the slot's start. No other slot's stream has both this start and this
    message, so the message can't be mistaken for another slot's.
    """
    return f"{slot}:{token}:made:{position}"


def is_barrier(content: bytes, slot: str) -> bool:
    """True if a server of this slot wrote this content for a barrier."""
    found = _OF_A_SERVER.fullmatch(content)
    return found is not None and found[1] == slot.encode() and found[2] == b"barrier"


class ExpectedMessages:
    """The messages that were sent and haven't arrived in the stream yet.

    One thread adds a message before it sends it, another compares the messages that arrive.
    ``count_strange`` is called for messages with our prefix that aren't expected, except those of
    another slot's server: an earlier session sent them, or somebody forged them.
    """

    def __init__(
        self,
        slot: str,
        count_strange: Callable[[], None],
        others: Callable[[bytes], bool] | None = None,
    ) -> None:
        """``others`` returns True for messages that another server of the slot may send."""
        self._others = others
        self._slot = slot.encode()
        self._count_strange = count_strange
        self._contents: set[bytes] = set()
        self._warned = False

    def add(self, payload: str) -> None:
        """Expect this message, which is about to be sent."""
        self._contents.add(payload.encode())

    def meet(self, emitted: LogicalMessage) -> bool:
        """Return True if the message is expected, and take it off the list."""
        if emitted.prefix != PREFIX.encode():
            return False
        # Nothing longer can be a server's message.
        ours = emitted.transactional and len(emitted.content) <= _MOST_BYTES
        content = emitted.content if ours else b""
        if content in self._contents:
            self._contents.discard(content)
            return True
        if self._others is not None and self._others(content):
            return True
        if not self._is_of_another(content):
            if not self._warned:
                self._warned = True
                _log.info(
                    "unexpected WAL message ignored",
                    reason="an earlier connection of ours sent it, or another program",
                )
            self._count_strange()
        return False

    def _is_of_another(self, content: bytes) -> bool:
        found = _OF_A_SERVER.fullmatch(content)
        return found is not None and found[1] != self._slot


def emit(connection: Connection, payload: str) -> None:
    """Write the message into the WAL, in a transaction of its own (synchronous_commit is local).

    The payload is a parameter, because pg_stat_activity and pg_stat_statements show statements.
    """
    connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (PREFIX, payload))
