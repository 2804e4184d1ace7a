"""Partitions that come, bring rows and go between two looks at the catalog."""

from collections.abc import Callable

import pytest

from tests.fanout.ingest.partition_cases import CASES
from tests.support import drawn
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database, on_versions
from tests.support.server.moving_partitions import ROOT, settle, watched

Start = Callable[..., RunningIngest]


def _run(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.parametrize("kind", drawn.first(8, CASES))
@on_versions(18, also=(16,))
def test_followed(database: Database, ingesting: Start, kind: str) -> None:
    _run(database, *ROOT)
    ingest = ingesting("public.a", heartbeat_interval=0.3)
    ingest.wait_live()
    settle(ingest)
    before = ingest.record("public.a")
    with watched(ingest) as history:
        history.run(database, CASES[kind])
        settle(ingest)
        ingest.assert_equal()
        assert history.assert_right_where_verified()
    now = ingest.record("public.a")
    assert before is not None and now is not None and now.id == before.id


@pytest.mark.parametrize("kind", drawn.first(4, CASES))
@on_versions(18, also=(16,))
def test_followed_while_the_server_is_down(database: Database, ingesting: Start, kind: str) -> None:
    _run(database, *ROOT)
    ingest = ingesting("public.a", heartbeat_interval=0.3)
    ingest.wait_live()
    settle(ingest)
    before = ingest.record("public.a")
    ingest.stop()
    with watched(ingest) as history:
        history.run(database, CASES[kind])
        ingest.start()
        settle(ingest)
        ingest.assert_equal()
        history.assert_right_where_verified()
    now = ingest.record("public.a")
    assert before is not None and now is not None and now.id == before.id
