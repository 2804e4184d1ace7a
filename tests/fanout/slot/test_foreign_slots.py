"""No slot is dropped that this store hasn't used: other databases', other programs', other stores'.

https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from laredo_fanout.postgres.connections import SlotInUse
from laredo_fanout.slot import ownership, slot
from laredo_fanout.source_options import OnSlotLost
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.writer import Store
from laredo_model.position import History
from tests.support.clusters import Clusters
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database, on_versions
from tests.support.processes import wait_until


def _slots(database: Database) -> dict[str, object]:
    """Name to what doesn't change unless it is made again or used."""
    with database.connect() as connection:
        rows = connection.execute(
            "SELECT slot_name, plugin, database, slot_type, confirmed_flush_lsn"
            " FROM pg_replication_slots"
        ).fetchall()
    return {str(name): rest for name, *rest in rows}


def test_a_slot_that_was_made_since_ours_was_seen_is_not_dropped(database: Database) -> None:
    name = f"slot_{database.name}"
    make = _MADE["pgoutput"].encode()
    with database.connect() as connection:
        connection.execute(make, (name,))
        ours = slot.read(connection, name)
        assert ours is not None
        connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        connection.execute("CREATE TABLE moves_the_wal (id int)")
        connection.execute(make, (name,))
        theirs = slot.read(connection, name)
        slot.drop(connection, ours)
        assert slot.read(connection, name) is not None
        assert theirs is not None
        slot.drop(connection, theirs)
        assert slot.read(connection, name) is None


def _refused(ingest: RunningIngest) -> str:
    ingest.wait_until(lambda: ingest.status.error, "it is refused")
    return str(ingest.status.error)


_MADE = {
    "pgoutput": "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')",
    "test_decoding": "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')",
    "physical": "SELECT pg_create_physical_replication_slot(%s, true)",
}


@on_versions(15)  # of those here it alone has test_decoding
@pytest.mark.parametrize("kind", list(_MADE))
def test_an_empty_store_takes_nobodys_slot(filled: Database, ingesting: Start, kind: str) -> None:
    name = f"slot_{filled.name}"
    with filled.connect() as connection:
        connection.execute(_MADE[kind].encode(), (name,))
    before = _slots(filled)
    ingest = ingesting("public.t")
    try:
        problem = _refused(ingest)
        assert f"SELECT pg_drop_replication_slot('{name}');" in problem
        assert "another slot_name" in problem
        assert ("physical" if kind == "physical" else f"{kind}, database {filled.name}") in problem
        assert "inactive" in problem
        assert _slots(filled) == before
        with filled.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        ingest.wait_live()
        ingest.assert_equal()
    finally:
        ingest.stop()
        with filled.connect() as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE slot_name = %s AND database IS NULL",
                (name,),
            )


def test_a_store_that_was_deleted_leaves_a_foreign_slot(
    filled: Database, live: Start, tmp_path: Path
) -> None:
    ingest = live("public.t")
    ingest.stop()
    before = _slots(filled)
    other = RunningIngest(filled, tmp_path / "empty", ("public.t",)).start()
    try:
        assert "has never used it" in _refused(other)
        assert _slots(filled) == before
    finally:
        other.stop()
    ingest.start()
    ingest.assert_equal()


def test_a_slot_that_took_our_slots_name_is_not_ours(filled: Database, live: Start) -> None:
    """Ours was dropped while the server was down, and another program made one and uses it."""
    ingest = live("public.t")
    ingest.stop()
    filled.drop_slots()
    with filled.connect() as connection:
        connection.execute("INSERT INTO t VALUES (1000, 'missed')")
        connection.execute(_MADE["pgoutput"].encode(), (ingest.options.slot_name,))
    before = _slots(filled)
    ingest.start()
    assert "isn't dropped" in _refused(ingest)
    assert _slots(filled) == before
    filled.drop_slots()
    ingest.wait_until(lambda: ingest.status.slot_losses == 1, "the slot is made again")
    ingest.wait_live()
    ingest.assert_equal()


def test_a_slot_that_was_made_as_the_store_died_is_known_again(
    filled: Database, live: Start
) -> None:
    """And only that one: of the same name another's isn't."""
    ingest = live("public.t")
    source = ingest.store.source
    assert source is not None
    ingest.stop()
    name = ingest.options.slot_name
    filled.drop_slots()
    for token, ours in (("0" * 32, False), (source.token, True)):
        path = ingest.path.with_name(f"died-{ours}")
        with Store.open(path, max_size=1 << 30) as store, store.transaction() as transaction:
            transaction.set_source(replace(source, since=0))
        with filled.connect() as connection:
            connection.execute(
                "SELECT begins, pg_logical_emit_message(true, 'laredo', %s || begins) FROM"
                " (SELECT lsn - '0/0'::pg_lsn AS begins FROM"
                " pg_create_logical_replication_slot(%s, 'pgoutput') OFFSET 0) s",
                (f"{name}:{token}:made:", name),
            )
        before = _slots(filled)
        restarted = RunningIngest(filled, path, ("public.t",)).start()
        try:
            if ours:
                restarted.wait_live()
                restarted.assert_equal()
            else:
                assert "isn't dropped" in _refused(restarted)
                assert _slots(filled) == before
        finally:
            restarted.stop()
        filled.drop_slots()


def test_who_takes_our_connections_name_isnt_ended(database: Database) -> None:
    """Everybody reads it in pg_stat_activity; the role is another one."""
    name, thief = f"slot_{database.name}", f"thief_of_{database.name}"
    with database.connect() as admin:
        admin.execute(_MADE["pgoutput"].encode(), (name,))
        admin.execute("CREATE PUBLICATION p")
        admin.execute(f"CREATE ROLE {thief} LOGIN REPLICATION".encode())
        taken = "laredo-fanout slot 0123456789abcdef stream"
        stolen = psycopg.connect(
            psycopg.conninfo.make_conninfo(
                database.dsn, user=thief, application_name=taken, replication="database"
            ),
            autocommit=True,
        )
        stolen.pgconn.exec_(
            f'START_REPLICATION SLOT "{name}" LOGICAL 0/0'
            " (proto_version '1', publication_names 'p')".encode()
        )
        with pytest.raises(SlotInUse, match=thief):
            slot.free(admin, name, [taken])
        assert slot.holder(admin, name) is not None
        stolen.close()
        wait_until(lambda: slot.holder(admin, name) is None, "the slot is free")
        admin.execute(f"DROP ROLE {thief}".encode())


@pytest.fixture
def two(clusters: Clusters) -> Iterator[tuple[Database, Database]]:
    """Two databases of a cluster of their own."""
    server = clusters.new()
    with server.connect() as connection:
        connection.execute("CREATE DATABASE one")
        connection.execute("CREATE DATABASE other")
    both = Database(server, "one"), Database(server, "other")
    for database in both:
        database.make("t")
    yield both


def _by_default(
    database: Database, path: Path, on_slot_lost: OnSlotLost = OnSlotLost.RECREATE
) -> RunningIngest:
    ingest = RunningIngest(database, path, ("public.t",), on_slot_lost=on_slot_lost)
    ingest.options = replace(ingest.options, slot_name="laredo", slot_name_given=False)
    return ingest


@pytest.mark.parametrize("at_once", [True, False])
def test_two_databases_of_a_cluster_with_all_defaults(
    two: tuple[Database, Database], tmp_path: Path, at_once: bool
) -> None:
    ingests = [_by_default(database, tmp_path / database.name) for database in two]
    one, other = ingests
    try:
        one.start()
        if not at_once:
            one.wait_live()
            one.stop()
        other.start()
        other.wait_live()
        if not at_once:
            one.start()
        one.wait_live()
        for ingest in ingests:
            ingest.assert_equal()
            assert ingest.status.slot_losses == 0
        slots = _slots(two[0])
        assert len(slots) == 2
        assert "laredo" in slots
        assert {one.store.source.slot, other.store.source.slot} == set(slots)  # type: ignore[union-attr]
        for ingest in ingests:
            ingest.restart()
            ingest.database.run("INSERT INTO t VALUES (1000, 'later')")
            ingest.assert_equal()
            assert ingest.status.slot_losses == 0
        assert set(_slots(two[0])) == set(slots)
    finally:
        for ingest in ingests:
            ingest.stop()


def test_the_store_of_a_relay_has_no_slot_whose_name_could_be_used(database: Database) -> None:
    relay = SourceIdentity(History(1, 1, 1), slot="", publication="")
    with database.connect() as connection:
        assert ownership.name_for(connection, "laredo", relay) == "laredo"
