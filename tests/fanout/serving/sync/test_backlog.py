"""Transactions behind a client, counted over as many turns as a long backlog takes."""

import pytest

from laredo_fanout.serving import journal
from laredo_fanout.serving.journal import READS_A_TURN, Backlog, Tails
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.table import TableRecord
from laredo_fanout.store.writer import Store
from tests.support.server.serving_world import Wakeups
from tests.support.server.store_sample import COLUMNS, apply, commit, insert, update

REMEMBERED, RECORDS = 2_000, 2_200
"""There are more than are remembered one by one."""
MOST_TURNS = 100


def slow_trickle(store: Store, table: int) -> None:
    """Each transaction in a record of its own, as if it were a commit of its own."""
    commit(store, table, (10, [insert("a", 0)]))
    with store.transaction() as transaction:
        for number in range(1, RECORDS):
            apply(transaction, table, (10 + number, [update("a", number)]))


def turns(backlog: Backlog, limit: int, after: int, upto: int) -> int | None:
    """In which turn it is known that there are more; None: in none."""
    for turn in range(MOST_TURNS):
        backlog.begin_turn()
        if backlog.more_than(limit, after, upto):
            return turn
    return None


def test_a_backlog_of_many_small_commits_is_counted_to_its_end(
    store: Store, table: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_REMEMBERED", REMEMBERED)
    begin = store.tables[table].sequence
    slow_trickle(store, table)
    end = store.tables[table].sequence
    assert end - begin == RECORDS
    assert all(len(record) == 1 for record in store.reader().journal(table, begin))
    backlog = Backlog(store.reader(), table)
    assert turns(backlog, RECORDS - 1, begin, end) is not None
    assert turns(backlog, RECORDS - 1, begin, end) == 0, "it is counted again"
    assert turns(backlog, RECORDS - 1, begin + 1, end) is None
    assert turns(Backlog(store.reader(), table), RECORDS - 2, begin + 1, end) is not None


def test_a_range_that_was_pruned_is_more_than_any_limit(store: Store, table: int) -> None:
    """Five clients that take nothing would otherwise have it counted for ever."""
    begin = store.tables[table].sequence
    slow_trickle(store, table)
    store.prune(table, 1, 1e9, 1e9)
    backlog = Backlog(store.reader(), table)
    backlog.begin_turn()
    end = store.tables[table].sequence
    assert all(backlog.more_than(10, begin + client, end) for client in range(2 * READS_A_TURN))
    backlog.begin_turn()
    gone = Backlog(store.reader(), table + 1)
    assert not any(gone.more_than(10, begin, end) for _ in range(2 * READS_A_TURN))
    assert not gone.unfinished


async def test_all_tails_are_refreshed_by_one_walk(
    store: Store, table: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.transaction() as transaction:
        for number in range(50):
            transaction.add_table("public", f"t{number}", 1, COLUMNS)
    reader = store.reader()
    read: list[int] = []
    record = StoreReader._record

    def counted(reader: StoreReader, transaction: object, table_id: int) -> TableRecord:
        read.append(table_id)
        return record(reader, transaction, table_id)

    monkeypatch.setattr(StoreReader, "_record", counted)
    names = [f"public.t{number}" for number in range(50)]
    tails = Tails(names, reader, Wakeups(), lambda: None)
    tails.refresh()
    assert all(tail.view is not None and tail.view.name == tail.name for tail in tails)
    assert len(read) == 51
    assert [reader.table(name).name for name in names] == names
    assert len(read) == 101


def test_what_comes_later_is_added_to_what_was_counted(store: Store, table: int) -> None:
    begin = store.tables[table].sequence
    backlog = Backlog(store.reader(), table)
    for number in range(30):
        commit(store, table, (10 + number, [insert(f"{number}", 1), insert(f"{number}b", 1)]))
        end = store.tables[table].sequence
        backlog.begin_turn()
        assert backlog.more_than(20, begin, end) == (number + 1 > 20)
    # A client that has moved on is counted from where it is.
    assert not backlog.more_than(20, begin + 20, end)
    assert backlog.more_than(19, begin + 20, end)
