"""Statements on partitions, what PostgreSQL's rows are after each, and what the store says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from laredo_fanout.batch.status import CommitInfo
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database

Rows = frozenset[tuple[int, str]]

ROOT = (
    "CREATE TABLE a (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE a0 PARTITION OF a FOR VALUES FROM (0) TO (100)",
    "INSERT INTO a SELECT g, 'first' FROM generate_series(1, 20) g",
)


def numbered(statements: Sequence[str], number: int) -> list[str]:
    """The statements with a set of tables of their own: ``a``, ``a1``, ``x`` are ``a_7``,
    ``a1_7``, ``x_7``."""
    return [re.sub(r"\b([axs]\d*)\b", rf"\1_{number}", each) for each in statements]


class Truth(NamedTuple):
    """A table's rows after a statement, and WAL before and after that."""

    table: str
    before: int
    after: int
    rows: Rows


class Seen(NamedTuple):
    """The store's rows at a commit."""

    table: str
    table_id: int
    position: int
    rows: Rows


@dataclass
class History:
    """Rows after each statement, and rows in the store at each commit."""

    ingest: RunningIngest
    truths: list[Truth] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    _rows: dict[int, Rows] = field(default_factory=dict)
    """Of each incarnation, as they were at the last commit."""

    def run(self, database: Database, statements: Sequence[str], *tables: str) -> None:
        """Run them; they change the rows of ``tables`` alone, by default those of ``a``."""
        with database.connect() as connection:

            def reached() -> int:
                row = connection.execute(
                    "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8"
                ).fetchone()
                assert row is not None
                return int(str(row[0]))

            def note(before: int) -> None:
                after = reached()
                for table in tables or ("a",):
                    found = connection.execute(f"SELECT id, v FROM {table}".encode()).fetchall()
                    rows = frozenset((int(str(key)), str(value)) for key, value in found)
                    self.truths.append(Truth(f"public.{table}", before, after, rows))

            note(reached())
            for statement in statements:
                before = reached()
                connection.execute(statement.encode())
                note(before)

    def note(self, commit: CommitInfo) -> None:
        """For ``on_commit``."""
        store = self.ingest.store
        for table_id in commit.tables:
            self._rows.pop(table_id, None)
        for table in {truth.table for truth in list(self.truths)}:
            record = self.ingest.known(table)
            if record is None or not record.shown:
                continue
            if record.id not in self._rows:
                with store.reader().snapshot(record.id) as snapshot:
                    lines = [line for _, lines in snapshot.batches() for line in lines]
                self._rows[record.id] = frozenset(map(_row, lines))
            self.seen.append(Seen(table, record.id, commit.position, self._rows[record.id]))

    def assert_right_where_verified(self) -> int:
        """Check the rows seen at verified positions against PostgreSQL's; return their number."""
        reader = self.ingest.store.reader()
        known = {view.id: view for view in reader.tables()}
        checked = 0
        for each in self.seen:
            view = known.get(each.table_id)
            if view is None or view.boundary_at(each.position) < each.position:
                continue
            allowed = list(self._possible(each.table, each.position))
            if not allowed:
                continue
            checked += 1
            assert each.rows in allowed, (
                f"{each.table} at {each.position:X} had {sorted(each.rows)}, PostgreSQL one of"
                f" {[sorted(rows) for rows in allowed]}"
            )
        return checked

    def _possible(self, table: str, position: int) -> Iterator[Rows]:
        last: Rows | None = None
        for truth in self.truths:
            if truth.table != table:
                continue
            if truth.after <= position:
                last = truth.rows
            elif truth.before < position:
                # Within the statement: its commit is before or after.
                if last is not None:
                    yield last
                    last = None
                yield truth.rows
        if last is not None:
            yield last


def _row(line: bytes) -> tuple[int, str]:
    row = orjson.loads(line)
    return row["id"], row["v"]


@contextmanager
def watched(ingest: RunningIngest) -> Iterator[History]:
    """Record the store's rows at each of its commits."""
    history = History(ingest)
    ingest.on_commit = history.note
    try:
        yield history
    finally:
        ingest.on_commit = None


def settle(ingest: RunningIngest, *tables: str) -> None:
    """Wait until nothing is in doubt, and a position from then on is verified."""
    ingest.catch_up()

    def verified_beyond(table: str, position: int) -> bool:
        record = ingest.known(table)
        if record is None or not record.live or record.suspect_range is not None:
            return False
        return ingest.store.reader().table_by_id(record.id).boundary > position

    for _ in range(2):
        passed = ingest.store.position
        for table in tables or ("public.a",):
            ingest.wait_until(
                lambda at=passed, table=table: verified_beyond(table, at),
                f"a later position of {table} is verified",
            )
