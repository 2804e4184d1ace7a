"""``mode = auto`` over a real PostgreSQL: it splits where decoding binds, or says why not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from laredo_fanout.catchup.options import CatchupOptions
from laredo_fanout.tables.status import CommitInfo
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database
from tests.support.server.behind import splitting_little, status_of, wait_level, wait_split

Start = Callable[..., RunningIngest]
_ROWS = 50_000
_UNPUBLISHED = 100
"""Transactions that concern nobody, of 2,000 rows."""


@pytest.fixture
def options(tmp_path: Path) -> CatchupOptions:
    """The kernel shows no CPU times: whatever else runs here makes no difference."""
    return replace(splitting_little(tmp_path), threshold_bytes=200_000, proc=tmp_path / "no proc")


@pytest.fixture
def stopped(database: Database, ingesting: Start, options: CatchupOptions) -> RunningIngest:
    """A live table, and nobody who follows it."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        connection.execute("CREATE TABLE unpublished (a text)")
    ingest = ingesting("public.t", catchup=options)
    ingest.wait_live()
    ingest.stop()
    return ingest


def test_a_sparse_backlog_is_split(
    stopped: RunningIngest, capsys: pytest.CaptureFixture[str]
) -> None:
    """PostgreSQL reads much WAL, and we get next to nothing of it."""
    with stopped.database.connect() as connection:
        for number in range(_UNPUBLISHED):
            with connection.transaction():
                connection.execute("INSERT INTO t VALUES (%s, 'x')", (number,))
                connection.execute(
                    "INSERT INTO unpublished SELECT repeat('x', 600) FROM generate_series(1, 2000)"
                )
    stopped.start()
    wait_split(stopped)
    wait_level(stopped)
    stopped.assert_equal()
    status = status_of(stopped)
    assert status.plans >= 1
    assert "assumed: a free core for each segment" in capsys.readouterr().out


def test_a_dense_backlog_is_not_split_and_status_says_why(stopped: RunningIngest) -> None:
    """The ingest stands still until it is decided: PostgreSQL waits for it with a full socket."""
    with stopped.database.connect() as connection:
        connection.execute(
            "INSERT INTO t SELECT g, repeat('x', 50) FROM generate_series(1, %s) g", (_ROWS,)
        )
        for first in range(0, _ROWS, 1000):
            connection.execute(
                "UPDATE t SET a = a || 'y' WHERE id > %s AND id <= %s", (first, first + 1000)
            )

    def wait_for_checks(_: CommitInfo) -> None:
        status = status_of(stopped)
        if not status.trouble and not status.plans:
            stopped.wait_until(lambda: status_of(stopped).checks_above > 3, "it is above for long")

    stopped.on_commit = wait_for_checks
    stopped.start()
    stopped.wait_until(lambda: status_of(stopped).trouble, "it is decided")
    stopped.on_commit = None
    stopped.assert_equal()
    status = status_of(stopped)
    assert status.plans == 0
    assert status.trouble is not None
    assert "PostgreSQL's decoding doesn't bind" in status.trouble
    assert "docs/server/several-servers.md" in status.trouble
