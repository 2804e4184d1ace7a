"""Proof that the server's WAL is the WAL that the store has followed: timelines and markers.

The marker, our last message in the stream, is compared only if the slot's confirmed
position is before it. PostgreSQL stores that position at checkpoints, so after a crash it
may lag a little. If an earlier state of the disk was restored, it is the position of that
time, and other WAL follows it.
"""

from __future__ import annotations

import select
import time
from contextlib import closing
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from laredo_fanout.postgres import pgoutput
from laredo_fanout.postgres.connections import SourceUnavailable
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
from laredo_fanout.slot import slot
from laredo_model import position as position_
from laredo_model.position import Ancestor, History, Lineage

if TYPE_CHECKING:
    import threading

    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.postgres.replication_stream import Switch
    from laredo_fanout.source_options import SourceOptions
    from laredo_fanout.store.environment import Marker, SourceIdentity

# Comparison of the server's timelines with the store's.
#
# A promoted standby has the former server's WAL up to its switch point, and its own WAL after that,
# on a timeline with a new number. So has a restored backup, after the end of its recovery. A disk
# snapshot that is put back continues with the *same* number, so only the WAL itself distinguishes
# it from the former server.
#
# https://www.postgresql.org/docs/current/continuous-archiving.html (Timelines)


class Server(NamedTuple):
    """The server's identity, timelines and WAL position."""

    history: History
    #: End of the server's WAL.
    position: int
    #: The ends of the timelines before the present one, oldest first.
    switches: tuple[Switch, ...]


class HistoryVerdict(NamedTuple):
    """The history to which positions belong from now on."""

    lineage: Lineage
    #: The reason if the store's positions mean something else in it, or None.
    broken: str | None


def first(server: Server) -> Lineage:
    """The lineage of a store that has followed nothing yet."""
    return Lineage(server.history, _ancestors(server, {}))


def judge(known: SourceIdentity, position: int, server: Server, now_s: int) -> HistoryVerdict:
    """Judge whether the store's ``position`` means the same on this server.

    ``now_s`` distinguishes a new history with the same numbers in PostgreSQL as the one before.
    """
    before, now = known.history, server.history
    if before.system_identifier != now.system_identifier:
        return HistoryVerdict(
            first(server),
            f"the server is another cluster: system identifier {now.system_identifier},"
            f" the store's is {before.system_identifier}",
        )
    if before.database_oid != now.database_oid:
        return HistoryVerdict(
            first(server),
            f"the database is another one: oid {now.database_oid},"
            f" the store's is {before.database_oid}",
        )
    if before.timeline == now.timeline:
        broken = _other_switches(known, server) or _went_back(position, server)
    else:
        broken = _not_from(known, position, server) or _other_switches(known, server)
    if broken is not None:
        return another(known, server, now_s, broken)
    ancestors = _ancestors(server, _restored(known))
    restored = before.restored if before.timeline == now.timeline else 0
    return HistoryVerdict(Lineage(now._replace(restored=restored), ancestors), None)


def another(known: SourceIdentity, server: Server, now_s: int, broken: str) -> HistoryVerdict:
    """Verdict for the same cluster with other WAL than the store followed."""
    # A timeline number above the known one is new; any other was once that of other WAL.
    restored = now_s if server.history.timeline <= known.history.timeline else 0
    history = server.history._replace(restored=restored)
    return HistoryVerdict(Lineage(history, _ancestors(server, _restored(known))), broken)


def _went_back(position: int, server: Server) -> str | None:
    if server.position >= position:
        return None
    return (
        f"the server's WAL ends at {position_.text(server.position)}, before the stored position"
        f" {position_.text(position)}: an earlier state of the database was restored"
    )


def _not_from(known: SourceIdentity, position: int, server: Server) -> str | None:
    """Reason why a server on another timeline doesn't continue from the store's position."""
    before, now = known.history.timeline, server.history.timeline
    left = {switch.timeline: switch.position for switch in server.switches}
    if before not in left or now < before:
        return f"the server is on timeline {now}, which doesn't come from the store's {before}"
    if position > left[before]:
        return (
            f"timeline {now} branched off the store's {before} at {position_.text(left[before])},"
            f" before the stored position {position_.text(position)}"
        )
    return None


def _other_switches(known: SourceIdentity, server: Server) -> str | None:
    """Reason why the same timeline numbers name other timelines: a backup was restored twice."""
    left = {switch.timeline: switch.position for switch in server.switches}
    for ancestor in known.ancestors:
        timeline = ancestor.history.timeline
        if left.get(timeline) != ancestor.until:
            there = "never" if timeline not in left else f"at {position_.text(left[timeline])}"
            return (
                f"the server left timeline {timeline} {there}, the store's history left it at"
                f" {position_.text(ancestor.until)}: a backup was restored"
            )
    return None


def _restored(known: SourceIdentity) -> dict[int, int]:
    histories = [known.history, *(ancestor.history for ancestor in known.ancestors)]
    return {history.timeline: history.restored for history in histories}


def _ancestors(server: Server, restored: dict[int, int]) -> tuple[Ancestor, ...]:
    return tuple(
        Ancestor(
            server.history._replace(
                timeline=switch.timeline, restored=restored.get(switch.timeline, 0)
            ),
            switch.position,
        )
        for switch in server.switches
    )


_ASK_EVERY_S = 1.0
_RELEASE_S, _POLL_S = 5.0, 0.02
_PREFIX = pgoutput.PREFIX.encode()
_AROUND = 100
"""Number of bytes that exceeds those of a message around its content."""

_keepalive = Struct(">Q").unpack_from
_commit = Struct(">BQQ").unpack_from


def differs_at(
    marker: Marker, options: SourceOptions, connection: Connection, stopping: threading.Event
) -> str | None:
    """Reason why the WAL up to ``marker`` isn't the WAL that the store followed, or None.

    :raises SourceUnavailable: if the stream was cut, or the server is ``stopping``.
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

    :raises SourceUnavailable: if the stream was cut, or the server is ``stopping``.
    """
    return _finds(_Search(content, until, anywhere=True), options, connection, stopping)


def _finds(
    search: _Search, options: SourceOptions, connection: Connection, stopping: threading.Event
) -> bool:
    """Search the stream from the slot's position; nothing is confirmed, so the slot isn't advanced.

    ``connection`` is another one, which waits until the slot is free again.
    """
    with closing(ReplicationStream.open(options)) as stream:
        stream.start(options.slot_name, options.publication.name, 0)
        found = _read(stream, search, options.receive_timeout, stopping)
    deadline = time.monotonic() + _RELEASE_S
    while slot.holder(connection, options.slot_name) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found


def _read(
    stream: ReplicationStream, search: _Search, timeout: float, stopping: threading.Event
) -> bool:
    """Read the stream until the search is over."""
    heard_at = time.monotonic()
    asked_at = 0.0
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLIN)
    while not stopping.is_set():
        now = time.monotonic()
        if now - asked_at >= _ASK_EVERY_S:
            asked_at = now
            stream.confirm(0, reply=True)
        poll.poll(1000 * _ASK_EVERY_S)
        if stream.read_available():
            heard_at = now
        elif now - heard_at > timeout:
            raise SourceUnavailable(f"PostgreSQL sent nothing for {timeout:.0f} s")
        verdict = search.drain(stream)
        if verdict is not None:
            return verdict
    raise SourceUnavailable("the server was stopped while it compared the WAL with the store")


class _Search:
    """Search of the stream for a message of ours, in the transaction that ends at ``position``.

    With ``anywhere`` it is in any transaction up to there. Otherwise the position distinguishes it
    from copies that another program writes into the WAL.
    """

    def __init__(self, content: str, position: int, *, anywhere: bool) -> None:
        self._content = content.encode()
        self._position = position
        self._anywhere = anywhere
        self._met = False

    def drain(self, stream: ReplicationStream) -> bool | None:
        """Read the messages that have arrived.

        Returns True if the wanted one was among them, False if it can't come any more, else None.
        """
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
