"""The spools' disk is full: the last segments give way, and the others go on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support import drawn
from tests.support.postgres import Database
from tests.support.processes import wait_until
from tests.support.server.fanout_program import Fanout, fanout, started
from tests.support.server.small_disk import on_a_tmpfs

_ROWS = 30_000
_SEEN_WITHIN_S = 20.0
_MOST_BACKLOGS = 10
_GAVE_WAY = "segment delayed: no disk space for its spool"
_CATCHUP = """
sources.pg.catchup { mode = manual, threshold_bytes = 1000000, check_interval = 20ms,
                     min_segment_bytes = 500000, max_segments = 4, spool_dir = "%s" }
"""


def _server(directory: Path, database: Database, kilobytes: int) -> Fanout:
    """Its spools are on a small disk of their own."""
    database.server.socket_directory.chmod(0o755)
    spools = directory / "spools"
    server = fanout(directory / "s", database, "{ table = t }", _CATCHUP % spools)
    return on_a_tmpfs(server, spools, f"size={kilobytes}k")


def _split(server: Fanout, database: Database) -> None:
    """Every row changes while the server stands still; then its backlog is split."""
    psutil.Process(server.program.pid).suspend()
    with database.connect() as owner:
        for first in range(0, _ROWS, 1000):
            owner.execute(
                "UPDATE t SET v = v + id WHERE id > %s AND id <= %s", (first, first + 1000)
            )
    server.go_on_and_split()


def _stopped_head(server: Fanout) -> psutil.Process | None:
    """The first segment's process, which stands still now; None: it was at its end before."""

    def head() -> int:
        segments = server.status["sources"]["pg"]["catchup"]["segments"]
        return segments[0]["pid"] if segments else 0

    with suppress(AssertionError, psutil.NoSuchProcess):
        process = psutil.Process(wait_until(head, "the backlog is split", _SEEN_WITHIN_S))
        process.suspend()
        return process
    return None


def _given_up(server: Fanout) -> int:
    """Number of backlogs that were given up, once the slot's own stream goes on."""

    def ended() -> bool:
        return not server.status["sources"]["pg"]["catchup"]["active"]

    wait_until(ended, "the slot's own stream goes on")
    return int(server.status["sources"]["pg"]["catchup"]["given_up"])


def _let_the_others_fill_the_disk(server: Fanout, database: Database) -> int:
    """The head stands still until the last segment has given way; then the split is used.

    A machine that does much else may see the split too late: the head is at its end, or found
    the disk full itself. Then there is another backlog. Returns the number of backlogs.
    """
    given_up = 0
    for backlogs in range(1, _MOST_BACKLOGS):
        before = server.program.log.read_text().count(_GAVE_WAY)
        _split(server, database)
        if (process := _stopped_head(server)) is not None:
            wait_until(
                lambda before=before: server.program.log.read_text().count(_GAVE_WAY) > before,
                "the last gives way",
            )
            process.resume()
            known, given_up = given_up, _given_up(server)
            if given_up == known:
                return backlogs
    raise AssertionError("no backlog was seen split before the disk was full")


def _sum(rows: dict[bytes, bytes]) -> int:
    return sum(int(line.split(b'"v":')[1].split(b",")[0]) for line in rows.values())


@pytest.mark.parametrize(
    ("kilobytes", "given_up"),
    drawn.first(0, [(2000, 0), (400, 1)]),
    ids=["the last give way", "not even one"],
)
async def test_segments_give_way_where_there_is_no_room(
    tmp_path: Path, database: Database, kilobytes: int, given_up: int
) -> None:
    with database.connect() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v int, a text)")
        owner.execute(
            "INSERT INTO t SELECT g, 0, repeat('x', 80) FROM generate_series(1, %s) g", (_ROWS,)
        )
    server = _server(tmp_path, database, kilobytes)
    with started(server):
        async with server.follower("public.t") as follower:
            await follower.until_keys([str(number).encode() for number in range(1, _ROWS + 1)])
            backlogs = 1
            if given_up:
                _split(server, database)
            else:
                backlogs = _let_the_others_fill_the_disk(server, database)
            database.run("DELETE FROM t WHERE id = 1")
            await follower.until_keys([str(number).encode() for number in range(2, _ROWS + 1)])
            assert _sum(follower.rows) == backlogs * (_ROWS * (_ROWS + 1) // 2 - 1)
        if given_up:
            assert _given_up(server) == given_up
    assert _GAVE_WAY in server.program.log.read_text()
