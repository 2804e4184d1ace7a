"""The replica: a client's rows as bytes, its indexes, and its position in the stream.

One thread (the event loop's) changes it, any thread reads.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from laredo_fanout.client.errors import BadField
from laredo_fanout.client.events import (
    Changes,
    Handshake,
    Heartbeat,
    Mode,
    SchemaChange,
    SnapshotEnd,
    SnapshotRows,
    TransactionPart,
)
from laredo_fanout.client.table.index import Index, key_maker
from laredo_model.change import Action
from laredo_model.column import Column, key_columns
from laredo_model.history import History
from laredo_model.position import Position

_INSERT, _UPDATE, _DELETE, _TRUNCATE = Action.INSERT, Action.UPDATE, Action.DELETE, Action.TRUNCATE
_LOOKUP = "lookup_fields"


class Difference(NamedTuple):
    """A row before and after a change, or a new snapshot."""

    key: bytes
    old: bytes | None
    new: bytes | None
    position: Position | None
    #: None where a snapshot, not a change, brought it.
    sequence: int | None


class Snapshot(NamedTuple):
    """The whole rows of a snapshot that aren't shown yet."""

    #: The session that they belong to (see Replica.begin_session).
    session: int
    rows: dict[bytes, bytes]
    columns: tuple[Column, ...]
    reached: "ReplicaPosition"


class ReplicaPosition(NamedTuple):
    """The position of a replica: which changes are in its rows."""

    #: All transactions up to here are in the rows.
    position: Position | None = None
    history: History | None = None
    #: The journal entry of the last of them.
    sequence: int | None = None
    #: The position of the transaction after it, of which a part is in the rows. What came from an
    #: archive's diff, net changes of many transactions, has none.
    open_position: int = 0
    #: How many of that transaction's changes are in the rows.
    open_changes: int = 0


class Replica:
    """A client's copy of a table: all its rows, or those that pass the filters."""

    def __init__(
        self, lookup_fields: Sequence[str] | None, indexes: Mapping[str, Sequence[str]]
    ) -> None:
        self._lock = threading.RLock()
        self._lookup_fields = None if lookup_fields is None else tuple(lookup_fields)
        self._indexes = {name: Index(f"index {name!r}", of) for name, of in indexes.items()}
        self._lookup_index: Index | None = None
        self._make_key = key_maker((), None)
        self._rows: dict[bytes, bytes] = {}
        self._staged: dict[bytes, bytes] | None = None
        self._columns: tuple[Column, ...] = ()
        self._next_columns: tuple[Column, ...] = ()
        self._next_history: History | None = None
        self._skip = (0, 0)
        self._replayed_below = 0
        self._session = 0
        self.reached = ReplicaPosition()
        self.whole = False
        self.version = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The table's columns, as the rows have them."""
        return self._columns

    def lookup(self, values: Sequence[object]) -> bytes | None:
        """The line of the row whose lookup fields have these values.

        :raises BadField: if the values don't fit the fields.
        """
        with self._lock:
            if self._make_key is not None:
                return self._rows.get(self._make_key(values))
            if self._lookup_index is None:
                return None  # the columns aren't known yet
            keys = self._lookup_index.find(values)
            return self._rows[keys[0]] if keys else None

    def lookup_index(self, name: str, values: Sequence[object]) -> list[bytes]:
        """The lines of the rows that the index finds, in the order of their keys.

        :raises BadField: if there is no such index, or the values don't fit it.
        """
        with self._lock:
            if name not in self._indexes:
                known = ", ".join(sorted(self._indexes)) or "none"
                raise BadField(f"there is no index {name!r}; configured: {known}")
            return [self._rows[key] for key in self._indexes[name].find(values)]

    def begin_session(self) -> None:
        """Begin a session: what an earlier one still does in a thread has no effect from now on."""
        with self._lock:
            self._session += 1

    def restored(
        self, rows: dict[bytes, bytes], columns: Sequence[Column], reached: ReplicaPosition
    ) -> Snapshot:
        """The snapshot made of a local snapshot's rows, for :meth:`show`."""
        self._next_columns = tuple(columns)
        return Snapshot(self._session, rows, self._next_columns, reached)

    def begin_stream(self, handshake: Handshake) -> None:
        """Begin a stream: what was staged or sent in part before comes again.

        :raises BadField: if the fields of a look-up or an index aren't columns.
        """
        self._staged = None
        replays = handshake.mode is Mode.REPLAY_ARCHIVE
        self._replayed_below = handshake.oldest_sequence if replays else 0
        self._next_history = handshake.history
        self._next_columns = handshake.columns
        if not handshake.snapshot_follows:
            self._skip = (self.reached.open_position, self.reached.open_changes)
            self.reached = self.reached._replace(history=handshake.history or self.reached.history)
            if handshake.columns and handshake.columns != self._columns:
                filled = self._filled_indexes(handshake.columns, self._rows)
                with self._lock:
                    self._set_columns(handshake.columns, *filled)
        else:
            self._empty_indexes(handshake.columns)

    def needs_snapshot(self, handshake: Handshake) -> bool:
        """Whether a replay from an archive may leave rows wrong, since a part was applied already.

        An archive's diffs may say nothing of a key whose change was in the part of a
        transaction, or of another diff, that a stream before brought.
        """
        return handshake.mode is Mode.REPLAY_ARCHIVE and self.reached.open_changes > 0

    def change_schema(self, event: SchemaChange) -> None:
        """Take the columns of the coming snapshot's rows."""
        self._next_columns = event.new

    def begin_snapshot(self) -> None:
        """Stage the rows that follow beside those that readers see, until :meth:`end_snapshot`."""
        self._staged = {}

    def add_rows(self, event: SnapshotRows) -> None:
        """Stage some rows of the snapshot."""
        if self._staged is not None:
            self._staged.update(zip(event.keys, event.lines, strict=True))

    def end_snapshot(self, event: SnapshotEnd) -> Snapshot:
        """End the staging; returns the whole snapshot, for :meth:`show`."""
        staged, self._staged = self._staged or {}, None
        reached = ReplicaPosition(event.position, self._next_history, event.sequence)
        return Snapshot(self._session, staged, self._next_columns, reached)

    def show(self, snapshot: Snapshot) -> Iterator[Difference]:
        """Replace the rows by the snapshot's; the differences are computed as they are iterated.

        Any thread may call it, for indexes over a large table take seconds. Nothing happens if
        another session has begun meanwhile: its rows are newer.

        :raises BadField: if the fields of a look-up or an index aren't columns.
        """
        lookup, indexes = self._filled_indexes(snapshot.columns, snapshot.rows)
        with self._lock:
            if snapshot.session != self._session:
                return iter(())
            old, self._rows = self._rows, snapshot.rows
            self._set_columns(snapshot.columns, lookup, indexes)
            self.reached = snapshot.reached
            self._skip = (0, 0)
            self.whole = True
            self.version += 1
        return _differences(old, snapshot.rows, snapshot.reached.position)

    def apply(self, changes: Changes, *, differences: bool) -> list[Difference]:
        """Apply what isn't in the rows yet; returns the differences only if they are wanted."""
        found: list[Difference] | None = [] if differences or self._all_indexes() else None
        with self._lock:
            for part in changes.transactions():
                self._apply_part(changes, part, found)
        return found if differences and found is not None else []

    def heartbeat(self, event: Heartbeat) -> None:
        """Advance the position: everything up to it is in the rows."""
        reached = self.reached
        if event.position is None or reached.open_changes or self._staged is not None:
            return
        if reached.position is None or event.position >= reached.position:
            self.reached = reached._replace(position=event.position, sequence=event.sequence)

    def freeze(self) -> tuple[ReplicaPosition, tuple[Column, ...], list[bytes], list[bytes]]:
        """A consistent copy of position, columns, keys and lines, to be saved."""
        with self._lock:
            return self.reached, self._columns, list(self._rows), list(self._rows.values())

    def _apply_part(
        self, changes: Changes, part: TransactionPart, found: list[Difference] | None
    ) -> None:
        reached = self.reached
        if reached.position is not None and part.position and part.position <= reached.position:
            return
        start = self._first_unseen(part)
        if start < part.stop:
            self.version += 1
            if found is None:
                self._apply_plainly(changes, start, part.stop)
            else:
                self._apply_noting(changes, start, part, found)
        if part.last:
            sequence = changes.sequence(part.stop - 1) if part.stop else changes.first_sequence - 1
            self.reached = ReplicaPosition(part.position or None, reached.history, sequence)
            self._skip = (0, 0)
        else:
            replayed = changes.first_sequence < self._replayed_below
            at = 0 if replayed else part.position
            before = reached.open_changes if reached.open_position == at else 0
            self.reached = reached._replace(
                open_position=at, open_changes=before + part.stop - start
            )

    def _first_unseen(self, part: TransactionPart) -> int:
        """The first change of this transaction that no earlier, broken stream brought."""
        position, seen = self._skip
        if not seen or position != part.position:
            return part.start
        skipped = min(seen, part.stop - part.start)
        self._skip = (position, seen - skipped)
        return part.start + skipped

    def _apply_plainly(self, changes: Changes, start: int, stop: int) -> None:
        rows, actions, keys, lines = self._rows, changes.actions, changes.keys, changes.lines
        for index in range(start, stop):
            action = actions[index]
            if action <= _UPDATE:
                rows[keys[index]] = lines[index]
            elif action == _DELETE:
                rows.pop(keys[index], None)
            else:
                rows.clear()

    def _apply_noting(
        self, changes: Changes, start: int, part: TransactionPart, found: list[Difference]
    ) -> None:
        for index in range(start, part.stop):
            action, sequence = changes.actions[index], changes.sequence(index)
            if action == _TRUNCATE:
                gone = self._rows
                self._rows = {}
                self._lookup_index, self._indexes = self._empty_indexes(self._columns)
                found += [
                    Difference(key, old, None, part.position, sequence) for key, old in gone.items()
                ]
                continue
            key = changes.keys[index]
            new = None if action == _DELETE else changes.lines[index]
            old = self._rows.get(key)
            if old == new:
                continue
            self._put(key, old, new)
            found.append(Difference(key, old, new, part.position, sequence))

    def _put(self, key: bytes, old: bytes | None, new: bytes | None) -> None:
        indexes = self._all_indexes()
        if old is not None:
            for index in indexes:
                index.remove(key, old)
        if new is None:
            del self._rows[key]
            return
        self._rows[key] = new
        for index in indexes:
            index.add(key, new)

    def _set_columns(
        self, columns: tuple[Column, ...], lookup: Index | None, indexes: dict[str, Index]
    ) -> None:
        self._columns = columns
        self._make_key = key_maker(columns, self._lookup_fields)
        self._lookup_index = lookup
        self._indexes = indexes

    def _filled_indexes(
        self, columns: tuple[Column, ...], rows: Mapping[bytes, bytes]
    ) -> tuple[Index | None, dict[str, Index]]:
        """New indexes, built beside the old ones, so that readers never see half of one."""
        lookup, indexes = self._empty_indexes(columns)
        for index in (*indexes.values(), *([lookup] if lookup is not None else [])):
            for key, line in rows.items():
                index.add(key, line)
        return lookup, indexes

    def _empty_indexes(self, columns: tuple[Column, ...]) -> tuple[Index | None, dict[str, Index]]:
        """:raises BadField: if the fields of a look-up or an index aren't columns."""
        indexes = {name: index.emptied() for name, index in self._indexes.items()}
        lookup = None
        if key_maker(columns, self._lookup_fields) is None:
            fields = self._lookup_fields or [column.name for column in key_columns(columns)]
            lookup = Index(_LOOKUP, fields) if fields else None
        for index in (*indexes.values(), *([lookup] if lookup is not None else [])):
            index.check(columns)
        return lookup, indexes

    def _all_indexes(self) -> list[Index]:
        lookup = self._lookup_index
        return [*self._indexes.values(), *([lookup] if lookup is not None else [])]


def _differences(
    old: Mapping[bytes, bytes], new: Mapping[bytes, bytes], position: Position | None
) -> Iterator[Difference]:
    for key, line in old.items():
        if key not in new:
            yield Difference(key, line, None, position, None)
    for key, line in new.items():
        before = old.get(key)
        if before != line:
            yield Difference(key, before, line, position, None)
