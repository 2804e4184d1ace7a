"""Buffers of decoded changes, filled in bulk, counted into transactions, emptied by the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from laredo_fanout.postgres import pgoutput as message_
from laredo_fanout.postgres.connections import ReplicationStreamBroken
from laredo_fanout.store.rows import TableChanges
from laredo_model.errors import ModelError

if TYPE_CHECKING:
    from laredo_fanout.decode.frames import Get
    from laredo_fanout.decode.row_decoder import PlainRows, RowDecoder
    from laredo_fanout.postgres.pgoutput import Relation


def _ignore(message: bytes, action: int) -> None:
    """An INSERT or UPDATE of a relation that isn't ours."""


def _ignore_delete(message: bytes) -> None:
    """A DELETE of a relation that isn't ours."""


class Route:
    """Destination of one relation's changes; without ``table_id`` they are ignored."""

    __slots__ = (
        "changes",
        "counted",
        "delete",
        "numbered",
        "open",
        "plain",
        "put",
        "table_id",
        "takes",
    )

    def __init__(self, table_id: int | None = None) -> None:
        self.table_id = table_id
        self.changes = TableChanges()
        self.counted = 0
        self.open = False
        self.put: Callable[[bytes, int], None] = _ignore
        self.delete: Callable[[bytes], None] = _ignore_delete
        self.plain: PlainRows | None = None
        """Layout of plain rows for the compiled scan; None: ``put`` takes every row."""
        self.takes: Callable[[], bool] | None = None
        """Predicate for the transaction that is being decoded; None: every transaction counts."""
        self.numbered = False
        """Keys are digests of lines, which the store distinguishes by numbers."""

    def decode_by(self, decoder: RowDecoder) -> None:
        """Take rows apart by ``decoder``, whose sink is this route's ``changes``."""
        self.put, self.delete, self.plain = decoder

    def count(self, position: int, time_us: int) -> None:
        """The changes since the last call were one transaction's (or its next piece)."""
        changes = self.changes
        total = len(changes.keys)
        if total > self.counted:
            changes.counts.append(total - self.counted)
            changes.positions.append(position)
            changes.times_us.append(time_us)
            self.counted = total

    def discard(self) -> None:
        """Forget the changes of the transaction that isn't whole yet."""
        changes = self.changes
        for part in (changes.actions, changes.keys, changes.lines):
            del part[self.counted :]

    def whole(self) -> TableChanges:
        """The counted changes; those of a transaction that is still arriving stay behind."""
        changes, counted = self.changes, self.counted
        if len(changes.keys) == counted:
            return changes
        return TableChanges(
            changes.actions[:counted],
            changes.keys[:counted],
            changes.lines[:counted],
            changes.counts,
            changes.positions,
            changes.times_us,
            changes.open,
        )

    def clear(self) -> None:
        """Forget the counted changes: they were applied. The lists stay, decoders are bound
        to them."""
        changes, counted = self.changes, self.counted
        del changes.actions[:counted]
        del changes.keys[:counted]
        del changes.lines[:counted]
        for part in (changes.counts, changes.positions, changes.times_us):
            part.clear()
        changes.open = False
        self.counted = 0


IGNORED = Route()


class Tables(Protocol):
    """Interface to the tables: which relations are wanted."""

    def route(self, relation: Relation) -> Route:
        """Destination for the changes of a relation that was just announced."""

    def announced_again(self, relation: Relation) -> None:
        """A relation was announced as it was before: something of it may have been altered."""

    def announced_behind(self, root: int, leaf: int) -> None:
        """Relation ``leaf`` was announced right behind ``root``, in whose place its rows follow:
        it is a partition of that."""

    def broken(self, route: Route, error: Exception) -> None:
        """A row of ``route`` can't be decoded; its changes from here on are ignored."""


# The decoded changes that aren't in the store's transaction yet, by route.
#
# Of whole transactions, and of a giant one by pieces.


class PendingChanges:
    """The changes that are to be applied next. ``touched``: the routes of the transaction that is
    being decoded."""

    def __init__(self, touched: dict[Route, None]) -> None:
        self._touched = touched
        self._pending: dict[Route, None] = {}

    @property
    def routes(self) -> list[Route]:
        """The routes whose counted changes are to be applied."""
        return list(self._pending)

    @property
    def count(self) -> int:
        """Number of pending changes."""
        return sum(route.counted for route in self._pending)

    @property
    def ends_pieces(self) -> bool:
        """True if a transaction's last piece is pending.

        It must be applied before the next transaction's changes are added.
        """
        return any(route.open for route in self._pending)

    def commit(self, position: int, time_us: int) -> None:
        """The transaction that is being decoded is whole."""
        for route in self._touched:
            route.count(position, time_us)
            if route.counted or route.open:
                self._pending[route] = None
        self._touched.clear()

    def add_piece(self, position: int, time_us: int) -> None:
        """Close a piece of the transaction that is being decoded; the piece is open at its end."""
        for route in self._touched:
            route.count(position, time_us)
            if route.counted:
                route.changes.open = route.open = True
                self._pending[route] = None

    def applied(self) -> None:
        """The pending changes are in the store's transaction."""
        for route in self._pending:
            route.clear()
            route.open = route.open and route in self._touched
        self._pending.clear()


# The bulk decoding of plain rows (INSERT, UPDATE); every other message is handed back.
#
# Compiled (``_row_scan.c``) where the installation found a C compiler: a row then costs a twentieth
# of what it costs here. Both do the same, which a property test holds.

_UPDATE, _INSERT = message_.UPDATE, message_.INSERT
_KIND, _RELATION, _TUPLE = 25, slice(26, 30), 30
_COLUMNS = 33
"""Offset of a plain row's first column: no row is shorter."""
_NEW = ord("N")


class ScanEnd(NamedTuple):
    """Reason why a scan stopped, and its extent."""

    size: int
    """Last result of ``get``: 0 nothing has arrived, -1 the end; else a message, or the limit was
    reached."""
    message: bytes | None
    """The message that isn't a plain row: it is to be handled elsewhere."""
    messages: int
    """Number of messages that were taken, that one included."""
    received: int
    """Their bytes."""
    wal_end: int
    """End of the server's WAL in the last plain row; 0 if there was none."""


class Scan(Protocol):
    """Signature of :func:`scan_plainly` and of its compiled twin; ``scan`` is one of them."""

    def __call__(
        self, get: Get, limit: int, routes: dict[bytes, Route], touched: dict[Route, None], /
    ) -> ScanEnd: ...


def scan_plainly(
    get: Get, limit: int, routes: dict[bytes, Route], touched: dict[Route, None]
) -> ScanEnd:
    """Put rows into their relation's route, until a message that isn't a plain row.

    A plain row is that of an INSERT, or of an UPDATE that comes without its old row, of a
    relation in ``routes``. One that can't be decoded is handed back; the row decoder raises its
    error.
    """
    current = b""
    put = IGNORED.put
    received, last, size = 0, b"", 1
    for taken in range(limit):
        size, data = get(1)
        if size <= 0:
            return ScanEnd(size, None, taken, received, _wal_end(last))
        received += size
        message = bytes(message_.kept(data))
        is_long = len(data) >= _COLUMNS and message[0] == message_.XLOG_DATA
        kind = message[_KIND] if is_long else 0
        if kind not in (_UPDATE, _INSERT) or message[_TUPLE] != _NEW:
            return ScanEnd(size, message, taken + 1, received, _wal_end(last))
        if message[_RELATION] != current:
            current = message[_RELATION]
            route = routes.get(current, IGNORED)
            put = route.put
            if route is not IGNORED:
                touched[route] = None
        try:
            put(message, 2 if kind == _UPDATE else 1)
        except (ReplicationStreamBroken, ModelError, UnicodeDecodeError):
            return ScanEnd(size, message, taken + 1, received, _wal_end(last))
        last = message
    return ScanEnd(size, None, limit, received, _wal_end(last))


try:
    from laredo_fanout.decode._row_scan import scan as scan  # noqa: PLC0414
except ImportError:  # there was no C compiler when this was installed
    scan = scan_plainly


def _wal_end(message: bytes) -> int:
    return message_.wal_end(message) if message else 0
