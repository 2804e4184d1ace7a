"""PostgreSQL, both programs, a streaming query: killed, started again, every change once.

Transactions of every kind go on the whole time, the writer re-bases by itself, a column is
added. What counts in the end: the stream's rows, taken in order, lead from nothing to the table
that PostgreSQL has, each one's old values being the new ones of the change before it.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_archive.maintain.verify import verify
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.line import Action
from tests.spark.streaming_query import Query
from tests.support.postgres import Database
from tests.support.postgres_road import DEEP, ROW, Road, collected, expected, in_order, insert, road
from tests.support.processes import wait_until

SEED = 11
TRIGGERS = "snapshot { max_churn_records = 60 }"
OPTIONS = {**DEEP, "also": "epoch,lsn,time", "on_gap": "snapshot", "max_diffs_per_trigger": 100}
A_BATCH = 30
NAME = ("epoch", "lsn", "action", "key")
Values = tuple[Any, ...]


class Application:
    """Changes the table by one transaction after the other."""

    def __init__(self, made: Road) -> None:
        self._made = made
        self._random = random.Random(SEED)
        self._next = 1
        self._added = False

    def write(self) -> None:
        """One transaction, which ends with a new row: so there is a diff of it."""
        with self._made.connection.transaction():
            for _ in range(self._random.randint(0, 3)):
                self._made.connection.execute(self._statement().encode(), ROW)
            self._next += 1
            self._made.connection.execute(insert(self._next).encode(), ROW)

    def write_until(self, query: Query, condition: Callable[[], object], what: str) -> None:
        """Until it is true of the running query; meanwhile some transactions for each batch.

        Each waits for the artifact with the one before.
        """
        heads, before = {0}, query.batches

        def holds() -> bool:
            head = self._made.head("kinds")
            if head not in heads and len(heads) < A_BATCH * (1 + query.batches - before):
                heads.add(head)
                self.write()
            return bool(condition())

        query.wait_until(holds, what)

    def add_column(self) -> None:
        """In a transaction of its own."""
        self._made.connection.execute("ALTER TABLE kinds ADD COLUMN added numeric(5,1)")
        self._added = True

    def _statement(self) -> str:
        some = f"mod(id, 7) = {self._random.randrange(7)}"
        changing = [
            f"UPDATE kinds SET words = words || '.', real8 = real8 * 3 WHERE {some}",
            f"UPDATE kinds SET big = NULL, docs = NULL, deep = '{{{{7}}}}' WHERE {some}",
            f"UPDATE kinds SET id = id + 100000, flag = NOT flag WHERE {some}",
            f"DELETE FROM kinds WHERE {some} AND mod(id, 3) = 0",
        ]
        if self._added:
            changing.append(f"UPDATE kinds SET added = mod(id, 1000) + 0.5 WHERE {some}")
        return "TRUNCATE kinds" if self._random.random() < 0.02 else self._random.choice(changing)


@dataclass(frozen=True)
class Change:
    """A row that the stream gave."""

    epoch: int
    lsn: int
    action: str
    key: str | None
    old: Values | None
    new: Values | None

    @property
    def name(self) -> tuple[str, int, str | None]:
        """Identity of the change, which must exist once."""
        return self.action, self.lsn, self.key

    @property
    def order(self) -> tuple[int, int, bool]:
        return self.epoch, self.lsn, self.key is not None


def given(spark: SparkSession, directory: Path) -> list[Change]:
    """Changes that the stream wrote, in the order in which they are to be applied."""
    rows = spark.read.option("mergeSchema", "true").parquet(str(directory / "rows")).cache()
    olds, news = (values(rows, side) for side in ("old", "new"))
    names = [tuple(row) for row in rows.select(*NAME).collect()]
    found = [Change(*name, olds.get(name), news.get(name)) for name in names]
    return sorted(found, key=lambda change: change.order)


def values(rows: DataFrame, side: str) -> dict[Values, Values]:
    """One side of each change that has it."""
    present = rows.where(F.col(side).isNotNull()).select(*NAME, f"{side}.*")
    return {row[: len(NAME)]: row[len(NAME) :] for row in collected(present)}


def of_archive(place: Path) -> Iterator[tuple[str, int, str | None]]:
    """Changes that the archive has: of every diff, and the rows of bases that continue nothing."""
    archive = Archive.at(str(place))
    for epoch in archive.epochs:
        shape = archive.shape(archive.boundary(epoch=epoch.number))
        if not epoch.base.continues:
            yield "TRUNCATE", epoch.base.to_position, None
            for keys, _ in archive.rows(Boundary.after((epoch.base,))):
                yield from (("SNAPSHOT", epoch.base.to_position, key.decode()) for key in keys)
        for diff in epoch.diffs:
            for change in archive.files.changes(diff, shape):
                key = None if change.action is Action.TRUNCATE else change.key.decode()
                yield change.action.name, diff.to_position, key


def folded(changes: list[Change]) -> dict[str, Values]:
    """The table that the changes lead to; each change must fit what was before it."""
    state: dict[str, Values] = {}
    for change in changes:
        if change.key is None:
            state.clear()
            continue
        assert state.get(change.key) == change.old, change
        state.pop(change.key, None)
        if change.new is not None:
            state[change.key] = change.new
    return state


def wait_for_all(made: Road) -> None:
    """Until the archive has all that was committed."""
    found = made.connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert found is not None
    made.connection.execute("INSERT INTO kinds (id) VALUES (-1)")
    target = positions.parse(str(found[0]))
    wait_until(lambda: made.head("kinds") > target, f"the archive beyond {found[0]}")
    made.note("kinds", 0)


@pytest.mark.thorough
def test_ends_equal_with_each_change_once(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    directory = tmp_path / "query"
    with road(tmp_path, database, TRIGGERS) as made:
        place, app = made.place("kinds"), Application(made)
        with Query(place, directory, **OPTIONS, format="jsonl") as query:
            app.write_until(query, lambda: query.batches > 3, "some batches")
        epoch = Archive.at(str(place)).epochs[-1].number
        with Query(place, directory, **OPTIONS, format="protobuf") as query:
            before = query.batches
            app.write_until(query, lambda: query.batches > before + 2, "it goes on")
            app.add_column()
            app.write()
            assert query.wait() != 0
            assert "ColumnsChanged" in query.log
            assert "Make it again" in query.log
        wait_for_all(made)
    assert Archive.at(str(place)).epochs[-1].number > epoch + 1, "it re-based beside the query"
    with Query(place, directory, once=True, **OPTIONS, format="protobuf") as query:
        assert query.wait() == 0, query.log
    report = verify(Archive.at(str(place)))
    assert (report.problems, report.remarks) == ([], [])
    changes = given(spark, directory)
    assert Counter(change.name for change in changes) == Counter(of_archive(place))
    state = made.states["kinds"][-1]
    assert in_order(list(folded(changes).values())) == in_order(expected(state))
