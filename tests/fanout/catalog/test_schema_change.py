"""DDL while running: noticed, even where PostgreSQL emits nothing, and the table copied again
beside the others, which go on."""

import threading

from laredo_fanout.batch.status import CommitInfo
from laredo_fanout.store.table import Status
from tests.support.ingest import Start
from tests.support.postgres import Database, on_versions, waiting_for_a_standby

pytestmark = on_versions(16, 18)


_SILENT = "change type, in silence"
DDL = {
    "add column, then write": (
        "ALTER TABLE {t} ADD COLUMN b int",
        "UPDATE {t} SET b = id WHERE id < 5",
    ),
    "drop column": ("ALTER TABLE {t} DROP COLUMN extra", "INSERT INTO {t} VALUES (900, 'x')"),
    "rename column": ("ALTER TABLE {t} RENAME a TO renamed", "DELETE FROM {t} WHERE id = 3"),
    _SILENT: ("ALTER TABLE {t} ALTER extra TYPE bigint",),
    "change of the key": (
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (a, id)",
        "UPDATE {t} SET a = 'moved' WHERE id = 9",
    ),
    "drop and make again": (
        "DROP TABLE {t}",
        "CREATE TABLE {t} (id text PRIMARY KEY, v jsonb)",
        "INSERT INTO {t} VALUES ('a', '[1]')",
    ),
    "another table under the name": (
        "ALTER TABLE {t} RENAME TO {t}_elsewhere",
        "CREATE TABLE {t} (id int PRIMARY KEY, other text)",
        "INSERT INTO {t} VALUES (1, 'other')",
        "UPDATE {t}_elsewhere SET a = 'not ours'",
    ),
    "an index as the replica identity": (
        "BEGIN; ALTER TABLE {t} ADD CONSTRAINT {t}_extra_key UNIQUE (extra),"
        " ALTER extra SET NOT NULL; ALTER TABLE {t}"
        " REPLICA IDENTITY USING INDEX {t}_extra_key; COMMIT",
        "UPDATE {t} SET extra = -extra WHERE id < 9",
        "DELETE FROM {t} WHERE id = 20",
    ),
    "narrowed to some columns by hand": (
        "BEGIN; ALTER PUBLICATION {p} DROP TABLE {t};"
        " ALTER PUBLICATION {p} ADD TABLE {t} (id, a); COMMIT",
        "UPDATE {t} SET a = 'narrow' WHERE id < 9",
    ),
    "narrowed to some rows by hand": (
        "BEGIN; ALTER PUBLICATION {p} DROP TABLE {t};"
        " ALTER PUBLICATION {p} ADD TABLE {t} WHERE (id > 100); COMMIT",
        "UPDATE {t} SET a = 'narrow' WHERE id % 2 = 0",
        "DELETE FROM {t} WHERE id % 3 = 0",
    ),
    "in the middle of a transaction": (
        "BEGIN; UPDATE {t} SET a = 'before' WHERE id < 20; ALTER TABLE {t} ADD COLUMN b int;"
        " UPDATE {t} SET b = 1 WHERE id < 10; COMMIT",
    ),
}


def test_schema_changes(database: Database, live: Start) -> None:
    """Each table is copied again; one that changed in silence stops before the look at it."""
    tables = {f"public.t{number}": kind for number, kind in enumerate(DDL)}
    for name in tables:
        database.run(
            f"CREATE TABLE {name} (id int PRIMARY KEY, a text, extra int)",
            f"INSERT INTO {name} SELECT g, 'a' || g, g FROM generate_series(1, 200) g",
        )
    database.run("CREATE TABLE other (id int PRIMARY KEY)")
    ingest = live(*tables, "public.other", heartbeat_interval=0.2)
    before = {name: ingest.record(name) for name in (*tables, "public.other")}
    closed: list[tuple[int, int]] = []

    def look_for_closed(commit: CommitInfo) -> None:
        for each in ingest.store.tables.values():
            if each.status is Status.CLOSED:
                closed.append((each.closed_at, commit.position))

    # First it alone: nothing else is in the commit that closes it.
    for name, kind in sorted(tables.items(), key=lambda each: each[1] != _SILENT):
        ingest.on_commit = look_for_closed if kind == _SILENT else None
        for statement in DDL[kind]:
            table = name.removeprefix("public.")
            database.run(statement.format(t=table, p=ingest.options.publication.name))
        if kind == _SILENT:
            ingest.wait_until(lambda: closed, "it is noticed")
    database.run("INSERT INTO other VALUES (1)")
    for name in tables:
        ingest.wait_copied_again(before[name])
    ingest.assert_equal()
    for name, kind in tables.items():
        former, after = before[name], ingest.record(name)
        assert after.sequence > former.sequence and after.floor > former.floor, kind
    assert ingest.record("public.other").id == before["public.other"].id
    assert ingest.status.recopies == len(tables)
    assert [each for each in ingest.store.tables.values() if each.status is Status.CLOSED] == []
    shown_until, noticed = closed[0]
    assert shown_until < noticed


def test_change_that_is_decoded_before_others_see_it(filled: Database, live: Start) -> None:
    """A commit is streamed as soon as it is in the WAL, and visible a while later: here, once
    a standby that doesn't exist is no longer waited for."""
    ingest = live("public.t", heartbeat_interval=0.1)
    with waiting_for_a_standby(filled):
        altering = threading.Thread(
            target=filled.run, args=("BEGIN; ALTER TABLE t ADD b int; UPDATE t SET b = 1; COMMIT",)
        )
        altering.start()
        ingest.wait_until(lambda: ingest.record("public.t").status is Status.CLOSED, "it is closed")
        ingest.move_on(5)
    altering.join()
    ingest.wait_until(lambda: ingest.is_live("public.t"), "the table was copied again")
    ingest.assert_equal()
    assert ingest.status.recopies == 1


def test_second_change_while_the_first_is_copied(database: Database, live: Start) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t SELECT g, repeat(md5(g::text), 50) FROM generate_series(1, 3000) g",
    )
    ingest = live("public.t", heartbeat_interval=0.2, range_bytes=64 << 10)
    before = ingest.record("public.t")
    database.run("ALTER TABLE t ADD b int", "INSERT INTO t VALUES (-1, 'x', 1)")
    ingest.wait_until(lambda: ingest.record("public.t").id != before.id, "the copy begins")
    closed = ingest.store.tables[before.id]
    assert closed.status is Status.CLOSED and closed.closed_at >= closed.floor
    database.run("ALTER TABLE t ALTER b TYPE text", "INSERT INTO t VALUES (-2, 'x', 'b')")
    ingest.wait_until(
        lambda: ingest.is_live("public.t") and ingest.record("public.t").columns[2].type == "text",
        "the last form is live",
    )
    ingest.assert_equal()
    assert len(ingest.store.tables) == 1


def test_publication_dropped_under_the_stream(filled: Database, live: Start) -> None:
    ingest = live("public.t", heartbeat_interval=0.2)
    before = ingest.record("public.t")
    filled.run(
        f"DROP PUBLICATION {ingest.options.publication.name}",
        "UPDATE t SET a = 'unseen' WHERE id < 50",
    )
    ingest.wait_copied_again(before)
    ingest.assert_equal()
    again = ingest.record("public.t")
    ingest.restart()
    ingest.assert_equal()
    assert ingest.record("public.t").id == again.id


def test_tables_that_are_dropped_or_lose_their_identity_fail_alone(
    database: Database, live: Start
) -> None:
    """While one without an identity is published, the application's UPDATE fails."""
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t VALUES (1, 'a')",
        "CREATE TABLE gone (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    ingest = live("public.t", "public.gone", "public.other", heartbeat_interval=0.1)
    database.run("DROP TABLE gone", "ALTER TABLE t DROP CONSTRAINT t_pkey")
    ingest.wait_until(lambda: ingest.record("public.gone").status is Status.FAILED, "it is failed")
    ingest.wait_until(
        lambda: "doesn't exist" in str(ingest.status.tables["public.gone"].error), "why"
    )
    ingest.wait_until(lambda: ingest.record("public.t").status is Status.FAILED, "it is failed")
    cure = "ADD PRIMARY KEY"
    ingest.wait_until(lambda: cure in str(ingest.status.tables["public.t"].error), "the cure")
    database.run("UPDATE t SET a = 'b'", "INSERT INTO other VALUES (1)")
    ingest.catch_up()
    assert ingest.state("public.other") == ingest.truth("public.other")
    database.run("ALTER TABLE t ADD PRIMARY KEY (id)")
    ingest.wait_live("public.t", "public.other")
    ingest.assert_equal("public.t", "public.other")


def test_publication_that_is_narrowed_shows_nothing_until_it_is_whole(
    database: Database, live: Start
) -> None:
    """Updates are missing from then on, so that what is there is wrong."""
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'a')")
    ingest = live("public.t", heartbeat_interval=0.1)
    name = ingest.options.publication.name
    database.run(
        f"ALTER PUBLICATION {name} SET (publish = 'insert, delete')", "UPDATE t SET a = 'unseen'"
    )
    ingest.wait_until(lambda: ingest.record("public.t").status is Status.FAILED, "it is failed")
    cure = f'ALTER PUBLICATION "{name}" SET (publish = '
    ingest.wait_until(lambda: cure in str(ingest.status.tables["public.t"].error), "the cure")
    database.run(f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')")
    ingest.wait_live()
    ingest.assert_equal()
    assert ingest.status.tables["public.t"].error is None


def test_silent_rewrite_is_noticed_at_the_next_change_long_before_the_next_heartbeat(
    database: Database, live: Start
) -> None:
    """PostgreSQL announces the relation again, word for word."""
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 50) g",
    )
    ingest = live("public.t", heartbeat_interval=600)
    before = ingest.record("public.t")
    database.run("UPDATE t SET a = 0 WHERE id = 1")
    ingest.assert_equal()
    database.run("ALTER TABLE t ALTER a TYPE int USING a * 2", "UPDATE t SET a = 1 WHERE id = 2")
    ingest.wait_copied_again(before)
    ingest.assert_equal()
