"""Checks that the server's WAL holds the message that the store read from it last.

Only where the slot's confirmed position is before that message: PostgreSQL writes the
position down with checkpoints, so after a crash it may be somewhat behind; after an earlier
state of the disk was put back it is what it was then, and what follows is other WAL.
"""

from __future__ import annotations

import select
import time
from contextlib import closing
from struct import Struct
from typing import TYPE_CHECKING

from laredo_fanout.postgres import wal_message
from laredo_fanout.postgres.errors import SourceUnavailable
from laredo_fanout.postgres.pgoutput import (
    COMMIT,
    CUT_SHORT,
    ENVELOPE,
    KEEPALIVE,
    MESSAGE,
    cut_short,
    emitted,
    is_emitted_with,
)
from laredo_fanout.postgres.replication_stream import ReplicationStream
from laredo_fanout.slot import walsender
from laredo_model import position as position_

if TYPE_CHECKING:
    import threading

    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions
    from laredo_fanout.store.meta import Marker

_ASK_EVERY_S = 1.0
_RELEASE_S, _POLL_S = 5.0, 0.02
_PREFIX = wal_message.PREFIX.encode()
_AROUND = 100
"""Bytes of WAL that are more than a message has around its content."""

_keepalive = Struct(">Q").unpack_from
_commit = Struct(">BQQ").unpack_from


def differs_at(
    marker: Marker, options: SourceOptions, connection: Connection, stopping: threading.Event
) -> str | None:
    """Reason why the WAL up to ``marker`` isn't the WAL that the store followed, or None.

    :raises SourceUnavailable: if the stream was cut, or we are ``stopping``.
    """
    search = _Search(marker.content, marker.position, anywhere=False)
    if _finds(search, options, connection, stopping):
        return None
    return (
        f"the server's WAL at {position_.text(marker.position)} isn't the WAL that the store"
        " followed: an earlier state of the database was restored"
    )


def has_message(
    content: str,
    until: int,
    options: SourceOptions,
    connection: Connection,
    stopping: threading.Event,
) -> bool:
    """True if the slot's stream has a message of ours with this content, up to ``until``.

    :raises SourceUnavailable: if the stream was cut, or we are ``stopping``.
    """
    return _finds(_Search(content, until, anywhere=True), options, connection, stopping)


def _finds(
    search: _Search, options: SourceOptions, connection: Connection, stopping: threading.Event
) -> bool:
    """Stream from the slot's position; nothing is confirmed, so it isn't moved.

    ``connection`` is another one, to see that it is free again.
    """
    with closing(ReplicationStream.open(options)) as stream:
        stream.start(options.slot_name, options.publication.name, 0)
        found = _read(stream, search, options.receive_timeout, stopping)
    deadline = time.monotonic() + _RELEASE_S
    while walsender.holder(connection, options.slot_name) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found


def _read(
    stream: ReplicationStream, search: _Search, timeout: float, stopping: threading.Event
) -> bool:
    """Read the stream until the search is over."""
    heard_at = time.monotonic()
    asked_at = 0.0
    while not stopping.is_set():
        now = time.monotonic()
        if now - asked_at >= _ASK_EVERY_S:
            asked_at = now
            stream.confirm(0, reply=True)
        select.select([stream.fileno()], [], [], _ASK_EVERY_S)
        if stream.read_available():
            heard_at = now
        elif now - heard_at > timeout:
            raise SourceUnavailable(f"the stream brought nothing for {timeout:.0f} s")
        verdict = search.drain(stream)
        if verdict is not None:
            return verdict
    raise SourceUnavailable("stopped while the server's WAL was compared with the store")


class _Search:
    """A search of the stream for a message of ours, in the transaction that ends at ``position``.

    With ``anywhere`` in any one up to there. A copy that another program writes into the WAL
    is elsewhere.
    """

    def __init__(self, content: str, position: int, *, anywhere: bool) -> None:
        self._content = content.encode()
        self._position = position
        self._anywhere = anywhere
        self._met = False

    def drain(self, stream: ReplicationStream) -> bool | None:
        """Read what has come: True if the message did, False if it can't any more, else None."""
        while True:
            size, message = stream.pgconn.get_copy_data(1)
            if size == 0:
                return None
            if size < 0:
                raise stream.end()
            try:
                verdict = self._judge(message)
            except CUT_SHORT as error:
                raise cut_short(error) from error
            if verdict is not None:
                return verdict

    def _judge(self, message: memoryview) -> bool | None:
        if message[0] == KEEPALIVE:
            return False if _keepalive(message, 1)[0] > self._position else None
        kind = message[ENVELOPE]
        if kind == MESSAGE:
            self._met = self._met or self._is_it(message)
        elif kind == COMMIT:
            end = _commit(message, ENVELOPE + 1)[2]
            if self._met and (end == self._position or self._anywhere):
                return True
            self._met = False
            return False if end >= self._position else None
        return None

    def _is_it(self, message: memoryview) -> bool:
        if len(message) > len(self._content) + _AROUND or not is_emitted_with(_PREFIX, message):
            return False
        found = emitted(bytes(message))
        return found.transactional and found.content == self._content
