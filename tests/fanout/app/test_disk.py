"""The server on a disk that is full, and on one that can't be written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.postgres import Database
from tests.support.processes import eventually, wait_until
from tests.support.server.fanout_program import Fanout, fanout
from tests.support.server.small_disk import on_a_tmpfs

_RETRIES = 2


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    database.server.socket_directory.chmod(0o755)
    database.run("CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a VALUES (0, 'first')")
    return fanout(tmp_path / "s", database, "{ table = a }")


def _settled(server: Fanout, rows: int) -> bool:
    """The rows are stored, or it is told why not."""
    return server.table("public.a")["rows"] == rows or bool(server.problems)


async def test_a_full_disk_is_told_and_room_is_all_it_takes(
    server: Fanout, database: Database
) -> None:
    state = server.directory / "state"
    filler = f"head -c 24000000 /dev/zero > {state}/filler"
    server = on_a_tmpfs(server, state, "size=48m", filler)
    with database.connect() as owner, server.program:
        server.program.wait_ready()
        async with server.follower("public.a") as a:
            await a.until_keys([b"0"])
            written = 0
            while not any("no room on the disk" in problem for problem in server.problems):
                assert written < 100, server.status
                owner.execute(
                    "INSERT INTO a SELECT i, repeat(md5(i::text), 300)"
                    " FROM generate_series(%s::int, %s::int) i",
                    (1 + 50 * written, 50 * (written + 1)),
                )
                written += 1
                wait_until(lambda rows=1 + 50 * written: _settled(server, rows), "settled")
            assert server.program.is_running()
            stored = server.table("public.a")["rows"]
            assert stored < 1 + 50 * written
            owner.execute("SELECT pg_logical_emit_message(false, 'f', repeat('x', 20 << 20))")
            unconfirmed = 'laredo_slot_unconfirmed_wal_bytes{source="pg"}'
            wait_until(lambda: server.metrics[unconfirmed] > 20 << 20, "what piles up is shown")
            async with server.follower("public.a", "late") as late:
                await late.until_keys([str(n).encode() for n in range(stored)])
            # The server's own view of its disk.
            Path(f"/proc/{server.program.pid}/root{state}/filler").unlink()
            await a.until_keys([str(n).encode() for n in range(1 + 50 * written)])
        server.program.wait_ready()
        assert server.table("public.a")["copied_rows"] == 1, "it was copied anew"


@pytest.mark.thorough
def test_a_disk_that_cannot_be_written_ends_it_with_a_message(server: Fanout) -> None:
    server = on_a_tmpfs(server, server.directory / "state", "ro")
    server.program.start()
    assert server.program.wait() == 1
    said = server.program.tail()
    assert f"{server.directory}/state" in said
    assert "Read-only file system" in said
    assert "Traceback" not in said


@pytest.mark.thorough
def test_one_transaction_that_has_no_room(server: Fanout, database: Database) -> None:
    """The message says at once how much is needed in all, and it is never ready in between."""
    rows, width = 400, 100_000
    state = server.directory / "state"
    filler = f"head -c 260000000 /dev/zero > {state}/filler"
    server = on_a_tmpfs(server, state, "size=300m", filler)
    with database.connect() as owner, server.program:
        server.program.wait_ready()
        owner.execute(
            "INSERT INTO a SELECT i, repeat('x', %s) FROM generate_series(1, %s) i", (width, rows)
        )

        def full() -> str | None:
            return next((p for p in server.problems if "no room on the disk" in p), None)

        problem = wait_until(full, "it says so")
        _never_ready_between_retries(server)
        found = re.search(r"about ([\d.]+) MB more are needed in all", problem)
        assert found is not None, problem
        needed = float(found[1]) * 1_000_000
        # All of it, not one step's; what is needed is less than ten times the rows.
        assert rows * width < needed < 10 * rows * width, needed
        Path(f"/proc/{server.program.pid}/root{state}/filler").unlink()
        server.program.wait_ready()
        eventually(lambda: server.table("public.a")["rows"], rows + 1)
        used = server.status["store"]["bytes"]
        assert rows * width < used < server.metrics["laredo_store_bytes"] < 260_000_000


def test_a_transaction_that_cannot_be_spooled(server: Fanout, database: Database) -> None:
    """It is never ready between two failures, and needs nothing but the room."""
    database.run(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    with database.connect() as owner, server.program:
        server.program.wait_ready()
        # No directory can be made where a file is.
        spool = server.directory / "state" / "streamed"
        spool.write_bytes(b"")
        owner.execute("BEGIN")
        owner.execute("INSERT INTO a SELECT i, repeat('x', 100000) FROM generate_series(1, 400) i")
        wait_until(lambda: any("can't be spooled" in p for p in server.problems), "it says so")
        _never_ready_between_retries(server)
        spool.unlink()
        owner.execute("COMMIT")
        server.program.wait_ready()
        eventually(lambda: server.table("public.a")["rows"], 401)


def _never_ready_between_retries(server: Fanout) -> None:
    restarts = 'laredo_source_restarts_total{source="pg"}'
    before = server.metrics[restarts]
    asked = 0
    while server.metrics[restarts] < before + _RETRIES:
        assert server.problems, "ready between two failures"
        asked += 1
    assert asked > _RETRIES
