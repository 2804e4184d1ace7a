"""The parser of pgoutput's messages, and the server's own messages in the WAL.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
(versions 1 and 2). Every message arrives in an XLogData envelope of 25 bytes ('w',
start, end, send time), which the offsets here count in.
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
"""The transaction's id, between kind and content of a message within a streamed part."""

KEPT_BYTES = 1024
"""The bytes of a MESSAGE that are used: any role may write one of a gigabyte, ours are short."""

CUT_SHORT = (beyond_the_end, IndexError)
"""The errors of a message that has fewer bytes than its kind needs; caught once around many."""

_EPOCH_US = 946_684_800_000_000
"""2000-01-01, where PostgreSQL's clock starts, in microseconds since 1970."""
_EARLIEST_US, _LATEST_US = -_EPOCH_US, 252_455_615_999_999_999
"""1970 and the year 9999: what clients are sent knows no other times."""

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

    #: Where the commit record begins.
    commit_position: int
    #: Where the commit record ends: the position of all the transaction's changes.
    position: int
    #: Microseconds since 1970.
    time_us: int


class StreamStart(NamedTuple):
    """The beginning of a part of a transaction that is still running."""

    xid: int
    #: Whether nothing of the transaction came before.
    first: bool


class StreamAbort(NamedTuple):
    """The rollback of a subtransaction; of the whole transaction where it is equal to ``xid``."""

    xid: int
    subtransaction: int


class KeepaliveMessage(NamedTuple):
    """A keepalive of the walsender."""

    #: How far it has decoded.
    wal_end: int
    #: Whether it asks for a status update at once.
    wants_reply: bool


class RelationColumn(NamedTuple):
    """A column as the stream announces it."""

    name: str
    type_oid: int
    #: As pg_attribute has it; -1 where there is none.
    type_modifier: int
    #: Whether it is part of the replica identity.
    in_key: bool


class Relation(NamedTuple):
    """A table as the stream announces it before its rows."""

    oid: int
    schema: str
    name: str
    #: As pg_class.relreplident has it: d, n, f or i.
    replica_identity: str
    columns: tuple[RelationColumn, ...]


class LogicalMessage(NamedTuple):
    """A message of pg_logical_emit_message; any role may write one, of any size."""

    transactional: bool
    prefix: bytes
    #: Empty where it, or the prefix, isn't whole within KEPT_BYTES.
    content: bytes
    #: Where the message is in the WAL.
    position: int


class Truncate(NamedTuple):
    """TRUNCATE of these tables, in one statement."""

    #: The tables.
    oids: tuple[int, ...]


def cut_short(error: Exception) -> ReplicationStreamBroken:
    """The error in place of one of CUT_SHORT."""
    return ReplicationStreamBroken(f"a message of the stream is cut short ({error})")


def commit(message: bytes) -> Commit:
    """The COMMIT in ``message``.

    :raises ReplicationStreamBroken: if its position or time can't be a commit's.
    """
    sent_at, begin, end, time = _commit(message, 1)
    # It will be confirmed, and PostgreSQL sends nothing again of what was before it.
    if not begin < end <= sent_at or not _EARLIEST_US <= time <= _LATEST_US:
        raise _misplaced(message)
    return Commit(begin, end, time + _EPOCH_US)


def _misplaced(message: bytes) -> ReplicationStreamBroken:
    return ReplicationStreamBroken(f"a COMMIT's position or time can't be one: {message[:80]!r}")


def stream_start(message: bytes) -> StreamStart:
    """The beginning of a part in ``message``."""
    xid, first = _stream_start(message, ENVELOPE + 1)
    return StreamStart(xid, bool(first))


def stream_commit(message: bytes) -> tuple[int, Commit]:
    """The commit of a streamed transaction in ``message``, behind its xid.

    :raises ReplicationStreamBroken: if its position or time can't be a commit's.
    """
    sent_at, xid, begin, end, time = _stream_commit(message, 1)
    if not begin < end <= sent_at or not _EARLIEST_US <= time <= _LATEST_US:
        raise _misplaced(message)
    return xid, Commit(begin, end, time + _EPOCH_US)


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
    prefix, _, behind = message[ENVELOPE + 10 :].partition(b"\0")
    size = int.from_bytes(behind[:4], "big")
    content = behind[4 : 4 + size] if len(behind) >= 4 + size else b""
    return LogicalMessage(bool(flags & 1), prefix, content, position)


def kept(data: bytes | memoryview) -> bytes | memoryview:
    """The part of ``data`` that is needed: of a MESSAGE no more than one of ours has."""
    is_long = len(data) > KEPT_BYTES and data[0] == XLOG_DATA and data[ENVELOPE] == MESSAGE
    return data[:KEPT_BYTES] if is_long else data


def is_emitted_with(prefix: bytes, message: bytes | memoryview, fields: int = ENVELOPE + 1) -> bool:
    """True if the MESSAGE, whose fields begin at ``fields``, has this prefix; it isn't copied."""
    start = fields + 9
    return message[start : start + len(prefix) + 1] == prefix + b"\0"


def emitted_at(message: bytes | memoryview, fields: int) -> int:
    """Position in the WAL of the MESSAGE, whose fields begin at ``fields``."""
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
# Two kinds: a catalog check's message marks the position from which its catalog snapshot holds (and
# lets an idle slot advance); a *barrier* marks a position after every commit that a table's copy
# could read. Messages reach every slot of the database, come again after a crash, and are open to
# every role (pg_logical_emit_message is granted to PUBLIC). So each has a random number that is
# shown nowhere before the message is in the WAL, and counts once: a message that isn't awaited is
# ignored.

_log = structlog.get_logger()

PREFIX = "laredo"

_OF_A_SERVER = re.compile(
    rb"([a-z0-9_]{1,63}):[0-9a-f]{32}:(look|barrier|made:[0-9]+|claim:[0-9a-f:]+)"
)
_MOST_BYTES = 200
"""The longest message that is compared: more than any of ours has."""


def new_token() -> str:
    """A random name that may be shown, never used before."""
    return secrets.token_hex(8)


def new_secret() -> str:
    """A random secret, never used before: only the message's sender and receivers know it."""
    return secrets.token_hex(16)


def check_payload(slot: str) -> str:
    """The content of a new catalog check's message."""
    return f"{slot}:{new_secret()}:look"


def barrier_payload(slot: str) -> str:
    """The content of a new barrier's message; store it durably before it is sent."""
    return f"{slot}:{new_secret()}:barrier"


def made_payload(slot: str, token: str, position: object) -> str:
    """The content of the message by which a store knows the slot that was made for it.

    ``position`` (a number) is where the slot begins: the message says of no other slot that it
    is ours, and none of another one's stream has it and that beginning.
    """
    return f"{slot}:{token}:made:{position}"


def is_barrier(content: bytes, slot: str) -> bool:
    """True if this is the content of a barrier's message of a server of this slot."""
    found = _OF_A_SERVER.fullmatch(content)
    return found is not None and found[1] == slot.encode() and found[2] == b"barrier"


class ExpectedMessages:
    """The messages that were sent and that the stream hasn't brought yet.

    One thread adds what it is about to send, another one compares what has come.
    ``count_strange`` is called for messages with our prefix that aren't awaited and that aren't
    of another slot's server: of an earlier session, or forged.
    """

    def __init__(
        self,
        slot: str,
        count_strange: Callable[[], None],
        others: Callable[[bytes], bool] | None = None,
    ) -> None:
        """``others``: tells which messages of other servers of the slot are expected too."""
        self._others = others
        self._slot = slot.encode()
        self._count_strange = count_strange
        self._contents: set[bytes] = set()
        self._warned = False

    def add(self, payload: str) -> None:
        """Await this message: it is about to be sent."""
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

    The payload is a parameter: statements are shown in pg_stat_activity and pg_stat_statements.
    """
    connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (PREFIX, payload))
