"""The replica: a client's rows as bytes, its indexes, and its position in the stream.

One thread (the event loop's) changes it, any thread reads. No step takes long: work on all rows is
returned as an iterator, whose steps the caller takes with pauses.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakSet

from laredo_fanout.client.errors import NotUnique
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
from laredo_fanout.client.table.index import Indexes, TableIndex
from laredo_fanout.client.table.rows import LinesBefore, RowMap, RowView, SharedRowMap, unheld
from laredo_model.column import Column
from laredo_model.line import Action
from laredo_model.position import History, Position

_INSERT, _UPDATE, _DELETE, _TRUNCATE = Action.INSERT, Action.UPDATE, Action.DELETE, Action.TRUNCATE
_ROWS_A_STEP = 50


class Difference(NamedTuple):
    """A row before and after a change, or a new snapshot."""

    key: bytes
    old: bytes | None
    new: bytes | None
    position: Position | None
    #: None where a snapshot, not a change, brought it.
    sequence: int | None


class ReplicaSnapshot(NamedTuple):
    """All rows of a snapshot, which readers don't see yet."""

    rows: RowMap
    columns: tuple[Column, ...]
    indexes: Indexes
    reached: "ReplicaPosition"


class ReplicaPosition(NamedTuple):
    """The position of a replica: the changes that are in its rows."""

    #: All transactions up to here are in the rows.
    position: Position | None = None
    history: History | None = None
    #: The journal entry of the last of them.
    sequence: int | None = None
    #: The position of the next transaction, if a part of it is in the rows; 0 for an archive's
    #: diff, which has net changes of many transactions.
    open_position: int = 0
    #: Number of that transaction's changes in the rows.
    open_changes: int = 0


class Replica:
    """A client's copy of a table: all its rows, or those that pass the filters."""

    def __init__(
        self,
        lookup_fields: Sequence[str] | None,
        indexes: Mapping[str, Sequence[str] | TableIndex],
        table: str = "the table",
    ) -> None:
        self._lock = threading.RLock()
        self._table = table
        self._indexes = Indexes(lookup_fields, indexes)
        self._rows = RowMap()
        self._staged: tuple[RowMap, Indexes] | None = None
        self._discarded: list[dict[Any, Any]] = []
        self._columns: tuple[Column, ...] = ()
        self._next_columns: tuple[Column, ...] = ()
        self._next_history: History | None = None
        self._skip = (0, 0)
        self._replayed_below = 0
        self._views: WeakSet[RowView] = WeakSet()
        self._keeps_before = False
        self._before: LinesBefore | None = None
        self._emptied: RowView | None = None
        self._torn = False
        self.reached = ReplicaPosition()
        self.whole = False
        self.version = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The table's columns, as the rows have them."""
        return self._columns

    @property
    def parts(self) -> Sequence[Mapping[bytes, bytes]]:
        """The rows, by key, in parts; to be read while nothing is applied."""
        return self._rows.parts

    @property
    def indexes(self) -> int:
        """Number of indexes that each change is entered into."""
        return len(self._indexes)

    def lookup(self, values: Sequence[object]) -> bytes | None:
        """The line of the row whose lookup fields have these values.

        :raises BadField: if the values don't fit the fields.
        """
        with self._lock:
            return self._indexes.lookup(values, self._rows.get)

    def lookup_index(self, name: str, values: Sequence[object]) -> list[bytes]:
        """The lines of the rows that the index finds, in the order of their keys.

        :raises BadField: if there is no such index, or the values don't fit it.
        """
        with self._lock:
            keys = self._indexes.find(name, values, self._rows.get)
            return [line for key in keys if (line := self._rows.get(key)) is not None]

    def view(self) -> RowView | None:
        """The rows at :attr:`reached`'s position, whatever changes later; in the event loop's
        thread.

        None while a part of a transaction is in the rows that began before the first call. From
        that call on, the rows before such a transaction are kept until its end.
        """
        self._keeps_before = True
        if self._before is None and (self.reached.open_changes or self._torn):
            return None
        seen = self._emptied or self._rows
        view = RowView(seen.parts, self._before, self.reached.position, self._columns)
        self._views.add(view)
        if self._emptied is None:
            with self._lock:
                self._rows = SharedRowMap(self._rows.parts, self._views)
        return view

    def begin_restoring(self, columns: Sequence[Column]) -> None:
        """Stage the rows of a local snapshot, which :meth:`add_rows` brings."""
        self._next_columns = tuple(columns)
        self.begin_snapshot()

    def begin_stream(self, handshake: Handshake) -> Iterator[None]:
        """Begin a stream: a staged snapshot and an open transaction are sent again.

        Returns the steps of entering all rows into new indexes, if the columns have changed.

        :raises BadField: if the fields of a look-up or an index aren't columns.
        """
        self._drop_staged()
        replays = handshake.mode is Mode.REPLAY_ARCHIVE
        self._replayed_below = handshake.oldest_sequence if replays else 0
        self._next_history = handshake.history
        self._next_columns = handshake.columns
        if handshake.snapshot_follows:
            self._indexes.for_columns(handshake.columns)
            return iter(())
        self._skip = (self.reached.open_position, self.reached.open_changes)
        self.reached = self.reached._replace(history=handshake.history or self.reached.history)
        if not handshake.columns or handshake.columns == self._columns:
            return iter(())
        indexes = self._indexes.for_columns(handshake.columns)
        if indexes:
            return self._enter_all(handshake.columns, indexes)
        with self._lock:
            self._set_indexes(handshake.columns, indexes)
        return iter(())

    def needs_snapshot(self, handshake: Handshake) -> bool:
        """True if a replay from an archive may leave wrong rows.

        The previous stream may have brought part of a transaction, or of another diff. A key that
        changed in that part may be missing in the archive's diffs.
        """
        return handshake.mode is Mode.REPLAY_ARCHIVE and self.reached.open_changes > 0

    def start_over(self) -> None:
        """Forget the position, so that the next stream brings a snapshot; the rows stay."""
        self._torn = self._torn or self.reached.open_changes > 0
        self.reached = ReplicaPosition()

    def change_schema(self, event: SchemaChange) -> None:
        """Take the columns of the coming snapshot's rows."""
        self._next_columns = event.new

    def begin_snapshot(self) -> None:
        """Stage the following rows apart from those that readers see, until :meth:`end_snapshot`.

        :raises BadField: if the fields of a look-up or an index aren't columns.
        """
        self._drop_staged()
        self._staged = RowMap(), self._indexes.for_columns(self._next_columns)

    def add_rows(self, event: SnapshotRows) -> Iterator[None]:
        """Stage some rows of the snapshot; returns the steps of doing so."""
        if self._staged is None:
            return
        rows, indexes = self._staged
        step = _ROWS_A_STEP if indexes else 10 * _ROWS_A_STEP
        for start in range(0, len(event.keys), step):
            lines = event.lines[start : start + step]
            for key, line in zip(event.keys[start : start + step], lines, strict=True):
                if indexes:
                    indexes.change(key, rows.get(key), line)
                rows.put(key, line)
            yield

    def end_snapshot(self, event: SnapshotEnd) -> ReplicaSnapshot:
        """End the staging of a server's snapshot, as :meth:`end_staging`."""
        reached = ReplicaPosition(event.position, self._next_history, event.sequence)
        return self.end_staging(reached)

    def end_staging(self, reached: ReplicaPosition) -> ReplicaSnapshot:
        """End the staging; returns the whole snapshot, for :meth:`show`.

        :raises NotUnique: if two rows have the same values in an index that is unique by ``error``.
        """
        rows, indexes = self._staged or (RowMap(), self._indexes.for_columns(self._next_columns))
        self._judge(indexes, rows)
        self._staged = None
        return ReplicaSnapshot(rows, self._next_columns, indexes, reached)

    def show(self, snapshot: ReplicaSnapshot) -> Iterator[Difference]:
        """Replace the rows by the snapshot's; the differences are computed as they are iterated,
        before :meth:`free`."""
        with self._lock:
            old, self._rows = self._rows, snapshot.rows
            self._set_indexes(snapshot.columns, snapshot.indexes)
            self.reached = snapshot.reached
            self._skip = (0, 0)
            self.whole = True
            self.version += 1
        self._forget_before()
        self._torn = False
        self._discarded += unheld(old.parts, self._views)
        return _differences(old, snapshot.rows, snapshot.reached.position)

    def apply(self, changes: Changes, *, differences: bool) -> Iterable[Difference]:
        """Apply the changes that aren't in the rows yet; returns the differences if wanted.

        Those of a TRUNCATE are computed as they are iterated, before :meth:`free`.

        :raises NotUnique: if, at a transaction's end, two rows have the same values in an index
            that is unique by ``error``.
        """
        found: _BatchDifferences | None = (
            _BatchDifferences() if differences or self._indexes else None
        )
        with self._lock:
            if isinstance(self._rows, SharedRowMap) and not self._views:
                self._rows = RowMap(self._rows.parts)
            for part in changes.transactions():
                self._apply_part(changes, part, found)
        return found.differences() if differences and found is not None else ()

    def heartbeat(self, event: Heartbeat) -> None:
        """Advance the position: everything up to it is in the rows."""
        reached = self.reached
        if event.position is None or reached.open_changes or self._staged is not None:
            return
        if reached.position is None or event.position >= reached.position:
            self.reached = reached._replace(position=event.position, sequence=event.sequence)

    def free(self) -> Iterator[None]:
        """The steps of freeing the rows and indexes that were replaced."""
        while self._discarded:
            self._discarded.pop().clear()
            yield

    def _drop_staged(self) -> None:
        if self._staged is not None:
            rows, indexes = self._staged
            self._discarded += [*rows.parts, *indexes.parts()]
            self._staged = None

    def _apply_part(
        self, changes: Changes, part: TransactionPart, found: "_BatchDifferences | None"
    ) -> None:
        reached = self.reached
        if reached.position is not None and part.position and part.position <= reached.position:
            return
        start = self._first_unseen(part)
        if start < part.stop:
            self.version += 1
            if self._keeps_before and (reached.open_changes or not part.last):
                self._note_before(changes, start, part.stop)
            if found is None:
                self._apply_plainly(changes, start, part.stop)
            else:
                self._apply_noting(changes, start, part, found)
        if part.last:
            self._judge(self._indexes, self._rows)
            sequence = changes.sequence(part.stop - 1) if part.stop else changes.first_sequence - 1
            self.reached = ReplicaPosition(part.position or None, reached.history, sequence)
            self._skip = (0, 0)
            self._forget_before()
        else:
            replayed = changes.first_sequence < self._replayed_below
            at = 0 if replayed else part.position
            before = reached.open_changes if reached.open_position == at else 0
            self.reached = reached._replace(
                open_position=at, open_changes=before + part.stop - start
            )

    def _note_before(self, changes: Changes, start: int, stop: int) -> None:
        if self._before is None:
            if self.reached.open_changes:
                return  # its first part came before the first call of view()
            self._before = LinesBefore()
        if self._emptied is None:
            self._before.note(self._rows, changes.keys[start:stop])

    def _forget_before(self) -> None:
        """Free the rows from before the transaction, which has ended, unless a view reads them."""
        if self._before is not None:
            emptied, before, self._emptied, self._before = self._emptied, self._before, None, None
            if emptied is not None:
                self._views.discard(emptied)
                self._discarded += unheld(emptied.parts, self._views)
            self._discarded += unheld(before.parts, self._views)

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
                rows.put(keys[index], lines[index])
            elif action == _DELETE:
                rows.remove(keys[index])
            else:
                rows = self._truncate()

    def _apply_noting(
        self, changes: Changes, start: int, part: TransactionPart, found: "_BatchDifferences"
    ) -> None:
        rows, indexes = self._rows, self._indexes
        for index in range(start, part.stop):
            action, sequence = changes.actions[index], changes.sequence(index)
            if action == _TRUNCATE:
                found.emptied(rows, part.position, sequence)
                rows = self._truncate()
                indexes = self._indexes
                continue
            key = changes.keys[index]
            new = None if action == _DELETE else changes.lines[index]
            old = rows.get(key)
            if old == new:
                continue
            if indexes:
                indexes.change(key, old, new)
            if new is None:
                rows.remove(key)
            else:
                rows.put(key, new)
            found.plain.append(Difference(key, old, new, part.position, sequence))

    def _truncate(self) -> RowMap:
        if self._before is not None and self._emptied is None:
            self._emptied = RowView(self._rows.parts, self._before, None)
            self._views.add(self._emptied)
        self._discarded += unheld(self._rows.parts, self._views)
        self._rows = RowMap()
        self._set_indexes(self._columns, self._indexes.for_columns(self._columns))
        return self._rows

    def _judge(self, indexes: Indexes, rows: RowMap) -> None:
        """:raises NotUnique: if two rows have the same values in a unique index."""
        found = indexes.duplicates(rows.get)
        if found is not None:
            raise NotUnique(self._table, *found)

    def _set_indexes(self, columns: tuple[Column, ...], indexes: Indexes) -> None:
        self._discarded += self._indexes.parts()
        self._columns, self._indexes = columns, indexes

    def _enter_all(self, columns: tuple[Column, ...], indexes: Indexes) -> Iterator[None]:
        rows = self._rows
        for part in rows.parts:
            for number, (key, line) in enumerate(part.items()):
                indexes.change(key, None, line)
                if not number % _ROWS_A_STEP:
                    yield
        self._judge(indexes, rows)
        with self._lock:
            self._set_indexes(columns, indexes)


class _BatchDifferences:
    """The differences of a batch of changes, in order."""

    def __init__(self) -> None:
        self.plain: list[Difference] = []
        self._before: list[Iterable[Difference]] = []

    def emptied(self, rows: RowMap, position: Position, sequence: int) -> None:
        self._before += [self.plain, _gone(rows, position, sequence)]
        self.plain = []

    def differences(self) -> Iterable[Difference]:
        return chain(*self._before, self.plain) if self._before else self.plain


def _gone(rows: RowMap, position: Position, sequence: int) -> Iterator[Difference]:
    for part in rows.parts:
        for key, line in list(part.items()):
            yield Difference(key, line, None, position, sequence)


def _differences(old: RowMap, new: RowMap, position: Position | None) -> Iterator[Difference]:
    for before, after in zip(old.parts, new.parts, strict=True):
        lines = dict(after)
        for key, line in list(before.items()):
            if key not in lines:
                yield Difference(key, line, None, position, None)
        for key, line in lines.items():
            earlier = before.get(key)
            if earlier != line:
                yield Difference(key, earlier, line, position, None)


def pieces(changes: Changes, most: int) -> Iterator[Changes]:
    """Split changes into batches of at most ``most``; only a larger transaction is cut."""
    if len(changes) <= most:
        yield changes
        return
    held: list[TransactionPart] = []
    for fragment in _fragments(changes, most):
        if held and fragment.stop - held[0].start > most:
            yield _batch(changes, held)
            held = []
        held.append(fragment)
        if not fragment.last:
            yield _batch(changes, held)
            held = []
    if held:
        yield _batch(changes, held)


def _fragments(changes: Changes, most: int) -> Iterator[TransactionPart]:
    for part in changes.transactions():
        start = part.start
        while part.stop - start > most:
            yield part._replace(start=start, stop=start + most, last=False)
            start += most
        yield part._replace(start=start)


def _batch(changes: Changes, parts: list[TransactionPart]) -> Changes:
    start, stop = parts[0].start, parts[-1].stop
    # A piece may be only the end of a transaction, after the batch's last change.
    first = changes.sequence(start) if start < len(changes) else changes.last_sequence + 1
    return Changes(
        first,
        changes.actions[start:stop],
        changes.keys[start:stop],
        changes.lines[start:stop],
        None if changes.old_lines is None else changes.old_lines[start:stop],
        [part.stop - part.start for part in parts],
        [part.position for part in parts],
        [part.time_us for part in parts],
        not parts[-1].last,
        changes.sequences[start:stop] if changes.sequences else None,
    )
