"""The routes that have changes to be applied: of whole transactions, and of the unfinished one."""

from __future__ import annotations

from laredo_fanout.decode.change_buffer import Route, Tables


class PendingChanges:
    """What was decoded and isn't in the store's transaction yet.

    ``touched`` are the routes of the transaction that is being decoded.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.touched: dict[Route, None] = {}
        self._whole: dict[Route, None] = {}

    @property
    def routes(self) -> list[Route]:
        """The routes that have changes of whole transactions."""
        return list(self._whole)

    @property
    def count(self) -> int:
        """How many changes they have."""
        return sum(route.counted for route in self._whole)

    def commit(self, position: int, time_us: int) -> None:
        """The transaction that is being decoded is whole."""
        for route in self.touched:
            route.count(position, time_us)
            if route.counted or route.open:
                self._whole[route] = None
        self.touched.clear()

    def applied(self) -> None:
        """The changes of whole transactions are in the store's transaction."""
        for route in self._whole:
            route.clear()
            route.open = False
        self._whole.clear()

    def apply_piece(self, position: int, time_us: int) -> None:
        """Hand over all there is, the unfinished transaction's changes marked open."""
        for route in self.touched:
            route.count(position, time_us)
            if route.counted:
                route.changes.open = route.open = True
        routes = [route for route in {**self._whole, **self.touched} if route.counted]
        self._tables.apply(routes)
        for route in routes:
            route.clear()
        self._whole.clear()

    def apply_last_piece(self) -> bool:
        """Hand over the end of a transaction of which pieces were; whether it is one.

        It must be known before changes of the next transaction are added.
        """
        is_open = any(route.open for route in self._whole)
        if is_open:
            self._tables.apply(self.routes)
            self.applied()
        return is_open
