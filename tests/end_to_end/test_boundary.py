"""Values that PostgreSQL rewrites in silence while artifacts are cut: no boundary is wrong.

The server looks at the catalog seldom by itself, so that only its looks for those who wait come
between a rewrite and the next artifacts.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.road import Road
from tests.support.postgres import Database, on_versions
from tests.support.processes import wait_until
from tests.support.server.fanout_program import fanout, started

REWRITE = "ALTER TABLE t ALTER v TYPE int USING v + 1000"


@pytest.fixture
def road(tmp_path: Path, database: Database) -> Iterator[Road]:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i",
    )
    server = fanout(
        tmp_path / "server", database, "{ table = t }", "sources.pg.heartbeat_interval = 10s"
    )
    road = Road(database, tmp_path, server)
    with started(server), road.writer:
        wait_until(lambda: road.reached() > 0, "the archive is begun")
        yield road
    road.oracle.close()


@on_versions(16, 18)
def test_no_artifact_ends_between_a_silent_rewrite_and_its_detection(road: Road) -> None:
    rewrites, changes = 4, 8
    with road.database.connect() as session:
        for _ in range(rewrites):
            before = road.reached()
            while road.reached() == before:
                road.noted(session, "UPDATE t SET v = v + 1 WHERE id < 5")
            road.noted(session, REWRITE)
            before, made = road.reached(), 0
            while made < changes or road.reached() == before:  # so that cuts fall between them
                # The others stay as they were rewritten: no change of theirs hides it.
                road.noted(session, "UPDATE t SET v = v + 1 WHERE id = 20")
                made += 1
    road.wait_for_last_commit()
    assert road.check() > rewrites
