"""Re-copies that are asked for: only what the store had wrong enters the journal, at one position,
whatever happens to the table meanwhile; readers see ordinary changes."""

import pytest

from laredo_fanout.errors import RecopyRefused
from laredo_fanout.pg_catalog.side_connection import BarrierRequest, SideConnection
from laredo_fanout.postgres.connections import Connection, SourceUnavailable
from laredo_fanout.store.table import Status, TableRecord
from laredo_fanout.store.writer import Store
from laredo_model.line import Action
from tests.support.ingest import PATIENCE_S, Gate, RunningIngest, Start, fill
from tests.support.postgres import Database
from tests.support.server.store_sample import (
    DELETE,
    INSERT,
    UPDATE,
    Step,
    changes,
    delete,
    journal_of,
    state_of,
)

_SMALL_RANGES = 64 << 10
_TABLE = "public.t"


@pytest.fixture
def copied(database: Database, live: Start, gate: Gate) -> RunningIngest:
    """An ingest that has copied 600 rows in small ranges, and whose gate is open."""
    fill(database, 600)
    gate.open()
    return live(_TABLE, workers=1, range_bytes=_SMALL_RANGES)


@pytest.fixture
def copied_few(database: Database, live: Start, gate: Gate) -> RunningIngest:
    """An ingest that has copied 20 rows, and whose gate is open."""
    fill(database, 20)
    gate.open()
    return live(_TABLE, workers=1)


def _live(ingest: RunningIngest) -> TableRecord:
    return next(
        each
        for each in ingest.store.tables.values()
        if each.qualified == _TABLE and each.status is Status.LIVE
    )


def _corrupt(ingest: RunningIngest) -> list[tuple[Action, bytes]]:
    """Rows made wrong in the stopped ingest's store; the changes that put them right."""
    ingest.stop()
    with Store.open(ingest.path, max_size=4 << 30) as store:
        live = next(each for each in store.tables.values() if each.live)
        snapshot = state_of(store.reader(), live.id)
        position = store.position
        wrong = ["17", "100", "599"]
        with store.transaction() as transaction:
            steps: list[Step] = [
                (UPDATE, key, snapshot[key.encode()].replace(b'"a":', b'"a":9', 1)) for key in wrong
            ]
            another = snapshot[b"5"].replace(b'"id":5', b'"id":999999')
            steps += [delete("18"), delete("250"), (INSERT, "999999", another)]
            transaction.apply(live.id, changes((position, steps), time_us=1))
    return [
        *((UPDATE, key.encode()) for key in wrong),
        (INSERT, b"18"),
        (INSERT, b"250"),
        (DELETE, b"999999"),
    ]


def _ask(ingest: RunningIngest) -> None:
    ingest.wait_until(lambda: ingest.status.connected, "connected")
    ingest.ingest.recopy(_TABLE).result(PATIENCE_S)


def _wait_done(ingest: RunningIngest) -> int:
    def ended() -> bool:
        told = ingest.status.tables[_TABLE]
        return told.last_recopy is not None and not told.recopying

    ingest.wait_until(ended, "the re-copy ends")
    last = ingest.status.tables[_TABLE].last_recopy
    assert last.error is None, last
    ingest.catch_up()
    assert [each.status for each in ingest.store.tables.values()] == [Status.LIVE]
    return int(last.differing)


def test_exactly_the_rows_that_were_wrong_enter_the_journal(
    database: Database, ingesting: Start
) -> None:
    fill(database, 600)
    ingest = ingesting(_TABLE, range_bytes=_SMALL_RANGES)
    ingest.wait_live()
    expected = _corrupt(ingest)
    ingest.start()
    ingest.wait_live()
    before, live = ingest.state(_TABLE), _live(ingest)
    _ask(ingest)
    assert _wait_done(ingest) == len(expected)
    entries = journal_of(ingest.store.reader(), live.id, live.sequence)
    assert sorted(change[:2] for _, _, change in entries) == sorted(expected)
    assert len({position for _, position, _ in entries}) == 1
    assert entries[0][1] <= ingest.store.position
    for _, _, change in entries:
        assert change.old == before.get(change.key)
        assert change.new == ingest.truth(_TABLE).get(change.key)
    ingest.assert_equal()
    after = _live(ingest)
    assert (after.id, after.floor) == (live.id, live.floor)
    last = ingest.status.tables[_TABLE].last_recopy
    ingest.restart()
    assert ingest.status.tables[_TABLE].last_recopy == last


def test_nothing_enters_where_nothing_differs_under_writes_of_every_kind(
    database: Database, copied: RunningIngest, gate: Gate
) -> None:
    gate.close_again(after=100)
    _ask(copied)
    with gate.holding(copied):
        sequence = _live(copied).sequence
        database.run(
            "UPDATE t SET id = id - 1000000 WHERE id > 400",
            "UPDATE t SET a = -a WHERE id < 0",
            "UPDATE t SET id = 500000 - a WHERE id % 2 = 0 AND id < 0",
            "DELETE FROM t WHERE id % 7 = 0",
            "INSERT INTO t VALUES (0, 0, 'new')",
            "CLUSTER t USING t_pkey",
            "VACUUM FULL t",
        )
        copied.catch_up()
        streamed = _live(copied).sequence - sequence
    assert _wait_done(copied) == 0
    assert _live(copied).sequence == sequence + streamed
    copied.assert_equal()


def test_truncate_meanwhile(database: Database, copied_few: RunningIngest, gate: Gate) -> None:
    gate.close_again()
    _ask(copied_few)
    with gate.holding(copied_few):
        database.run("TRUNCATE t", "INSERT INTO t VALUES (7, 7, 'seven')")
        copied_few.catch_up()
    assert _wait_done(copied_few) == 0
    copied_few.assert_equal()
    assert copied_few.state(_TABLE).keys() == {b"7"}


@pytest.mark.parametrize("restarts", [False, True])
def test_harmless_statements_meanwhile_that_together_look_like_a_rewrite(
    database: Database, copied_few: RunningIngest, gate: Gate, restarts: bool
) -> None:
    """Each was seen, and changed no value: the re-copy isn't kept waiting for its barrier."""
    gate.close_again()
    _ask(copied_few)
    with gate.holding(copied_few):
        for statement in ("ALTER TABLE t ALTER a SET STATISTICS 7", "VACUUM FULL t"):
            known = _live(copied_few).copy["version"]
            database.run(statement)
            copied_few.wait_until(
                lambda known=known: _live(copied_few).copy["version"] != known, "it is seen"
            )
        if restarts:
            copied_few.stop()
    if restarts:
        copied_few.start()
    assert _wait_done(copied_few) == 0
    copied_few.assert_equal()


def test_such_statements_between_the_last_row_and_the_barrier(
    database: Database, copied_few: RunningIngest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The barrier is refused, and sent again when the check that followed has found no rewrite."""
    sending, sent = SideConnection._barrier, list[str]()

    def late(side: SideConnection, request: BarrierRequest, connection: Connection) -> None:
        sent.append(request.payload)
        if len(sent) == 1:
            database.run("ALTER TABLE t ALTER a SET STATISTICS 7")
            side._check(connection)
            database.run("VACUUM FULL t")
        sending(side, request, connection)

    monkeypatch.setattr(SideConnection, "_barrier", late)
    _ask(copied_few)
    assert _wait_done(copied_few) == 0
    assert len(sent) == 2


def test_wrong_values_that_the_stream_carries_to_other_keys_are_put_right(
    database: Database, copied: RunningIngest, gate: Gate
) -> None:
    copied.stop()
    _spoil_big(copied, ["100", "400", "401"])
    copied.start()
    copied.wait_live()
    gate.close_again(after=60)
    _ask(copied)
    with gate.holding(copied):
        # The value that is wrong in the store isn't sent: the row takes it along.
        database.run(
            "UPDATE t SET id = -id WHERE id IN (100, 400)",
            "UPDATE t SET a = 3 WHERE id = 401",
        )
        copied.catch_up()
        assert b"wrong" in state_of(copied.store.reader(), _live(copied).id)[b"-400"]
    assert _wait_done(copied) == 3
    copied.assert_equal()


def _spoil_big(ingest: RunningIngest, keys: list[str]) -> None:
    with Store.open(ingest.path, max_size=4 << 30) as store:
        live = next(each for each in store.tables.values() if each.live)
        with store.transaction() as transaction:
            steps: list[Step] = [
                (UPDATE, key, f'{{"id":{key},"a":{key},"big":"wrong"}}'.encode()) for key in keys
            ]
            transaction.apply(live.id, changes((store.position, steps), time_us=1))


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE t ADD c int DEFAULT 5",),
        ("ALTER TABLE t ALTER a TYPE bigint USING a * 2",),
        ("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1)"),
    ],
    ids=["column", "silent", "made again"],
)
def test_another_schema_ends_it_and_the_table_is_copied_anew(
    database: Database, copied_few: RunningIngest, gate: Gate, statements: tuple[str, ...]
) -> None:
    gate.close_again()
    live = _live(copied_few)
    _ask(copied_few)
    with gate.holding(copied_few):
        database.run(*statements)
    copied_few.wait_until(
        lambda: copied_few.is_live(_TABLE) and _live(copied_few).id > live.id + 1,
        "it is copied anew",
    )
    copied_few.wait_until(lambda: len(copied_few.store.tables) == 1, "nothing else is left")
    told = copied_few.status.tables[_TABLE]
    assert not told.recopying
    assert "copied again" in told.last_recopy.error
    copied_few.assert_equal()
    copied_few.restart()
    assert copied_few.status.tables[_TABLE].last_recopy == told.last_recopy


def test_it_goes_on_after_a_restart_where_it_was(
    database: Database, copied: RunningIngest, gate: Gate
) -> None:
    copied.stop()
    _spoil_big(copied, ["1", "599"])
    copied.start()
    copied.wait_live()
    gate.close_again(after=300)
    _ask(copied)
    with gate.holding(copied):
        copied.wait_until(lambda: copied.status.tables[_TABLE].copy.ranges_done > 2, "ranges done")
        progress = copied.status.tables[_TABLE].copy
        copied.stop()
    database.run("DELETE FROM t WHERE id % 7 = 0", "UPDATE t SET a = 0 WHERE id % 11 = 0")
    copied.start()
    assert _wait_done(copied) == 2
    copied.assert_equal()
    again = copied.status.tables[_TABLE].copied_rows
    assert 0 < again < 600 * (progress.ranges - progress.ranges_done + 1) / progress.ranges


def test_one_that_does_not_fit_into_the_store_is_given_up(database: Database, live: Start) -> None:
    fill(database, 600)
    ingest = live(_TABLE, max_size=4 << 20)
    _ask(ingest)
    with pytest.raises(AssertionError, match=r"state\.max_size"):
        ingest.wait_until(lambda: False, "it is full")
    assert "max_size" in ingest.status.tables[_TABLE].last_recopy.error
    ingest.error = None
    ingest.restart()
    assert "max_size" in ingest.status.tables[_TABLE].last_recopy.error
    database.run("UPDATE t SET a = 0 WHERE id < 20", "DELETE FROM t WHERE id < 10")
    ingest.assert_equal()
    ingest.wait_until(lambda: len(ingest.store.tables) == 1, "nothing else is left")


def test_who_asks_is_answered_although_the_session_ends_before_its_beginning_is_durable(
    copied_few: RunningIngest,
) -> None:
    away = copied_few.path.rename(copied_few.path.with_name("away"))
    asked = copied_few.ingest.recopy(_TABLE)
    with pytest.raises(SourceUnavailable, match="request the re-copy again"):
        asked.result(PATIENCE_S)
    away.rename(copied_few.path)


def test_who_asks_in_vain_is_told_why(database: Database, ingesting: Start, gate: Gate) -> None:
    fill(database, 20)
    database.run("CREATE TABLE log (a int)")
    ingest = ingesting(_TABLE, "public.log", append_only=("public.log",))
    with pytest.raises(KeyError):
        ingest.ingest.recopy("public.other")
    with gate.holding(ingest), pytest.raises(RecopyRefused, match="being copied already"):
        _ask(ingest)
    ingest.wait_live()
    with pytest.raises(RecopyRefused, match=r"public\.log: it is append-only.*put it back"):
        ingest.ingest.recopy("public.log").result(PATIENCE_S)
    gate.close_again()
    _ask(ingest)
    with gate.holding(ingest), pytest.raises(RecopyRefused, match="is running"):
        _ask(ingest)
    ingest.wait_until(lambda: not ingest.status.tables[_TABLE].recopying, "it ends")
