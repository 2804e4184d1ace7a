"""Two million rows in one commit: to the store, clients and an archive, and everyone's memory."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.processes import AnonymousMemory, wait_until
from benchmarks.scenario import Scenario, told
from laredo_model import position as position_

Change = Callable[[Any, int, int], None]

SUBJECT = "giant_transaction"
_ROWS = 2_000_000
_BASE_ENTRIES = 200_000
"""Changes that the base client waits for: it gets a message for each, so all would take minutes."""
_MEGABYTE = 1_000_000
_MOST = 200
_PATIENCE_S = 600


def run(scenario: Scenario) -> list[Figure]:
    """Rows inserted in one commit, and deleted in another; the table is as before then."""
    scenario.ready_server()
    memory = AnonymousMemory()
    memory.watch(scenario.server.pid, "ingest")
    try:
        with _snapshotter(scenario, memory) as archive:
            found = [
                *_one(scenario, memory, archive, "inserted", bench_table.insert),
                *_one(scenario, memory, archive, "deleted", bench_table.delete),
            ]
    finally:
        memory.stop()
    return [*found, *_memory(memory)]


def _one(
    scenario: Scenario, memory: AnonymousMemory, archive: Path, what: str, change: Change
) -> list[Figure]:
    position, history = _past_the_copy(scenario)
    table = ("--server", scenario.address, "--table", bench_table.QUALIFIED)
    place = ("--position", position, "--history", history)
    with (
        scenario.running(
            "counting_client", "follow", *table, *place, "--changes", _ROWS, what="client, counting"
        ) as client,
        scenario.running(
            "counting_client",
            "base_follow",
            *(*table, *place, "--changes", _BASE_ENTRIES),
            what="base client, counting",
        ) as base,
        scenario.connect() as database,
    ):
        memory.watch(client.pid, "batch client")
        memory.watch(base.pid, "base client")
        assert told(client)["event"] == "handshake"
        assert told(base)["event"] == "handshake"
        scenario.say(f"{_ROWS:,} rows {what} in one commit")
        began = time.time()
        database.execute("BEGIN")
        change(database, scenario.rows + 1, scenario.rows + _ROWS)
        running = time.time() - began
        wanted = position_.parse(scenario.wal_position())
        database.execute("COMMIT")
        committed = time.time()
        assert told(client)["event"] == "first"
        seconds = told(client)["at"] - committed
        assert told(base)["event"] == "last"
        scenario.say("waiting for the archive")
        wait_until(
            lambda: _head(archive) >= wanted,
            timeout=_PATIENCE_S,
            what="a diff with the transaction",
        )
        archived = time.time() - committed
    return [
        Figure(
            SUBJECT,
            f"{_ROWS:,} rows {what} in one commit: from the commit to the batch client's last",
            seconds,
            "s",
            running,
            "the transaction itself in PostgreSQL",
            less_is_better=True,
            note=f"{_ROWS / seconds:,.0f} changes/s after the commit",
        ),
        Figure(
            SUBJECT,
            f"{_ROWS:,} rows {what} in one commit: from the commit to the archive's head",
            archived,
            "s",
        ),
    ]


def _past_the_copy(scenario: Scenario) -> tuple[str, str]:
    """A place that is beyond the copy's end: a base client can't go on from there itself."""
    with scenario.connect() as database:
        bench_table.update_in_order(database, 1, 1, 1)
    written = position_.parse(scenario.wal_position())
    wait_until(
        lambda: position_.parse(scenario.place()[0]) >= written,
        timeout=_PATIENCE_S,
        what="the server's catching up",
    )
    return scenario.place()


def _memory(memory: AnonymousMemory) -> list[Figure]:
    return [
        Figure(
            SUBJECT,
            f"anonymous memory meanwhile: {what}",
            peak / _MEGABYTE,
            "MB",
            target=_MOST,
            less_is_better=True,
        )
        for what, peak in sorted(memory.peaks.items())
    ]


@contextmanager
def _snapshotter(scenario: Scenario, memory: AnonymousMemory) -> Iterator[Path]:
    """A writer beside the clients; its archive, once there is a base in it."""
    program, archive = scenario.start_writer("giant")
    memory.watch(program.pid, "snapshotter")
    try:

        def based() -> bool:
            program.check()
            return _head(archive) > 0

        wait_until(based, timeout=_PATIENCE_S, what="the archive's base")
        yield archive
    finally:
        program.stop()


def _head(archive: Path) -> int:
    for path in archive.rglob("manifest.json"):
        head = json.loads(path.read_bytes()).get("head_position")
        return position_.parse(head) if head else 0
    return 0
