"""Partitions come, bring rows and go while artifacts are cut: no boundary has a row too many.

What differs is put right in the journal: readers go on, and the archive keeps its epoch.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.road import Road
from tests.support.postgres import Database, on_versions
from tests.support.processes import wait_until
from tests.support.server.fanout_program import fanout, started

_CREATE = "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (100) TO (200)"
_FILL = "INSERT INTO t SELECT i, 1 FROM generate_series(101, 120) i"
_TOUCH = "UPDATE t SET v = v + 1 WHERE id = 20"

MOVES = (
    (_CREATE, _FILL, "DROP TABLE t1"),
    (_CREATE, _FILL, "ALTER TABLE t DETACH PARTITION t1", "DROP TABLE t1"),
    (_CREATE, _FILL, "TRUNCATE t1", "DROP TABLE t1"),
    (f"{_CREATE}; {_FILL}; TRUNCATE t1", "DROP TABLE t1"),
    (
        "CREATE TABLE t1 (LIKE t INCLUDING ALL); INSERT INTO t1 VALUES (150, 5);"
        " ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (100) TO (200)",
        "INSERT INTO t VALUES (151, 6)",
        "ALTER TABLE t DETACH PARTITION t1; DROP TABLE t1",
    ),
)


@pytest.fixture
def road(tmp_path: Path, database: Database) -> Iterator[Road]:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i",
    )
    server = fanout(
        tmp_path / "server",
        database.dsn,
        "{ table = t }",
        "sources.pg.heartbeat_interval = 10s",
        slot=f"s_{database.name}",
    )
    road = Road(database, tmp_path, server)
    with started(server), road.writer:
        wait_until(lambda: road.reached() > 0, "the archive is begun")
        yield road
    road.oracle.close()


@pytest.mark.thorough
@on_versions(18, also=(16,))
@pytest.mark.parametrize("dies", [False, True], ids=["", "killed"])
def test_no_artifact_has_rows_that_went_with_their_partition(road: Road, dies: bool) -> None:
    with road.database.connect() as session:
        for number, statements in enumerate(MOVES):
            for statement in statements:
                if dies and number % 2:
                    road.server.program.kill()
                road.noted(session, *statement.split("; "))
                for _ in range(3):
                    road.noted(session, _TOUCH)
                if dies and number % 2:
                    road.server.program.start()
                    wait_until(road.server.program.is_ready, "the server is ready")
            road.wait_for_last_commit()
    assert road.check() > len(MOVES)
    manifest = json.loads((road.directory / "archive" / "t" / "manifest.json").read_bytes())
    assert {artifact["epoch"] for artifact in manifest["artifacts"]} == {1}
