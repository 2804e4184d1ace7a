"""The decoder of pgoutput's messages: changes of each relation, in whole transactions.

Plain rows, of which most of a backlog consists, are decoded in bulk (row_scan.py),
straight into the lists that the store takes. All other messages are decoded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from laredo_fanout.decode.frames import Get
from laredo_fanout.decode.row_scan import IGNORED, Route, scan
from laredo_fanout.decode.transaction_spool import (
    LARGE_BYTES,
    EmittedMessages,
    Spooling,
    TransactionSpool,
    TransactionSpools,
    spool_part,
    spool_transaction,
)
from laredo_fanout.postgres import pgoutput as message_
from laredo_fanout.postgres.connections import ReplicationStreamBroken
from laredo_fanout.postgres.pgoutput import Commit, LogicalMessage
from laredo_fanout.store.rows import TableChanges
from laredo_model import position as position_
from laredo_model.errors import ModelError
from laredo_model.line import Action

if TYPE_CHECKING:
    from laredo_fanout.postgres.pgoutput import Relation

# The relations that the stream has announced, and the route of each one's changes.
#
# The decoder records the relations; ``RelationRoutes``, which knows the tables, sets the routes.
# Neither has a reference to the other.


class ResyncRequired(Exception):
    """The table must be closed at the durable position, and the stream restarted from there."""

    def __init__(self, table_id: int, reason: str) -> None:
        super().__init__(reason)
        self.table_id = table_id
        self.reason = reason


class StreamRelations:
    """One session's announced relations, and the transaction that is being decoded."""

    def __init__(self) -> None:
        self.announced: dict[int, Relation] = {}
        """Relations by oid, as they were announced last."""
        self.routes: dict[bytes, Route] = {}
        """Routes by oid, as the messages' four bytes."""
        self.touched: dict[Route, None] = {}
        """Routes for which the transaction that is being decoded has changes."""
        self.xid_bytes = b""
        self.must_stop = False
        """True if decoding must stop at the end of the transaction."""

    @property
    def xid(self) -> int:
        """32-bit xid of the (top-level) transaction that is being decoded."""
        return int.from_bytes(self.xid_bytes, "big")

    def route_of(self, oid: int) -> Route:
        """Destination for the changes of relation ``oid``."""
        return self.routes.get(oid.to_bytes(4, "big"), IGNORED)

    def set_route(self, oid: int, route: Route | None) -> None:
        """Change the route of relation ``oid``; call it between transactions."""
        self.routes[oid.to_bytes(4, "big")] = route or IGNORED

    def stop(self) -> None:
        """Stop decoding at the end of the transaction that is being decoded."""
        self.must_stop = True

    def forget(self, table_id: int | None, reason: str) -> None:
        """Drop the unfinished transaction's changes of this table, and stop at the next commit.

        :raises ResyncRequired: if a part of the changes was applied already.
        """
        self.must_stop = True
        for route in self.touched:
            if route.table_id == table_id and table_id is not None:
                if route.open:
                    raise ResyncRequired(table_id, reason)
                changes = route.changes
                for part in (changes.actions, changes.keys, changes.lines):
                    del part[route.counted :]


class Tables(Protocol):
    """Interface to the tables, which know the relations that are replicated."""

    def route(self, relation: Relation) -> Route:
        """Return the route of a relation that was just announced."""

    def announced_again(self, relation: Relation) -> None:
        """Note that a relation was announced again, unchanged: other parts of its definition may
        have been altered."""

    def announced_after(self, root: int, leaf: int) -> None:
        """Note that ``leaf`` was announced right after ``root`` and before rows: it is a partition
        of ``root``."""

    def broken(self, route: Route, error: Exception) -> None:
        """Note that a row of ``route`` can't be decoded; its changes from here on are ignored."""


class RoutedChanges(NamedTuple):
    """One route's changes of one table, for the store to take."""

    table_id: int
    changes: TableChanges
    numbered: bool
    """True if keys are digests of lines, to which the store adds numbers."""


class PendingChanges:
    """The decoded changes to apply next: those of whole transactions, or a piece of one.

    ``touched`` has the routes of the transaction that is being decoded.
    """

    def __init__(self, touched: dict[Route, None]) -> None:
        self._touched = touched
        self._taken: list[Route] = []
        """Routes whose counted changes were handed over."""
        self.routes: dict[Route, None] = {}
        """Routes that have pending changes."""
        self.count = 0
        """Number of pending changes."""
        self.bytes = 0
        """Number of bytes of all messages that were decoded since changes were taken."""
        self.to_come = 0
        """About the number of bytes of the spooled transaction that aren't decoded yet."""

    def commit(self, position: int, time_us: int) -> None:
        """Mark the transaction that is being decoded as whole."""
        for route in self._touched:
            self._count(route, position, time_us)
            if route.counted or route.open:
                self.routes[route] = None
        self._touched.clear()
        self.to_come = 0

    def add_piece(self, position: int, time_us: int, to_come: int) -> None:
        """Close a piece of the transaction that is being decoded; more of it follows."""
        for route in self._touched:
            self._count(route, position, time_us)
            if route.counted:
                route.changes.open = route.open = True
                self.routes[route] = None
        self.to_come = to_come

    @property
    def ends_pieces(self) -> bool:
        """True if a transaction's last piece is pending.

        It must be applied before the next transaction's changes are added.
        """
        return any(route.open for route in self.routes)

    def take(self) -> list[RoutedChanges]:
        """Hand the changes over; they are valid until the decoder is called again."""
        taken = []
        for route in self.routes:
            if route.table_id is not None:
                taken.append(RoutedChanges(route.table_id, _counted(route), route.numbered))
            route.open = route.open and route in self._touched
        self._taken += self.routes
        self.routes.clear()
        self.count = self.bytes = 0
        return taken

    def drop_taken(self) -> None:
        """Forget the changes that were handed over. The lists stay: decoders are bound to them."""
        for route in self._taken:
            changes, counted = route.changes, route.counted
            del changes.actions[:counted]
            del changes.keys[:counted]
            del changes.lines[:counted]
            for part in (changes.counts, changes.positions, changes.times_us):
                part.clear()
            changes.open = False
            route.counted = 0
        self._taken.clear()

    def _count(self, route: Route, position: int, time_us: int) -> None:
        """Count the route's changes since the last call as one transaction, or its next piece."""
        changes = route.changes
        added = len(changes.keys) - route.counted
        if added:
            changes.counts.append(added)
            changes.positions.append(position)
            changes.times_us.append(time_us)
            route.counted += added
            self.count += added


def _counted(route: Route) -> TableChanges:
    """The route's counted changes, without those of a transaction that is still arriving."""
    changes, counted = route.changes, route.counted
    if len(changes.keys) == counted:
        return changes
    return replace(
        changes,
        actions=changes.actions[:counted],
        keys=changes.keys[:counted],
        lines=changes.lines[:counted],
    )


_SPOOL_FROM_BYTES = 32 << 20
_PIECE_CHANGES = 20_000
_ROWS = (message_.UPDATE, message_.INSERT, message_.DELETE)
_WHOLE = 0
"""In place of the xid of a transaction that comes at its commit; no real one is 0."""


class DrainEnd(Enum):
    """Reason why :meth:`StreamDecoder.drain` returned."""

    EMPTY = auto()
    """Nothing more has arrived."""
    MORE = auto()
    """The limit was reached."""
    PIECE = auto()
    """The pending changes end with a piece of a giant transaction: apply it before the next
    drain."""
    EVENT = auto()
    """A transaction with ``events`` ended: handle them before the next drain."""
    ENDED = auto()
    """The server ended the stream."""


class StreamDecoder:
    """Decodes one replication connection's messages, of protocol version 1 or 2.

    A transaction that is streamed before its commit, and one of version 1 that is
    giant, is spooled until its commit gives its position, and is then decoded in
    pieces. The spools are in a subdirectory of ``spool_directory`` that is emptied
    here, so no two decoders may share one.

    ``position`` and ``time_us`` are those of the last whole transaction (at first the
    stream's start), ``position_before`` is that of the transaction before it;
    ``wal_end`` is the end of the server's WAL; ``events`` are the emitted messages of
    the transaction that made :meth:`drain` stop; ``pending`` has the changes that
    the store is to take next.
    """

    def __init__(
        self,
        tables: Tables,
        relations: StreamRelations,
        is_awaited: Callable[[LogicalMessage], bool],
        spool_directory: Path,
        position: int,
    ) -> None:
        self._tables = tables
        self._relations = relations
        self._routes = relations.routes
        self._touched = relations.touched
        self.pending = PendingChanges(relations.touched)
        self._is_awaited = is_awaited
        self._spools = TransactionSpools(spool_directory / "streamed")
        self._announced: list[int] = []
        """Relations that were announced last, if no other message has come since."""
        self._part: TransactionSpool | None = None
        """Spool of the transaction of which a part is arriving."""
        self._streamed: tuple[int, Commit] | None = None
        """The transaction that was spooled and must be decoded now."""
        self._pieces: Iterator[None] | None = None
        """Decoding of the spooled transaction, piece by piece."""
        self._bytes = 0
        self._emitted_messages = EmittedMessages()
        self.events: list[bytes] = []
        self.position = self.position_before = position
        self.time_us = 0
        self.wal_end = 0
        self.reply_wanted = False
        self.in_transaction = False

    @property
    def oversized_at(self) -> int:
        """Position of another program's large message, for which libpq's buffer grew for good."""
        return self._emitted_messages.oversized_at

    def drain(self, get: Get, limit: int) -> DrainEnd:
        """Decode the messages in libpq's buffer, at most about ``limit``.

        :raises ReplicationStreamBroken: if the stream breaks the protocol.
        """
        self.pending.drop_taken()
        try:
            return self._decode(get, limit)
        except message_.CUT_SHORT as error:
            raise message_.cut_short(error) from error

    def _decode(self, get: Get, limit: int) -> DrainEnd:
        while True:
            result: DrainEnd | None
            if self._streamed is not None:
                self._pieces, self._streamed = self._decode_spooled(*self._streamed), None
            if self._pieces is not None:
                result = self._next_piece(self._pieces)
            elif self._part is not None:
                result = self._spool(spool_part, self._part, get, limit)
            elif self.in_transaction and self._bytes > _SPOOL_FROM_BYTES:
                spool = self._spools.part(_WHOLE, first=not self._spools.has(_WHOLE))
                result = self._spool(spool_transaction, spool, get, limit)
            else:
                result = self._drain(get, limit)
            if result is not None:
                return result

    def _drain(self, get: Get, limit: int) -> DrainEnd | None:
        """Decode messages; None if the following ones must be spooled, or read from a spool."""
        received = begun = 0
        left = limit
        result: DrainEnd | None = DrainEnd.MORE
        while left > 0:
            size, message, taken, size_in_all, wal_end = scan(
                get, left, self._routes, self._touched
            )
            left -= taken
            received += size_in_all
            self.wal_end = max(self.wal_end, wal_end)
            if self._announced and taken > (message is not None):
                self._rows_follow()
            if message is None:
                if size <= 0:
                    result = DrainEnd.EMPTY if size == 0 else DrainEnd.ENDED
                break
            if message[0] != message_.XLOG_DATA:
                self._other(message)
                continue
            kind = message[message_.ENVELOPE]
            if kind == message_.BEGIN:
                self._relations.xid_bytes = message_.begin_xid(message)
                self.in_transaction = True
                begun, self._bytes = received, 0
            elif kind in _ROWS:
                self._row(kind, message)
            elif kind == message_.COMMIT:
                self._commit(message_.commit(message))
                self.wal_end = max(self.wal_end, self.position)
                if self._relations.must_stop:
                    result = DrainEnd.EVENT
                    break
            elif kind == message_.MESSAGE:
                self._emitted(message, size)
            else:
                self._rare(kind, message)
                if self._part is not None or self._streamed is not None:
                    result = None
                    break
        self._bytes += received - begun
        self.pending.bytes += received
        return result

    def _row(self, kind: int, message: bytes) -> None:
        """Decode a row that isn't plain."""
        if self._announced:
            self._rows_follow()
        relation = message_.row_oid(message)
        route = self._routes.get(relation, IGNORED)
        if route is not IGNORED:
            self._touched[route] = None
        try:
            if kind == message_.DELETE:
                route.delete(message)
            else:
                route.put(message, Action.UPDATE if kind == message_.UPDATE else Action.INSERT)
        except (ReplicationStreamBroken, ModelError, UnicodeDecodeError) as error:
            self._tables.broken(route, error)
            self._routes[relation] = IGNORED

    def _rows_follow(self) -> None:
        """Report that a row follows the relations that were announced last.

        If there are two, they are a root and its partition.
        """
        if len(self._announced) > 1:
            self._tables.announced_after(*self._announced[-2:])
        self._announced.clear()

    def _commit(self, commit: Commit) -> None:
        self._announced.clear()
        if commit.position <= self.position:
            raise ReplicationStreamBroken(
                f"a transaction that ends at {position_.text(commit.position)} came after one that"
                f" ends at {position_.text(self.position)}"
            )
        self.pending.commit(commit.position, commit.time_us)
        self.position_before, self.position = self.position, commit.position
        self.time_us = commit.time_us
        self.in_transaction = False

    def _rare(self, kind: int, message: bytes) -> None:
        match kind:
            case message_.RELATION:
                relation = message_.relation(message)
                self._announced.append(relation.oid)
                if self._relations.announced.get(relation.oid) != relation:
                    self._relations.announced[relation.oid] = relation
                    self._routes[message[26:30]] = self._tables.route(relation)
                else:
                    self._tables.announced_again(relation)
            case message_.TRUNCATE:
                # PostgreSQL announces each of its tables: two in a row aren't root and partition.
                self._announced.clear()
                for oid in message_.truncate(message).oids:
                    self._truncate(self._relations.route_of(oid))
            case message_.ORIGIN | message_.TYPE:
                pass
            case message_.STREAM_START:
                start = message_.stream_start(message)
                self._part = self._spools.part(start.xid, first=start.first)
            case message_.STREAM_COMMIT:
                self._streamed = message_.stream_commit(message)
            case message_.STREAM_ABORT:
                self._spools.roll_back(*message_.stream_abort(message))
            case _:
                raise ReplicationStreamBroken(
                    f"the stream has a message of kind {chr(kind)!r}, which pgoutput's protocol"
                    " versions 1 and 2 don't have"
                )

    def _truncate(self, route: Route) -> None:
        if route is IGNORED or (route.takes is not None and not route.takes()):
            return
        self._touched[route] = None
        route.changes.actions.append(Action.TRUNCATE)
        route.changes.keys.append(b"")
        route.changes.lines.append(b"")

    def _emitted(self, message: bytes, size: int) -> None:
        emitted = message_.emitted(message)
        if self._is_awaited(emitted):
            self.events.append(emitted.content)
            self._relations.stop()
        elif size > LARGE_BYTES:
            self._emitted_messages.large_at(emitted.position)

    def _other(self, message: bytes) -> None:
        if message[0] != message_.KEEPALIVE:
            raise ReplicationStreamBroken(
                f"the stream has a message that is neither WAL nor a keepalive: {message[:40]!r}"
            )
        keepalive = message_.keepalive(message)
        self.wal_end = max(self.wal_end, keepalive.wal_end)
        self.reply_wanted = self.reply_wanted or keepalive.wants_reply

    def _spool(
        self, spooling: Spooling, spool: TransactionSpool, get: Get, limit: int
    ) -> DrainEnd | None:
        """Spool messages; None: the part, or the giant transaction, has ended."""
        left = limit
        while left > 0:
            size, message, taken = spooling(get, left, spool, self._emitted_messages)
            left -= taken
            if size <= 0:
                return DrainEnd.EMPTY if size == 0 else DrainEnd.ENDED
            if message is None:
                break
            if message[0] != message_.XLOG_DATA:
                self._other(message)
                continue
            if message[message_.ENVELOPE] == message_.COMMIT:
                self._streamed = _WHOLE, message_.commit(message)
            else:
                self.wal_end = max(self.wal_end, message_.wal_end(message))
                self._part = None
            return None
        return DrainEnd.MORE

    def _next_piece(self, pieces: Iterator[None]) -> DrainEnd:
        for _ in pieces:
            return DrainEnd.PIECE
        self._pieces = None
        return DrainEnd.EVENT if self._relations.must_stop else DrainEnd.MORE

    def _decode_spooled(self, xid: int, commit: Commit) -> Iterator[None]:
        """Decode a spooled transaction; yields whenever a piece of it is pending.

        A small transaction becomes pending without pieces.
        """
        first = True
        if xid != _WHOLE:
            self._relations.xid_bytes = xid.to_bytes(4, "big")
        spool = self._spools.get(xid)
        for get in spool.pieces():
            if not first or self._touched:
                self.pending.add_piece(commit.position, commit.time_us, spool.to_read)
                yield
            first = False
            while (end := self._drain(get, _PIECE_CHANGES)) is DrainEnd.MORE:
                self.pending.add_piece(commit.position, commit.time_us, spool.to_read)
                yield
            if end is not DrainEnd.EMPTY:
                raise ReplicationStreamBroken(
                    f"the stream has a part or an end of a transaction within transaction {xid}"
                )
        self._spools.drop(xid)
        self._bytes = 0
        self._commit(commit)
        if self.pending.ends_pieces:
            yield

    def advance(self) -> None:
        """Set the position to ``wal_end``: every transaction that is still to come ends after it.

        Call it between transactions. A transaction whose first parts were streamed already comes
        again from its beginning if the stream starts before its commit.
        """
        if self.wal_end > self.position:
            self.position_before = self.position = self.wal_end

    def take_events(self) -> list[bytes]:
        """Return the events that stopped the last drain, and forget them."""
        events, self.events, self._relations.must_stop = self.events, [], False
        return events

    def close(self) -> None:
        """Drop the spooled transactions."""
        self._pieces = None
        self._spools.close()
