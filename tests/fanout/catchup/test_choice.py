"""When a backlog is split by itself: by what binds, and by the cores that are free."""

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from laredo_fanout.catchup import cores, room
from laredo_fanout.catchup.choice import CoreLoad, choose
from tests.support.postgres import Database
from tests.support.processes import wait_until


@pytest.mark.parametrize(
    ("load", "segments", "limit"),
    [
        # Everything is published: 10 µs a change of the ingest, 4 of the walsender.
        (CoreLoad(0.95, 0.6, 2, True), 1, "ingest"),
        (CoreLoad(0.95, 14.0, 16, True), 1, "ingest"),
        (CoreLoad(0.63, 14.0, 16, True), 1, "ingest"),
        # Little is: the walsender's core is busy, the ingest's a third.
        (CoreLoad(0.35, 0.65, 2, True), 1, "cores"),
        (CoreLoad(0.35, 1.65, 3, True), 2, None),
        (CoreLoad(0.35, 2.65, 4, True), 3, None),
        (CoreLoad(0.62, 14.0, 16, True), 14, None),
        # Others use them.
        (CoreLoad(0.35, 0.4, 16, True), 1, "cores"),
        # PostgreSQL is on another machine, whose cores can't be seen.
        (CoreLoad(0.35, 1.65, 2, False), 3, None),
        (CoreLoad(0.35, 0.9, 2, False), 1, "cores"),
        (CoreLoad(0.0, 0.0, 2, False), 1, "cores"),
        # What came in parts through the one slot would be spilled.
        (CoreLoad(0.35, 14.0, 16, True, in_parts=0.9), 1, "large transactions"),
        (CoreLoad(0.35, 2.65, 4, True, in_parts=0.05), 3, None),
    ],
)
def test_number_of_segments(load: CoreLoad, segments: int, limit: str | None) -> None:
    chosen = choose(load)
    assert chosen.segments == segments
    assert (chosen.limit and chosen.limit.name) == limit


def test_reason_has_the_figures() -> None:
    busy = choose(CoreLoad(0.8, 1.0, 4, True)).limit
    assert busy is not None
    assert "busy 0.80 of the time" in busy.text
    assert "1.25 times as fast" in busy.text
    few = choose(CoreLoad(0.4, 0.55, 2, True)).limit
    assert few is not None
    assert "0.55 of 2 cores are free" in few.text
    assert "would use 0.60" in few.text
    large = choose(CoreLoad(0.4, 8.0, 16, True, in_parts=0.75)).limit
    assert large is not None
    assert large.text.startswith("0.75 of what is decoded")


def test_a_thread_that_works_is_seen_in_the_figures() -> None:
    clocks: list[int] = []
    began, end = threading.Event(), threading.Event()

    def work() -> None:
        clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
        began.set()
        while not end.is_set():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        began.wait()
        measured = cores.CoresInUse(lambda: time.clock_gettime(clocks[0]))
        idle = cores.idle_seconds(os.sched_getaffinity(0))
        while time.clock_gettime(clocks[0]) < 0.2:
            pass
        load = measured.load(is_server_here=True)
    finally:
        end.set()
        thread.join()
    assert 0 < load.ingest <= 1
    assert 0 <= load.free <= load.cores <= len(os.sched_getaffinity(0))
    assert idle > 0


def test_what_came_in_parts_is_seen_in_the_slots_statistics(database: Database) -> None:
    """Through the slot's own functions, which decode as its stream does."""
    slot = f"parts_{database.name}"
    read = "SELECT count(*) FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, VARIADIC %s)"
    options = ["proto_version", "2", "publication_names", "p", "streaming", "on"]
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        connection.execute("SET logical_decoding_work_mem = '64kB'")
        assert room.decoded(connection, slot) == room.Decoded(0, 0)
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        try:
            shares = []
            for rows in (10, 10_000):
                before = room.decoded(connection, slot)
                connection.execute("TRUNCATE t")
                connection.execute(
                    "INSERT INTO t SELECT g, g FROM generate_series(1, %s) g", (rows,)
                )
                connection.execute(read, (slot, options))
                wait_until(
                    lambda before=before: room.decoded(connection, slot) != before,
                    "the statistics show it",
                )
                shares.append(room.decoded(connection, slot).share_in_parts(before))
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    assert shares[0] == 0
    assert shares[1] > 0.9


def test_the_smallest_quota_of_the_cgroups_binds(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    own = groups / "kubepods" / "pod" / "own"
    own.mkdir(parents=True)
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("4:memory:/x\n0::/kubepods/pod/own\n")
    (own / "cpu.max").write_text("max 100000\n")
    (own.parent / "cpu.max").write_text("150000 100000\n")
    (own.parent / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (own.parent.parent / "cpu.max").write_text("800000 100000\n")
    quota = cores.smallest_quota(proc, groups)
    assert quota is not None
    assert quota.cores == 1.5
    assert quota.used() == 2.5
    assert cores.smallest_quota(tmp_path, groups) is None


def test_a_unix_socket_and_an_address_of_ours_are_this_machine(database: Database) -> None:
    with database.connect() as connection:
        assert cores.is_server_here(connection)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        to = listening.getsockname()
        with socket.create_connection(to) as same:
            assert cores.is_server_here(same)
        with socket.create_connection(to, source_address=("127.0.0.2", 0)) as other:
            assert not cores.is_server_here(other)
