"""DDL while running: noticed, even where PostgreSQL emits nothing, and the table copied again
beside the others, which go on."""

import threading
from collections.abc import Callable

import pytest

from laredo_fanout.batch.status import CommitInfo
from laredo_fanout.store.table import Status
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database, on_versions, waiting_for_a_standby

pytestmark = on_versions(16, 18)

Start = Callable[..., RunningIngest]


def _run(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


DDL = {
    "add column, then write": (
        "ALTER TABLE t ADD COLUMN b int",
        "UPDATE t SET b = id WHERE id < 5",
    ),
    "drop column": ("ALTER TABLE t DROP COLUMN extra", "INSERT INTO t VALUES (900, 'x')"),
    "rename column": ("ALTER TABLE t RENAME a TO renamed", "DELETE FROM t WHERE id = 3"),
    "change type, in silence": ("ALTER TABLE t ALTER extra TYPE bigint",),
    "change of the key": (
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a, id)",
        "UPDATE t SET a = 'moved' WHERE id = 9",
    ),
    "drop and make again": (
        "DROP TABLE t",
        "CREATE TABLE t (id text PRIMARY KEY, v jsonb)",
        "INSERT INTO t VALUES ('a', '[1]')",
    ),
    "another table under the name": (
        "ALTER TABLE t RENAME TO elsewhere",
        "CREATE TABLE t (id int PRIMARY KEY, other text)",
        "INSERT INTO t VALUES (1, 'other')",
        "UPDATE elsewhere SET a = 'not ours'",
    ),
    "an index as the replica identity": (
        "BEGIN; ALTER TABLE t ADD CONSTRAINT extra_key UNIQUE (extra), ALTER extra SET NOT NULL;"
        " ALTER TABLE t REPLICA IDENTITY USING INDEX extra_key; COMMIT",
        "UPDATE t SET extra = -extra WHERE id < 9",
        "DELETE FROM t WHERE id = 20",
    ),
    "narrowed to some columns by hand": (
        "ALTER PUBLICATION {publication} SET TABLE t (id, a), other",
        "UPDATE t SET a = 'narrow' WHERE id < 9",
    ),
    "narrowed to some rows by hand": (
        "ALTER PUBLICATION {publication} SET TABLE t WHERE (id > 100), other",
        "UPDATE t SET a = 'narrow' WHERE id % 2 = 0",
        "DELETE FROM t WHERE id % 3 = 0",
    ),
    "in the middle of a transaction": (
        "BEGIN; UPDATE t SET a = 'before' WHERE id < 20; ALTER TABLE t ADD COLUMN b int;"
        " UPDATE t SET b = 1 WHERE id < 10; COMMIT",
    ),
}


@pytest.mark.parametrize("kind", DDL)
def test_schema_change(database: Database, ingesting: Start, kind: str) -> None:
    _run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a text, extra int)",
        "INSERT INTO t SELECT g, 'a' || g, g FROM generate_series(1, 200) g",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    ingest = ingesting("public.t", "public.other", heartbeat_interval=0.2)
    ingest.wait_live()
    before, untouched = ingest.record("public.t"), ingest.record("public.other")
    assert before is not None and untouched is not None
    for statement in DDL[kind]:
        _run(database, statement.format(publication=ingest.options.publication.name))
    _run(database, "INSERT INTO other VALUES (1)")
    ingest.wait_until(
        lambda: ingest.is_live("public.t") and ingest.record("public.t").id != before.id,  # type: ignore[union-attr]
        "the table was copied again",
    )
    ingest.assert_equal()
    after, still = ingest.record("public.t"), ingest.record("public.other")
    assert after is not None and still is not None
    assert after.sequence > before.sequence and after.floor > before.floor
    assert still.id == untouched.id
    assert ingest.status.recopies == 1
    assert [each for each in ingest.store.tables.values() if each.status is Status.CLOSED] == []


def test_change_that_is_decoded_before_others_see_it(database: Database, ingesting: Start) -> None:
    """A commit is streamed as soon as it is in the WAL, and visible a while later: here, once
    a standby that doesn't exist is no longer waited for."""
    _run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t SELECT g, 'a' FROM generate_series(1, 100) g",
    )
    ingest = ingesting("public.t", heartbeat_interval=0.1)
    ingest.wait_live()
    before = ingest.record("public.t")
    assert before is not None
    with waiting_for_a_standby(database):
        altering = threading.Thread(
            target=_run,
            args=(database, "BEGIN; ALTER TABLE t ADD b int; UPDATE t SET b = 1; COMMIT"),
        )
        altering.start()
        ingest.wait_until(lambda: ingest.record("public.t").status is Status.CLOSED, "it is closed")  # type: ignore[union-attr]
        for _ in range(5):
            passed = ingest.store.position
            ingest.wait_until(
                lambda passed=passed: ingest.store.position > passed, "a catalog check"
            )
    altering.join()
    ingest.wait_until(lambda: ingest.is_live("public.t"), "the table was copied again")
    ingest.assert_equal()
    assert ingest.status.recopies == 1


def test_second_change_while_the_first_is_copied(database: Database, ingesting: Start) -> None:
    _run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t SELECT g, repeat(md5(g::text), 50) FROM generate_series(1, 3000) g",
    )
    ingest = ingesting("public.t", heartbeat_interval=0.2, range_bytes=64 << 10)
    ingest.wait_live()
    before = ingest.record("public.t")
    assert before is not None
    _run(database, "ALTER TABLE t ADD b int", "INSERT INTO t VALUES (-1, 'x', 1)")
    ingest.wait_until(lambda: ingest.record("public.t").id != before.id, "the copy begins")  # type: ignore[union-attr]
    closed = ingest.store.tables[before.id]
    assert closed.status is Status.CLOSED and closed.closed_at >= closed.floor
    _run(database, "ALTER TABLE t ALTER b TYPE text", "INSERT INTO t VALUES (-2, 'x', 'b')")
    ingest.wait_until(
        lambda: ingest.is_live("public.t") and ingest.record("public.t").columns[2].type == "text",  # type: ignore[union-attr]
        "the last form is live",
    )
    ingest.assert_equal()
    assert len(ingest.store.tables) == 1


def test_publication_dropped_under_the_stream(database: Database, ingesting: Start) -> None:
    _run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t SELECT g, 'a' FROM generate_series(1, 100) g",
    )
    ingest = ingesting("public.t", heartbeat_interval=0.2)
    ingest.wait_live()
    before = ingest.record("public.t")
    assert before is not None
    _run(
        database,
        f"DROP PUBLICATION {ingest.options.publication.name}",
        "UPDATE t SET a = 'unseen' WHERE id < 50",
    )
    ingest.wait_until(
        lambda: ingest.is_live("public.t") and ingest.record("public.t").id != before.id,  # type: ignore[union-attr]
        "the table was copied again",
    )
    ingest.assert_equal()
    again = ingest.record("public.t")
    ingest.restart()
    ingest.assert_equal()
    assert again is not None and ingest.record("public.t").id == again.id  # type: ignore[union-attr]


def test_table_that_loses_its_identity_leaves_the_publication(
    database: Database, ingesting: Start
) -> None:
    """While it stays, the application's UPDATE fails."""
    _run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t VALUES (1, 'a')",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    ingest = ingesting("public.t", "public.other", heartbeat_interval=0.1)
    ingest.wait_live()
    _run(database, "ALTER TABLE t DROP CONSTRAINT t_pkey")
    ingest.wait_until(lambda: ingest.record("public.t").status is Status.FAILED, "it is failed")  # type: ignore[union-attr]
    cure = "ADD PRIMARY KEY"
    ingest.wait_until(lambda: cure in str(ingest.status.tables["public.t"].error), "the cure")
    _run(database, "UPDATE t SET a = 'b'", "INSERT INTO other VALUES (1)")
    ingest.catch_up()
    assert ingest.state("public.other") == ingest.truth("public.other")
    _run(database, "ALTER TABLE t ADD PRIMARY KEY (id)")
    ingest.wait_live()
    ingest.assert_equal()


def test_dropped_table_fails_alone(database: Database, ingesting: Start) -> None:
    _run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    ingest = ingesting("public.t", "public.other", heartbeat_interval=0.1)
    ingest.wait_live()
    _run(database, "DROP TABLE t", "INSERT INTO other VALUES (1)")
    ingest.wait_until(lambda: ingest.record("public.t").status is Status.FAILED, "it is failed")  # type: ignore[union-attr]
    ingest.wait_until(lambda: "doesn't exist" in str(ingest.status.tables["public.t"].error), "why")
    ingest.catch_up()
    assert ingest.state("public.other").keys() == {b"1"}


def test_publication_that_is_narrowed_shows_nothing_until_it_is_whole(
    database: Database, ingesting: Start
) -> None:
    """Updates are missing from then on, so that what is there is wrong."""
    _run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t VALUES (1, 'a')",
    )
    ingest = ingesting("public.t", heartbeat_interval=0.1)
    ingest.wait_live()
    name = ingest.options.publication.name
    _run(
        database,
        f"ALTER PUBLICATION {name} SET (publish = 'insert, delete')",
        "UPDATE t SET a = 'unseen'",
    )
    ingest.wait_until(lambda: ingest.record("public.t").status is Status.FAILED, "it is failed")  # type: ignore[union-attr]
    cure = f'ALTER PUBLICATION "{name}" SET (publish = '
    ingest.wait_until(lambda: cure in str(ingest.status.tables["public.t"].error), "the cure")
    _run(
        database,
        f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')",
    )
    ingest.wait_live()
    ingest.assert_equal()
    assert ingest.status.tables["public.t"].error is None


def test_silent_rewrite_is_noticed_at_the_next_change_long_before_the_next_heartbeat(
    database: Database, ingesting: Start
) -> None:
    """PostgreSQL announces the relation again, word for word."""
    _run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 50) g",
    )
    ingest = ingesting("public.t", heartbeat_interval=600)
    ingest.wait_live()
    before = ingest.record("public.t")
    _run(database, "UPDATE t SET a = 0 WHERE id = 1")
    ingest.assert_equal()
    _run(
        database,
        "ALTER TABLE t ALTER a TYPE int USING a * 2",
        "UPDATE t SET a = 1 WHERE id = 2",
    )
    ingest.wait_until(
        lambda: ingest.is_live("public.t") and ingest.record("public.t").id != before.id,  # type: ignore[union-attr]
        "the table was copied again",
    )
    ingest.assert_equal()


def test_a_table_that_was_rewritten_stops_before_the_look_that_noticed_it(
    database: Database, ingesting: Start
) -> None:
    _run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 50) g",
    )
    ingest = ingesting("public.t", heartbeat_interval=0.5)
    ingest.wait_live()
    closed: list[tuple[int, int]] = []

    def look_for_closed(commit: CommitInfo) -> None:
        records = ingest.store.tables.values()
        ends = [each.closed_at for each in records if each.status is Status.CLOSED]
        if ends and not closed:
            closed.append((ends[0], commit.position))

    ingest.on_commit = look_for_closed
    _run(database, "ALTER TABLE t ALTER a TYPE int USING a * 2")
    ingest.wait_until(lambda: closed, "it is noticed")
    (shown_until, noticed), *_ = closed
    assert shown_until < noticed
