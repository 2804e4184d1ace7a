"""Statements on partitions, what PostgreSQL's rows are after each, and what the store says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from laredo_fanout.ingest.supervisor import CommitInfo
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database

Rows = frozenset[tuple[int, str]]

ROOT = (
    "CREATE TABLE a (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE a0 PARTITION OF a FOR VALUES FROM (0) TO (100)",
    "INSERT INTO a SELECT g, 'first' FROM generate_series(1, 20) g",
)


class Seen(NamedTuple):
    """The store's rows at a commit."""

    table_id: int
    position: int
    rows: Rows


@dataclass
class History:
    """What the rows were after each statement, and what the store had at each commit."""

    ingest: RunningIngest
    truths: list[tuple[int, int, Rows]] = field(default_factory=list)
    """WAL before and after the statement, and the rows then."""
    seen: list[Seen] = field(default_factory=list)

    def run(self, database: Database, statements: Sequence[str]) -> None:
        with database.connect() as connection:

            def reached() -> int:
                row = connection.execute(
                    "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8"
                ).fetchone()
                assert row is not None
                return int(str(row[0]))

            def rows() -> Rows:
                found = connection.execute("SELECT id, v FROM a").fetchall()
                return frozenset((int(str(key)), str(value)) for key, value in found)

            self.truths.append((0, reached(), rows()))
            for statement in statements:
                before = reached()
                connection.execute(statement.encode())
                self.truths.append((before, reached(), rows()))

    def note(self, _: CommitInfo) -> None:
        """For ``on_commit``."""
        store = self.ingest.store
        record = self.ingest.record("public.a")
        if record is None or not record.shown:
            return
        with store.reader().snapshot(record.id) as snapshot:
            rows = frozenset(_row(line) for _, lines in snapshot.batches() for line in lines)
            self.seen.append(Seen(record.id, snapshot.position, rows))

    def assert_right_where_verified(self) -> int:
        """What was seen at positions that count as verified in the end is what PostgreSQL had;
        how many that were."""
        reader = self.ingest.store.reader()
        known = {view.id: view for view in reader.tables()}
        checked = 0
        for each in self.seen:
            view = known.get(each.table_id)
            if view is None or view.boundary_at(each.position) < each.position:
                continue
            allowed = list(self._possible(each.position))
            if not allowed:
                continue
            checked += 1
            assert each.rows in allowed, (
                f"at {each.position:X} the store had {sorted(each.rows)}, PostgreSQL one of"
                f" {[sorted(rows) for rows in allowed]}"
            )
        return checked

    def _possible(self, position: int) -> Iterator[Rows]:
        last: Rows | None = None
        for before, after, rows in self.truths:
            if after <= position:
                last = rows
            elif before < position:
                # Within the statement: its commit is before or after.
                if last is not None:
                    yield last
                    last = None
                yield rows
        if last is not None:
            yield last


def _row(line: bytes) -> tuple[int, str]:
    import orjson

    row = orjson.loads(line)
    return row["id"], row["v"]


@contextmanager
def watched(ingest: RunningIngest) -> Iterator[History]:
    """What the store has at each of its commits is noted."""
    history = History(ingest)
    ingest.on_commit = history.note
    try:
        yield history
    finally:
        ingest.on_commit = None


def settle(ingest: RunningIngest, table: str = "public.a") -> None:
    """Wait until nothing is in doubt, and a position from then on is verified."""
    ingest.catch_up()

    def verified_beyond(position: int) -> bool:
        record = ingest.record(table)
        if record is None or not record.live or record.suspect_range is not None:
            return False
        return ingest.store.reader().table_by_id(record.id).boundary > position

    for _ in range(2):
        passed = ingest.store.position
        ingest.wait_until(lambda at=passed: verified_beyond(at), "a later position is verified")
