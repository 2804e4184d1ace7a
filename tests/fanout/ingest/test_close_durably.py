"""A table that must be closed at the last commit, which may not have it yet."""

from __future__ import annotations

from laredo_fanout.batch.status import Counters
from laredo_fanout.batch.write_batch import WriteBatch
from laredo_fanout.decode.stream_decoder import ResyncRequired, StreamRelations
from laredo_fanout.ingest.tracked_tables import TrackedTables
from laredo_fanout.source_options import CommitIntervals, SourceTableOptions
from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store


def test_an_incarnation_that_was_never_durable_is_forgotten(store: Store, table: int) -> None:
    batch = WriteBatch(store, lambda _: None, CommitIntervals(1.0, 4.0), Counters())
    tables = [SourceTableOptions("public", "users")]
    tracked = TrackedTables(tables, batch, StreamRelations(), lambda after_s=0.0: 1, Counters())
    users = tracked.tables["public.users"]
    users.table_id = table + 1
    tracked.close_durably(ResyncRequired(table + 1, "altered within a transaction"), store)
    assert [each.status for each in store.tables.values()] == [Status.LIVE]
    users.table_id = table
    tracked.close_durably(ResyncRequired(table, "altered within a transaction"), store)
    assert [each.status for each in store.tables.values()] == [Status.CLOSED]
