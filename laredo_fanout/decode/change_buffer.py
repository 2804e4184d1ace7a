"""A route: the buffer of one relation's decoded changes, counted into transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from laredo_fanout.store.rows.changes import TableChanges

if TYPE_CHECKING:
    from laredo_fanout.decode.plain_rows import PlainRows
    from laredo_fanout.decode.row_decoder import RowDecoder
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
