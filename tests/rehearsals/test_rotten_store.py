"""The server's disk rots while it is stopped: what changed is found after the start and repaired;
clients and archive equal PostgreSQL, and every boundary of the archive verifies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laredo_archive.reader import Archive
from tests.support.archive import command_line
from tests.support.postgres import Database
from tests.support.processes import Program, eventually, wait_until
from tests.support.server import rot
from tests.support.server.fanout_program import Fanout, fanout, relay, started
from tests.support.server.road import writer_of

pytestmark = pytest.mark.thorough

ROWS = 200
SMALL = "\nstate { max_size = 64 MB, scrub.interval = 1s }\n"


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, {ROWS}) i",
    )
    return fanout(tmp_path / "server", database, "{ table = t }", SMALL)


@pytest.fixture
def writer(tmp_path: Path, server: Fanout) -> Iterator[Program]:
    """Its archive was begun from the rows before they rotted; it waits for the server."""
    with writer_of(server, tmp_path) as program:
        with started(server):
            program.wait_ready()
            wait_until(lambda: _archive(tmp_path).exists(), "the archive is begun")
        yield program


def _archive(directory: Path) -> Path:
    return directory / "archive" / "t" / "manifest.json"


def _epoch(directory: Path) -> int:
    return Archive.at(str(_archive(directory).parent)).manifest.epoch


def _verified(directory: Path, database: Database) -> str:
    """Output of ``verify``, which finds the whole archive sound and equal to PostgreSQL."""
    archive = str(_archive(directory).parent)
    wait_until(
        lambda: command_line.run("verify", archive, "--against", database.dsn).returncode == 0,
        "the archive equals PostgreSQL",
    )
    alone = command_line.run("verify", archive)
    assert alone.returncode == 0, f"{alone.stdout}{alone.stderr}"
    return alone.stdout


def _state(server: Fanout) -> Path:
    return server.directory / "state"


def _row(number: int) -> bytes:
    """A row in the leaf of the store's rows: its key, then its line."""
    return b'%d{"id":%d,"v":"v%d"}' % (number, number, number)


def _rot_values(server: Fanout) -> int:
    for number in range(50, 70):
        rot.flip(_state(server), _row(number), at=len(_row(number)) - 5)
    return 20


def _rot_keys(server: Fanout) -> int:
    for number in (150, 160):
        rot.flip(_state(server), _row(number), at=1)
    return 4


def _leave_unscrubbed(server: Fanout) -> None:
    with server.program.config.open("a") as config:
        config.write("\nstate.scrub.bytes_per_second = 0\n")


async def _client_equals(server: Fanout, database: Database) -> None:
    with database.connect() as owner:
        rows = owner.execute("SELECT id, v FROM t").fetchall()
    async with server.follower("public.t", "after") as follower:
        await follower.until_keys([b"%d" % key for key, _ in rows])
        assert follower.rows == {
            b"%d" % key: b'{"id":%d,"v":"%s"}' % (key, value.encode()) for key, value in rows
        }


async def test_rows_and_keys_are_repaired_without_a_change_for_readers(
    tmp_path: Path, database: Database, server: Fanout, writer: Program
) -> None:
    rotten = _rot_values(server) + _rot_keys(server)
    with started(server):
        wait_until(lambda: server.last_recopy("public.t"), "repaired")
        assert server.last_recopy("public.t")["differing"] == rotten
        wait_until(lambda: server.table("public.t")["damage"] is None, "no damage is left")
        assert server.metrics['laredo_store_damage_total{table="public.t"}'] >= 1
        database.run(
            "UPDATE t SET v = 'new' WHERE id IN (55, 150)", "DELETE FROM t WHERE id IN (60, 160)"
        )
        await _client_equals(server, database)
        _verified(tmp_path, database)
        assert _epoch(tmp_path) == 1, "the archive had the right rows, and was sent no others"


@pytest.mark.parametrize(
    ("rots", "statement"),
    [
        (_rot_values, "UPDATE t SET v = 'new' WHERE id IN (40, 55)"),
        (_rot_values, "DELETE FROM t WHERE id IN (40, 55)"),
        (_rot_keys, "DELETE FROM t WHERE id = 150"),
    ],
)
async def test_a_rotten_row_is_not_the_old_row_of_a_change(
    tmp_path: Path,
    database: Database,
    server: Fanout,
    writer: Program,
    *,
    rots: Callable[[Fanout], int],
    statement: str,
) -> None:
    """Nothing has noticed it before the change comes: then the table is copied again.

    A rotten key's row isn't found by the delete, so readers still have it until then.
    """
    rots(server)
    _leave_unscrubbed(server)
    database.run(statement)
    with started(server):
        wait_until(lambda: server.table("public.t")["status"] == "live", "live")
        await _client_equals(server, database)
        _verified(tmp_path, database)
        assert _epoch(tmp_path) == 2
        if rots is _rot_values:
            assert "table closed; copy scheduled" in server.program.tail(20_000)


async def test_a_client_s_snapshot_finds_it_without_a_scrub(
    tmp_path: Path, database: Database, server: Fanout, writer: Program
) -> None:
    _rot_values(server)
    _rot_keys(server)
    _leave_unscrubbed(server)
    with started(server):
        await _client_equals(server, database)
        wait_until(lambda: server.last_recopy("public.t"), "repaired")
        assert server.last_recopy("public.t")["differing"] == 24
        _verified(tmp_path, database)
        assert _epoch(tmp_path) == 1


async def test_journal_records_are_dropped_and_readers_get_a_snapshot(
    tmp_path: Path, database: Database, server: Fanout, writer: Program
) -> None:
    writer.stop()
    with started(server), database.connect() as owner:
        for number in (10, 20, 30):
            owner.execute("UPDATE t SET v = %s WHERE id = %s", (f"changed{number}", number))
        wait_until(lambda: server.table("public.t")["journal"]["entries"] == 3, "taken")
    rot.flip(_state(server), b'{"id":20,"v":"changed20"}', at=15, unless_after=b"20")
    with started(server):
        writer.start()
        writer.wait_ready()
        await _client_equals(server, database)
        _verified(tmp_path, database)
        assert "damaged journal dropped" in server.program.tail(20_000)


async def test_a_relay_s_rows_come_from_its_upstream(
    tmp_path: Path, database: Database, server: Fanout
) -> None:
    second = relay(tmp_path / "relay", server.grpc_port, "{ table = t }", SMALL)
    with started(server):
        with started(second):
            eventually(lambda: second.table("public.t")["rows"], ROWS)
        _rot_values(second)
        with started(second):
            wait_until(lambda: second.last_recopy("public.t"), "repaired")
            wait_until(lambda: second.table("public.t")["damage"] is None, "no damage is left")
            await _client_equals(second, database)


def _ends(server: Fanout) -> str:
    """Output of the server, which ends as soon as it is started."""
    server.program.start()
    assert server.program.wait() == 1
    said = server.program.tail(20_000)
    assert "Traceback" not in said
    assert "never used" not in said
    return said


def test_a_damaged_store_is_called_damaged_with_the_cure(
    tmp_path: Path, database: Database, server: Fanout
) -> None:
    with started(server):
        pass
    whole = (_state(server) / "data.mdb").read_bytes()
    file = _state(server) / "data.mdb"
    for damaged in (b"", whole[:5000], whole[: 1 << 15], b"\0" * len(whole)):
        file.write_bytes(damaged)
        said = _ends(server)
        assert "is damaged" in said
        assert "move it elsewhere, drop its slot" in said
    file.write_bytes(whole)
    rot.flip(_state(server), b"figures/", at=14)
    assert "is damaged" in _ends(server)
    file.unlink()
    database.drop_slots()
    with started(server):
        eventually(lambda: server.table("public.t")["rows"], ROWS)
