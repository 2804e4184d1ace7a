"""While a large batch is written, the replication connection's socket is emptied in between."""

from collections.abc import Iterator

import pytest

from laredo_fanout.batch.write_batch import WriteBatch
from laredo_fanout.decode.stream_decoder import RoutedChanges
from laredo_fanout.postgres.replication_stream import ReplicationStream
from tests.support.ingest import Start
from tests.support.postgres import Database


@pytest.mark.parametrize("rows", [5_000, 30_000])
def test_the_socket_is_read_while_rows_are_written(
    database: Database, live: Start, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Else PostgreSQL's sender sleeps with a full one, until all of the batch is written."""
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    ingest = live("public.t")
    reads = written = reads_between = 0
    read_ahead, apply = ReplicationStream.read_ahead, WriteBatch.apply

    def reading(stream: ReplicationStream) -> int:
        nonlocal reads
        reads += 1
        return read_ahead(stream)

    def applying(batch: WriteBatch, pending: list[RoutedChanges], to_come: int) -> Iterator[None]:
        nonlocal written, reads_between
        before, count = reads, sum(len(each.changes) for each in pending)
        yield from apply(batch, pending, to_come)
        if count > 1000:
            written += count
            reads_between += reads - before

    monkeypatch.setattr(ReplicationStream, "read_ahead", reading)
    monkeypatch.setattr(WriteBatch, "apply", applying)
    with database.connect() as connection:
        connection.execute(
            b"INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, %d) g" % rows
        )
    ingest.assert_equal()
    assert written > rows // 2
    assert reads_between > written // 200
