"""The bulk decoding of plain rows (INSERT, UPDATE); every other message is handed back.

Compiled (``_row_scan.c``) where the installation found a C compiler: a row then
costs a twentieth of what it costs here. Both do the same, which a property test holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from laredo_fanout.decode.change_buffer import IGNORED
from laredo_fanout.postgres import pgoutput as message_
from laredo_fanout.postgres.errors import ReplicationStreamBroken
from laredo_model.errors import ModelError

if TYPE_CHECKING:
    from laredo_fanout.decode.change_buffer import Route
    from laredo_fanout.decode.frames import Get

_UPDATE, _INSERT = message_.UPDATE, message_.INSERT
_KIND, _RELATION, _TUPLE = 25, slice(26, 30), 30
_COLUMNS = 33
"""Offset of a plain row's first column: no row is shorter."""
_NEW = ord("N")


class Scanned(NamedTuple):
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
    ) -> Scanned: ...


def scan_plainly(
    get: Get, limit: int, routes: dict[bytes, Route], touched: dict[Route, None]
) -> Scanned:
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
            return Scanned(size, None, taken, received, _wal_end(last))
        received += size
        message = bytes(message_.kept(data))
        is_long = len(data) >= _COLUMNS and message[0] == message_.XLOG_DATA
        kind = message[_KIND] if is_long else 0
        if kind not in (_UPDATE, _INSERT) or message[_TUPLE] != _NEW:
            return Scanned(size, message, taken + 1, received, _wal_end(last))
        if message[_RELATION] != current:
            current = message[_RELATION]
            route = routes.get(current, IGNORED)
            put = route.put
            if route is not IGNORED:
                touched[route] = None
        try:
            put(message, 2 if kind == _UPDATE else 1)
        except (ReplicationStreamBroken, ModelError, UnicodeDecodeError):
            return Scanned(size, message, taken + 1, received, _wal_end(last))
        last = message
    return Scanned(size, None, limit, received, _wal_end(last))


try:
    from laredo_fanout.decode._row_scan import scan as scan  # noqa: PLC0414
except ImportError:  # there was no C compiler when this was installed
    scan = scan_plainly


def _wal_end(message: bytes) -> int:
    return message_.wal_end(message) if message else 0
