"""Applying the stream's changes to a table's rows and journal, live or while it is copied."""

from collections.abc import Generator, Iterator
from dataclasses import replace

from laredo_fanout.store.errors import TableClosed
from laredo_fanout.store.journal.writing import Entries, Journal
from laredo_fanout.store.rows.changes import TableChanges
from laredo_fanout.store.rows.spaces import Spaces
from laredo_fanout.store.rows.writing import runs
from laredo_fanout.store.table import Status, TableRecord
from laredo_fanout.store.write_context import WriteContext
from laredo_model.line import Action

_PART_BYTES = 8 << 20
_STEPS_GROWTH, _MOST_CHANGES = 8, 20_000
_SAMPLED = 8


class Applying:
    """Within one write transaction, whose ``tables`` it keeps up to date. What one step has in
    memory at a time is bounded by bytes.

    ``unfinished``: ids of the tables whose last PostgreSQL transaction goes on.
    """

    def __init__(self, context: WriteContext, spaces: Spaces, journal: Journal) -> None:
        self._tables = context.tables
        self._spaces = spaces
        self._journal = journal
        self._steps: dict[int, int] = {}
        """Number of changes of a table to apply at once: the rows that they replace may be wide."""
        self.unfinished: set[int] = set()
        self._open_record: set[int] = set()
        """Of these tables the newest journal record is to be continued."""

    def forget(self, table_id: int) -> None:
        """The table is dropped."""
        self.unfinished.discard(table_id)
        self._open_record.discard(table_id)

    def take(self, record: TableRecord, changes: TableChanges) -> Iterator[None]:
        """Into the rows, and the journal if the table is live; stops after each bounded piece.

        :raises TableClosed: if the table is neither COPYING nor LIVE.
        :raises RowIncomplete: if a live table's row would miss columns.
        """
        table_id = record.id
        if record.status not in (Status.COPYING, Status.LIVE):
            raise TableClosed(record.qualified, record.status, "changes")
        if not changes.actions:
            if not changes.open:
                self.unfinished.discard(table_id)
                self._end_open_record(record)
            return
        if table_id not in self._steps:
            self._steps[table_id] = self._first_step(record, changes.keys)
        for part in changes.parts(lambda: self._steps[table_id]):
            record = self._tables[table_id]
            apply = self._apply_live if record.live else self._apply_copying
            size = max(1, (yield from apply(record, part)))
            step = len(part) * _PART_BYTES // size
            self._steps[table_id] = max(1, min(step, _STEPS_GROWTH * len(part), _MOST_CHANGES))
        if changes.open:
            self.unfinished.add(table_id)
        else:
            self.unfinished.discard(table_id)

    def _first_step(self, record: TableRecord, keys: list[bytes]) -> int:
        """Number of changes to begin with, by the rows that some of them replace."""
        sample = list(filter(None, keys[:: len(keys) // _SAMPLED + 1]))
        width = self._spaces.rows_of(record).widest(sample)
        return max(1, min(_PART_BYTES // max(1, 2 * width), _MOST_CHANGES))

    def _apply_copying(
        self, record: TableRecord, changes: TableChanges
    ) -> Generator[None, None, int]:
        """Returns how many bytes of rows were in memory for it."""
        size = 0
        for start, stop, kind in runs(changes.actions):
            if kind is Action.TRUNCATE:
                record = self._spaces.truncate(record)
                continue
            rows = self._spaces.rows_of(record)
            keys, lines = changes.keys[start:stop], changes.lines[start:stop]
            if kind is Action.DELETE:
                olds = rows.bury(keys)
                difference = -sum(map(bool, olds))
            else:
                actions = changes.actions[start:stop]
                _, olds = yield from rows.upsert(actions, keys, lines, live=False)
                difference = len(olds) - sum(map(bool, olds))
            size += sum(map(len, lines)) + sum(map(len, filter(None, olds)))
            record = replace(record, rows=record.rows + difference)
        self._tables[record.id] = record
        return size

    def _apply_live(self, record: TableRecord, changes: TableChanges) -> Generator[None, None, int]:
        """Returns how many bytes of rows were in memory for it."""
        actions = bytearray()
        lines: list[bytes] = []
        olds: list[bytes] = []
        absent: list[int] = []
        for start, stop, kind in runs(changes.actions):
            if kind is Action.TRUNCATE:
                record = self._spaces.truncate(record)
                actions.append(Action.TRUNCATE)
                lines.append(b"")
                olds.append(b"")
                continue
            rows = self._spaces.rows_of(record)
            keys = changes.keys[start:stop]
            if kind is Action.DELETE:
                found = rows.delete(keys)
                absent += [start + index for index, old in enumerate(found) if old is None]
                actions += bytes([Action.DELETE]) * len(found)
                lines += [b""] * len(found)
                difference = found.count(None) - len(found)
            else:
                written, found = yield from rows.upsert(
                    changes.actions[start:stop], keys, changes.lines[start:stop], live=True
                )
                actions += bytes([Action.UPDATE if old else Action.INSERT for old in found])
                lines += written
                difference = found.count(None)
            olds += [old or b"" for old in found]
            record = replace(record, rows=record.rows + difference)
        entries = Entries(
            bytes(actions),
            changes.keys,
            lines,
            olds,
            changes.counts,
            changes.positions,
            changes.times_us,
            changes.open,
            record.id in self._open_record,
        )
        if absent:
            entries = entries.without(absent)
        yield from self._append(record, entries, changes)
        return sum(map(len, lines)) + sum(map(len, olds))

    def _append(
        self, record: TableRecord, entries: Entries, changes: TableChanges
    ) -> Iterator[None]:
        """Into the journal; ``entries`` is what had an effect of ``changes``."""
        goes_on = changes.open and len(changes.counts) == 1
        if not entries.continues and not goes_on:
            # What was left of the open transaction had no effect.
            self._end_open_record(record)
        self._tables[record.id] = yield from self._journal.append(record, entries)
        if entries.open:
            self._open_record.add(record.id)
        elif not goes_on:
            self._open_record.discard(record.id)

    def _end_open_record(self, record: TableRecord) -> None:
        if record.id in self._open_record:
            self._open_record.discard(record.id)
            self._journal.end_transaction(record)
