"""Relays: the same rows, positions, histories and verified positions as their upstream's."""

from __future__ import annotations

import time
from pathlib import Path

from laredo_fanout.batch.status import Counters
from laredo_fanout.batch.write_batch import WriteBatch
from laredo_fanout.client.events import Heartbeat, Mode
from laredo_fanout.relay.ingest import RelayIngest
from laredo_fanout.relay.path import RelayOptions
from laredo_fanout.relay.received_table import ReceivedTable
from laredo_fanout.source_options import CommitIntervals, SourceTableOptions
from laredo_fanout.store.table import TableRecord
from laredo_fanout.store.writer import Store
from tests.support.postgres import Database
from tests.support.processes import wait_until
from tests.support.server.fanout_program import Fanout, fanout, relay, started
from tests.support.server.serving_world import COLUMNS
from tests.support.server.states import States, equal_where_both_were

TABLE = "public.a"


class Chain:
    """A server of one table, a relay of it, and a relay of that."""

    def __init__(self, directory: Path, database: Database) -> None:
        self.database = database
        database.make("a")
        self.top = fanout(directory / "top", database, "{ table = a }")
        self.middle = relay(directory / "middle", self.top.grpc_port, "{ table = a }")
        self.end = relay(directory / "end", self.middle.grpc_port, "{ table = a }")

    def execute(self, *statements: str) -> int:
        """Each a transaction; the position that has all of them."""
        self.database.run(*statements)
        return self.database.position()

    def keys(self) -> set[bytes]:
        with self.database.connect() as owner:
            return {str(key).encode() for (key,) in owner.execute("SELECT id FROM a").fetchall()}


def history(server: Fanout) -> str:
    return str(server.status["sources"][next(iter(server.status["sources"]))]["history"])


async def test_clients_of_a_relay_s_relay_see_every_position_though_one_is_killed(
    tmp_path: Path, database: Database
) -> None:
    chain = Chain(tmp_path, database)
    with started(chain.top), started(chain.middle), started(chain.end):
        async with States(chain.end.grpc_port, TABLE, boundaries=True) as relayed:
            await relayed.until(1)
            async with States(chain.top.grpc_port, TABLE) as direct:
                await direct.until(1)
                reached = chain.execute(
                    *(f"INSERT INTO a VALUES ({n}, 'new {n}')" for n in range(100, 140)),
                    "UPDATE a SET v = v || '!' WHERE id % 3 = 0",
                    "DELETE FROM a WHERE id % 5 = 0",
                    "BEGIN; TRUNCATE a; INSERT INTO a SELECT i, 'again'"
                    " FROM generate_series(1, 30) i; COMMIT",
                    "UPDATE a SET id = id + 1000 WHERE id = 7",
                )
                await direct.until(reached)
                await relayed.until(reached, verified=True)
                assert relayed.rows == direct.rows
                assert set(relayed.rows) == chain.keys()
                assert equal_where_both_were(direct, relayed) >= 40
            assert history(chain.top) == history(chain.middle) == history(chain.end)
            await _the_killed_one_resumes_from_the_journal(chain, relayed)


async def _the_killed_one_resumes_from_the_journal(chain: Chain, relayed: States) -> None:
    seen = len(relayed.changes)
    for number in range(3):
        chain.middle.program.kill()
        chain.execute(
            f"INSERT INTO a VALUES ({number + 200}, 'while it was away')",
            "UPDATE a SET v = 'n' WHERE id = 1",
            "UPDATE a SET v = 'v1' WHERE id = 1",
        )
        chain.middle.program.start()
    reached = chain.execute("DELETE FROM a WHERE id = 2")
    await relayed.until(reached)
    assert set(relayed.rows) == chain.keys()
    assert len(relayed.snapshots) == 1
    actions = b"".join(changes.actions for changes in relayed.changes[seen:])
    assert len(actions) == 3 * 3 + 1
    assert {each.mode for each in relayed.handshakes[1:]} <= {Mode.DELTA}
    wait_until(chain.middle.program.is_ready, "the middle is ready")
    assert chain.middle.table(TABLE)["copied_rows"] == 0


def test_the_status_of_thousands_of_tables_costs_little(tmp_path: Path) -> None:
    tables = [SourceTableOptions("public", f"t{number}") for number in range(3_000)]
    with Store.open(tmp_path, max_size=1 << 30) as store:
        with store.transaction() as transaction:
            for each in tables:
                transaction.add_table(each.schema, each.name, 0, COLUMNS)
        ingest = RelayIngest(RelayOptions("127.0.0.1:1", "r"), tables, store, lambda _: None)
        begun = time.thread_time()
        status = ingest.status()
        assert time.thread_time() - begun < 0.5
    assert {each.phase for each in status.tables.values()} == {"copying"}


def test_a_heartbeat_does_not_search_the_other_tables_records(tmp_path: Path) -> None:
    class Counted(dict[int, TableRecord]):
        searches = 0

        def values(self):  # type: ignore[no-untyped-def]
            self.searches += 1
            return super().values()

    tables = [SourceTableOptions("public", f"t{number}") for number in range(20)]
    with Store.open(tmp_path, max_size=1 << 28) as store:
        with store.transaction() as transaction:
            for each in tables:
                added = transaction.add_table(each.schema, each.name, 0, COLUMNS)
                transaction.publish(added.id, 0x10, 0)
        records, counters = Counted(store.tables), Counters()
        batch = WriteBatch(store, lambda _: None, CommitIntervals(), counters)
        received = ReceivedTable(
            tables[-1], batch, counters, lambda: records, server="up", count_snapshot=lambda _: None
        )
        for _ in range(10):
            assert list(received.take(Heartbeat(None, 0, None))) == []
        assert records.searches == 1
        # The id of a batch that was aborted may be another table's afterwards.
        other = records[1]
        records[received.record.id] = other  # type: ignore[union-attr]
        assert received.record is None
