"""A table whose rows moved with a partition, as operators see it until they are right."""

from pathlib import Path

from tests.support.postgres import Database
from tests.support.processes import eventually, wait_until
from tests.support.server.fanout_program import fanout, started

_ACTIVE = 'laredo_repairs_active{table="public.a"}'
_FORMERLY = 'laredo_putting_right_active{table="public.a"}'
_TIMES = 'laredo_repairs_total{table="public.a"}'


def test_it_is_shown_since_when_and_why(tmp_path: Path, database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE a0 PARTITION OF a FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (100) TO (200)",
        "INSERT INTO a SELECT generate_series(90, 109)",
    )
    server = fanout(tmp_path / "server", database, "{ table = a }")
    with started(server):
        assert server.table("public.a")["putting_right"] is None
        assert (server.metrics[_ACTIVE], server.metrics[_TIMES]) == (0, 0)
        # It is live before the first check of the catalog has verified a position.
        wait_until(lambda: server.table("public.a")["verified_position"] != "0/0", "it is verified")
        with database.connect() as writer, database.connect() as owner:
            with writer.transaction():
                # What is put right is copied, and copies wait for it.
                writer.execute("LOCK TABLE ONLY a IN ROW EXCLUSIVE MODE")
                owner.execute("TRUNCATE a1")
                wait_until(lambda: server.table("public.a")["putting_right"], "it is noticed")
                shown = server.table("public.a")
                assert "a1 was truncated" in shown["putting_right"]["reason"]
                high, low = (int(part, 16) for part in shown["putting_right"]["since"].split("/"))
                assert high << 32 | low > 0
                assert shown["status"] == "live"
                eventually(lambda: (server.metrics[_ACTIVE], server.metrics[_TIMES]), (1, 1))
                assert server.metrics[_FORMERLY] == 1
            wait_until(lambda: not server.table("public.a")["putting_right"], "it is right")
        eventually(lambda: (server.metrics[_ACTIVE], server.metrics[_TIMES]), (0, 1))
        eventually(lambda: server.table("public.a")["rows"], 10)
        wait_until(lambda: server.last_recopy("public.a"), "the re-copy is shown")
        assert server.last_recopy("public.a")["differing"] == 10
