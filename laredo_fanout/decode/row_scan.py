"""Routes of relations' rows, and the bulk decoding of plain rows straight into them.

A plain row is that of an INSERT, or of an UPDATE that comes without its old row. Every other
message is handed back. Compiled (``_row_scan.c``) if the installation found a C compiler: a row
then costs a twentieth of what it costs here. A property test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from laredo_fanout.postgres import pgoutput as message_
from laredo_fanout.postgres.connections import ReplicationStreamBroken
from laredo_fanout.store.rows import TableChanges
from laredo_model.errors import ModelError

if TYPE_CHECKING:
    from laredo_fanout.decode.frames import Get
    from laredo_fanout.decode.row_decoder import PlainRows, RowDecoder


def _ignore(message: bytes, action: int) -> None:
    """Ignore an INSERT or UPDATE of a relation that isn't replicated."""


def _ignore_delete(message: bytes) -> None:
    """Ignore a DELETE of a relation that isn't replicated."""


@dataclass(eq=False, slots=True)
class Route:
    """Destination of one relation's changes; without ``table_id`` they are ignored."""

    table_id: int | None = None
    changes: TableChanges = field(default_factory=TableChanges)
    """Decoded changes that the store hasn't taken. Decoders are bound to these lists."""
    counted: int = 0
    """Number of ``changes`` that belong to whole transactions, or to closed pieces of one."""
    open: bool = False
    """True if a piece of a transaction was closed and the transaction goes on."""
    put: Callable[[bytes, int], None] = _ignore
    delete: Callable[[bytes], None] = _ignore_delete
    plain: PlainRows | None = None
    """Layout of plain rows for the compiled scan; None: ``put`` takes every row."""
    takes: Callable[[], bool] | None = None
    """True if the transaction that is being decoded counts; None: every transaction does."""
    numbered: bool = False
    """True if keys are digests of lines, to which the store adds numbers."""

    def decode_by(self, decoder: RowDecoder) -> None:
        """Decode rows by ``decoder``, whose sink is this route's ``changes``."""
        self.put, self.delete, self.plain = decoder


IGNORED = Route()

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
    """The message that isn't a plain row, for the caller to handle."""
    messages: int
    """Number of messages that were taken, ``message`` included."""
    received: int
    """Number of bytes of these messages."""
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
    """Put plain rows of relations in ``routes`` into their route, until another message.

    A row that can't be decoded is handed back; the row decoder raises its error.
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
