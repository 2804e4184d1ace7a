"""The decoded changes that aren't in the store's transaction yet, by route.

Of whole transactions, and of a giant one by pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laredo_fanout.decode.change_buffer import Route


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
