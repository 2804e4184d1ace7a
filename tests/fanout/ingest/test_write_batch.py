"""The store transaction to which the stream and copies write."""

from __future__ import annotations

from laredo_fanout.batch.status import Counters
from laredo_fanout.batch.write_batch import WriteBatch
from laredo_fanout.decode.stream_decoder import RoutedChanges
from laredo_fanout.source_options import CommitIntervals
from laredo_fanout.store.rows import TableChanges
from laredo_fanout.store.writer import Store
from tests.support.server.store_sample import changes, insert, live_table, row, state_of


def write(batch: WriteBatch, table: int, *pieces: TableChanges) -> None:
    for each in pieces:
        for _ in batch.apply([RoutedChanges(table, each, numbered=False)]):
            pass


def test_a_table_that_is_ahead_meets_the_end_of_a_transaction_in_pieces(store: Store) -> None:
    """After a takeover: all its changes may be in a piece before the last one."""
    table = live_table(store, position=10)
    batch = WriteBatch(store, lambda _: None, CommitIntervals(1.0, 4.0), Counters())
    batch.ahead = {table: 20}
    write(batch, table, changes((15, [insert("old", 1)])))
    write(batch, table, changes((30, [insert("new", 2)]), is_open=True), TableChanges())
    batch.commit(30, 0)
    assert state_of(store.reader(), table) == {b"new": row("new", 2)}
    assert batch.ahead == {}
