"""Stores of the last version that could release a backlog out of order, opened by this one.

The two files are that version's own: five tables, live from position 10 on, with transactions at
20 and (but for `newest`) 50. Of `restored` and `newest` those at 40 came before those at 30. In one
of the files `released` and `closed` have those at 80 already, and what comes before is missing.
"""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from laredo_fanout.catchup.plan import from_bytes
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store
from laredo_model.change import Action
from tests.support.server.store_sample import commit, insert, journal_of, open_store, row, state_of

_SIZE = 1 << 22
_STORED = Path(__file__).parent
_BEFORE = {b"a": row("a", 1, 1), b"b": row("b", 1, 1), b"d": row("d", 50)}
_RESTORED = {b"a": row("a", 40), b"b": row("b", 30), b"c": row("c", 40)}


@pytest.fixture(params=["mid", "ended"])
def which(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def _opened(path: Path, which: str) -> Iterator[tuple[Store, dict[str, int]]]:
    path.mkdir(exist_ok=True)
    data = path / "data.mdb"
    if not data.exists():
        data.write_bytes(gzip.decompress((_STORED / f"relaxed_{which}.mdb.gz").read_bytes()))
    with open_store(path, _SIZE) as store:
        yield store, {record.name: record.id for record in store.tables.values()}


def _in_order(reader: StoreReader, table: int) -> bool:
    positions = [position for _, position, _ in journal_of(reader, table)]
    return positions == sorted(positions)


def test_in_the_middle_of_a_release_the_table_fails_and_says_why(tmp_path: Path) -> None:
    with _opened(tmp_path / "store", "mid") as (store, ids):
        for name in ("released", "closed"):
            record = store.tables[ids[name]]
            assert record.status is Status.FAILED
            assert "out of order" in record.error
        assert store.catchup_plan is None
        assert store.position == 50


def test_what_was_only_for_the_release_is_removed(tmp_path: Path) -> None:
    with _opened(tmp_path / "store", "mid") as (store, ids):
        with store.transaction() as transaction:
            for name in ("released", "closed"):
                transaction.drop_table(ids[name])
        while store.reclaim():
            pass
        with store._environment.begin() as raw:
            assert raw.stat(store._databases.marks)["entries"] == 0


def test_in_the_middle_of_no_release_no_table_is_copied(tmp_path: Path) -> None:
    with _opened(tmp_path / "store", "ended") as (store, ids):
        reader = store.reader()
        assert {record.status for record in store.tables.values()} == {Status.LIVE}
        assert store.catchup_plan is not None
        assert [each.start for each in from_bytes(store.catchup_plan).segments] == [50, 60]
        assert state_of(reader, ids["released"]) == _BEFORE


def test_other_tables_have_their_rows_and_their_journal(tmp_path: Path, which: str) -> None:
    with _opened(tmp_path / "store", which) as (store, ids):
        reader = store.reader()
        assert state_of(reader, ids["ordered"]) == _BEFORE
        assert [position for _, position, _ in journal_of(reader, ids["ordered"])] == [20, 20, 50]
        assert reader.table_by_id(ids["ordered"]).floor == 10


def test_a_release_that_is_over_leaves_the_rows_and_what_came_after(
    tmp_path: Path, which: str
) -> None:
    with _opened(tmp_path / "store", which) as (store, ids):
        reader = store.reader()
        assert state_of(reader, ids["restored"]) == {**_RESTORED, b"d": row("d", 50)}
        assert state_of(reader, ids["newest"]) == _RESTORED
        assert [change.key for _, _, change in journal_of(reader, ids["restored"])] == [b"d"]
        for name in ("restored", "newest"):
            view = reader.table_by_id(ids[name])
            assert view.live
            assert not view.leads_on_from(20) and not view.leads_on_from(39)
            assert view.leads_on_from(40)
        assert store.tables[ids["restored"]].oldest_time_us == 50


def test_a_table_without_a_journal_left_goes_on(tmp_path: Path, which: str) -> None:
    with _opened(tmp_path / "store", which) as (store, ids):
        reader = store.reader()
        assert journal_of(reader, ids["newest"]) == []
        assert reader.sequence_after_position(ids["newest"], 40) == (
            store.tables[ids["newest"]].sequence + 1
        )
        commit(store, ids["newest"], (60, [insert("e", 60)]))
        (entry,) = journal_of(reader, ids["newest"])
        assert entry[1:] == (60, (Action.INSERT, b"e", None, row("e", 60)))
        assert store.tables[ids["newest"]].oldest_time_us == 60


def test_it_is_put_right_once(tmp_path: Path, which: str) -> None:
    with _opened(tmp_path / "store", which) as (store, ids):
        commit(store, ids["restored"], (60, [insert("e", 60)]))
        before = dict(store.tables)
    with _opened(tmp_path / "store", which) as (store, _):
        assert store.tables == before
        with store._environment.begin() as raw:
            stored = [value for _, value in raw.cursor(db=store._databases.meta)]
        assert not any(b'"disorders":[[' in value for value in stored)
