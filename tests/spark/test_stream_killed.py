"""A query that is killed again and again while the real writer writes and re-bases."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.line import Action
from tests.spark.streaming_query import Query
from tests.support.writer.served import TRUNCATE, Change, Served, State, delete, put, rows
from tests.support.writer.writing import ReadyWriter, Writer

Read = tuple[str, str, str | None, str | None, str | None]
SEED = 5


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "state") as server:
        server.add("users", rows(0, 50))
        server.start()
        yield server


class Work:
    """Random transactions, and the writer beside them."""

    def __init__(self, served: Served, writer: Writer) -> None:
        self._random = random.Random(SEED)
        self._served = served
        self._writer = writer
        self._keys = set(range(50))

    def some(self, transactions: int = 6) -> None:
        """Each in a diff of its own."""
        for _ in range(transactions):
            changes = [self._change() for _ in range(self._random.randint(1, 8))]
            self._writer.wait_head(self._served.commit("users", *changes))

    def _change(self) -> Change:
        if self._random.random() < 0.02:
            self._keys.clear()
            return TRUNCATE
        number = self._random.randrange(80)
        if number in self._keys and self._random.random() < 0.4:
            self._keys.remove(number)
            return delete(number)
        self._keys.add(number)
        return put(number, f"name {self._random.random()}")


def in_archive(place: Path) -> list[Read]:
    """Every change of every diff, in order."""
    archive = Archive.at(str(place))
    found: list[Read] = []
    for epoch in archive.epochs:
        shape = archive.shape(archive.boundary(epoch=epoch.number))
        for diff in epoch.diffs:
            at = positions.text(diff.to_position)
            for change in archive.files.changes(diff, shape):
                key = None if change.action is Action.TRUNCATE else change.key.decode()
                old, new = (line and line.decode() for line in (change.old, change.new))
                found.append((change.action.name, at, key, old, new))
    return found


def folded(start: State, changes: list[Read]) -> State:
    """State after the changes are applied to the first base, in the order of position."""
    state = dict(start)

    def order(change: Read) -> tuple[int, bool]:
        return positions.parse(change[1]), change[0] != "TRUNCATE"

    for action, _, key, _, new in sorted(changes, key=order):
        if action == "TRUNCATE":
            state.clear()
        elif new is None:
            del state[(key or "").encode()]
        else:
            state[(key or "").encode()] = new.encode()
    return state


@pytest.mark.thorough
def test_ends_equal_with_each_change_once(
    request: pytest.FixtureRequest, tmp_path: Path, served: Served
) -> None:
    directory = tmp_path / "query"
    options = {"lines": "true", "max_diffs_per_trigger": "3"}
    with ReadyWriter(tmp_path, served, more="snapshot { max_churn_records = 40 }") as writer:
        place, work = tmp_path / "archive" / "users", Work(served, writer)
        work.some()
        for _ in range(2):
            with Query(place, directory, **options) as query:
                before = query.batches
                query.wait_until(lambda q=query, n=before: q.batches > n, "batches")
                work.some()
            work.some()
        assert writer.manifest()["epoch"] > 2, "it re-based meanwhile"
    with Query(place, directory, once=True, **options) as query:
        assert query.wait() == 0, query.log
    spark: SparkSession = request.getfixturevalue("spark")
    found: list[Read] = [
        tuple(row) for row in spark.read.parquet(str(directory / "rows")).collect()
    ]
    assert Counter(found) == Counter(in_archive(place))
    first = Archive.at(str(place)).epochs[0].base
    start = served.state_at("users", first.to_position)
    assert folded(start, found) == served.state_at("users", served.position)
