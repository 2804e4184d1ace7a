"""The journal against what is known of every commit."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from laredo_model.line import Action
from tests.support.ingest import RunningIngest

Rows = dict[bytes, bytes]


class Commits:
    """States of every table after each commit of the only writer, by the WAL position after it."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._states: list[dict[str, Rows]] = []

    def add(self, end: int, state: Mapping[str, Rows]) -> None:
        """A commit; WAL had been written up to ``end`` after it."""
        assert not self._ends or end >= self._ends[-1]
        self._ends.append(end)
        self._states.append(dict(state))

    def at(self, position: int, table: str) -> Rows:
        """Rows of the table at this position."""
        # A commit that ends at or before the position has its reading at or after it.
        return self._states[bisect_left(self._ends, position)][table]


class Replay:
    """A table's rows now, to be brought forward by its journal."""

    def __init__(self, ingest: RunningIngest, name: str) -> None:
        record = ingest.record(name)
        self._ingest = ingest
        self._name = name
        self._table_id = record.id
        self._rows: Rows = {}
        with ingest.store.reader().snapshot(record.id) as snapshot:
            for keys, lines in snapshot.batches():
                self._rows.update(zip(keys, lines, strict=True))
            self._sequence = snapshot.sequence

    def compare(self, commits: Commits) -> int:
        """Apply the journal transaction by transaction, and compare at each one's end."""
        sequence = self._sequence
        record = self._ingest.store.tables[self._table_id]
        compared = 0
        while sequence < record.sequence:
            for entry in self._ingest.store.reader().journal(self._table_id, sequence, 1 << 20):
                sequence = entry.last_sequence
                compared += self._apply(entry.decode(), commits)
        return compared

    def _apply(self, batch: Any, commits: Commits) -> int:
        at = compared = 0
        for count, position in zip(batch.counts, batch.positions, strict=True):
            for index in range(at, at + count):
                apply(self._rows, batch.actions[index], batch.keys[index], batch.lines[index])
            at += count
            if not (batch.open and position == batch.positions[-1]):
                assert self._rows == commits.at(position, self._name), (
                    f"{self._name} at {position:x}"
                )
                compared += 1
        return compared


def apply(rows: Rows, action: int, key: bytes, line: bytes) -> None:
    """One change, which must be true for the rows."""
    if action == Action.TRUNCATE:
        rows.clear()
    elif action == Action.DELETE:
        del rows[key]
    else:
        assert (key in rows) == (action == Action.UPDATE)
        rows[key] = line
