"""Whether the server's WAL has the message that the store met in it last.

Only where the slot's confirmed position lies before that message: PostgreSQL writes the
position down with checkpoints, so after a crash it may be somewhat behind; after an earlier
state of the disk was put back it is what it was then, and what follows is other WAL.
"""

from __future__ import annotations

import select
import time
from contextlib import closing
from struct import Struct
from typing import TYPE_CHECKING

from laredo_fanout.errors import SourceUnavailable
from laredo_fanout.source import slot_holder
from laredo_fanout.source.message import COMMIT, ENVELOPE, KEEPALIVE, MESSAGE
from laredo_fanout.source.replication import ReplicationStream
from laredo_model import position as position_

if TYPE_CHECKING:
    import threading

    from laredo_fanout.source.options import SourceOptions
    from laredo_fanout.source.session import Connection
    from laredo_fanout.store.meta import Marker

_ASK_EVERY_S = 1.0
_RELEASE_S, _LOOK_S = 5.0, 0.02

_keepalive = Struct(">Q").unpack_from
_commit = Struct(">BQQ").unpack_from


def differs_at(
    marker: Marker, options: SourceOptions, connection: Connection, stopping: threading.Event
) -> str | None:
    """Why the WAL up to ``marker`` isn't the one that the store followed; None if it is.

    The slot is streamed from where it stands, and nothing is confirmed, so it isn't moved;
    ``connection`` is another one, to see that it is free again.

    :raises SourceUnavailable: if the stream was cut, or we are ``stopping``.
    """
    with closing(ReplicationStream.open(options)) as stream:
        stream.start(options.slot_name, options.publication.name, 0)
        found = _meets(stream, marker, options.receive_timeout, stopping)
    deadline = time.monotonic() + _RELEASE_S
    while slot_holder.holder(connection, options.slot_name) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    if found:
        return None
    return (
        f"the server's WAL at {position_.text(marker.position)} isn't what was there before:"
        " an earlier state of the database was put back"
    )


def _meets(
    stream: ReplicationStream, marker: Marker, timeout: float, stopping: threading.Event
) -> bool:
    """Read the stream until the marker comes, or what lies beyond it."""
    heard_at = time.monotonic()
    asked_at = 0.0
    while not stopping.is_set():
        now = time.monotonic()
        if now - asked_at >= _ASK_EVERY_S:
            asked_at = now
            stream.confirm(0, reply=True)
        select.select([stream.fileno()], [], [], _ASK_EVERY_S)
        if stream.gulp():
            heard_at = now
        elif now - heard_at > timeout:
            raise SourceUnavailable(f"the stream brought nothing for {timeout:.0f} s")
        verdict = _drain(stream, marker)
        if verdict is not None:
            return verdict
    raise SourceUnavailable("stopped while the server's WAL was compared with the store")


def _drain(stream: ReplicationStream, marker: Marker) -> bool | None:
    """What has come: whether it is the marker, or lies beyond; None: not there yet."""
    content = marker.content.encode()
    while True:
        size, message = stream.pgconn.get_copy_data(1)
        if size == 0:
            return None
        if size < 0:
            raise stream.end()
        if message[0] == KEEPALIVE:
            beyond = _keepalive(message, 1)[0] > marker.position
        elif message[ENVELOPE] == MESSAGE and content in bytes(message):
            return True
        else:
            ends = message[ENVELOPE] == COMMIT
            beyond = ends and _commit(message, ENVELOPE + 1)[2] >= marker.position
        if beyond:
            return False
