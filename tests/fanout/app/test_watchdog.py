"""Real processes that hang, stopped by SIGSTOP, are killed; those that are busy are not."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from laredo_fanout import watchdog as watchdog_
from laredo_fanout.app import scrape
from laredo_fanout.catchup.plan import CatchupStatus, Order, Segment, SegmentStatus
from laredo_fanout.catchup.segment_run import SegmentRun
from laredo_fanout.client import Handshake
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.watchdog import SCRUB, SEGMENT, SERVING, SNAPSHOT, Watchdog
from laredo_model.position import History
from laredo_service.metrics import process_memory
from tests.fanout.app.running_server import running, scheduled_snapshots
from tests.support.processes import PATIENCE_S, until, wait_until
from tests.support.server.serving_world import USERS
from tests.support.server.store_sample import commit, insert, live_table, open_store

LIMIT = watchdog_._SILENT_TURNS
BEATS = "import sys, time; from laredo_fanout.watchdog import *; end = int(sys.argv[1])"
OF_A_LOOP = f"{BEATS}; pulse = LoopPulse(); pulse.came_round(); beat(end, pulse.is_well)"
RUNS = f"{BEATS}; beat(end); time.sleep(600)"
COMPUTES = f"{OF_A_LOOP}\nwhile True: sorted(range(1000))"
BLOCKED = f"{OF_A_LOOP}; time.sleep(600)"
BUSY = "while True: pass"
SILENT = f"{BEATS}; import os; os.write(end, b'1')\n{BUSY}"


class Child:
    """A process that runs a program of a line, and is watched; its first beat has come."""

    def __init__(self, watchdog: Watchdog, program: str) -> None:
        self.watchdog = watchdog
        self.watched = watchdog.watch(SERVING, "serving-0")
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(self.watched.end)], pass_fds=[self.watched.end]
        )
        self.watched.started(self.process)
        wait_until(self.has_beaten, "its first beat")

    def has_beaten(self) -> bool:
        """Take a turn; True if that found a beat. Silence is counted from then on."""
        before, self.watched._has_beaten = self.watched._has_beaten, False
        self.watchdog.turn()
        found, self.watched._silent = self.watched._has_beaten, 0
        self.watched._has_beaten = before or found
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.watched.close()


@contextmanager
def child(program: str) -> Iterator[Child]:
    made = Child(Watchdog(), program)
    try:
        yield made
    finally:
        made.end()


def _wait_for(pid: int, state: str) -> None:
    wait_until(lambda: psutil.Process(pid).status() == state, f"it is {state}")


def test_a_process_that_is_stopped_is_killed_after_ten_turns() -> None:
    with child(RUNS) as one:
        os.kill(one.process.pid, signal.SIGSTOP)
        _wait_for(one.process.pid, psutil.STATUS_STOPPED)
        one.has_beaten()
        for turn in range(1, LIMIT):
            one.watchdog.turn()
            assert bool(one.watchdog.suspicions()) == (turn >= 5)
        assert one.process.poll() is None and one.watchdog.hangs[SERVING] == 0
        one.watchdog.turn()
        assert one.process.wait(PATIENCE_S) == -signal.SIGKILL
        assert one.watchdog.hangs == {SERVING: 1, SNAPSHOT: 0, SEGMENT: 0, SCRUB: 0}
        assert one.watched.verdict == "silent for 10 s, so it was killed"
        one.watchdog.turn()
        assert one.watchdog.hangs[SERVING] == 1


def test_silence_while_the_main_process_itself_was_stopped_does_not_count() -> None:
    """A turn that finds beats of any age is a turn without silence."""
    with child(RUNS) as one:
        for _ in range(LIMIT - 1):
            one.watchdog.turn()
        # The main process is stopped, and its child goes on.
        wait_until(
            lambda: select.select([one.watched._ours], [], [], 0)[0], "a beat is in the pipe"
        )
        one.watchdog.turn()
        assert one.watched.verdict is None and one.process.poll() is None
        assert not any(one.watchdog.hangs.values())


def test_a_loop_that_computes_beats_and_one_that_waits_does_not() -> None:
    with child(COMPUTES) as busy, child(BLOCKED) as hung:
        for _ in range(3):
            wait_until(busy.has_beaten, "another beat", PATIENCE_S)
        # What the other one sent meanwhile was sent before its thread had looked twice.
        hung.has_beaten()
        time.sleep(2 * watchdog_._BEAT_S)
        assert not hung.has_beaten() and hung.process.poll() is None


def test_silence_of_a_process_that_waits_for_a_cpu_does_not_count() -> None:
    """A snapshot has a low priority: beside busy processes it may hold the GIL, and not run."""
    [cpu, *_] = os.sched_getaffinity(0)
    with child(SILENT) as starved, ExitStack() as stack:
        os.sched_setaffinity(starved.process.pid, {cpu})
        os.sched_setscheduler(starved.process.pid, os.SCHED_IDLE, os.sched_param(0))
        for _ in range(4):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            stack.callback(loop.kill)
            os.sched_setaffinity(loop.pid, {cpu})
        wait_until(lambda: starved.watchdog.turn() or starved.watched._starved, "it has no CPU")
        starved.watched._silent = 0
        for _ in range(3 * LIMIT):
            time.sleep(0.1)  # a turn
            starved.watchdog.turn()
        assert starved.process.poll() is None and starved.watched._starved > 2 * LIMIT
        stack.close()
        os.sched_setscheduler(starved.process.pid, os.SCHED_OTHER, os.sched_param(0))
        wait_until(lambda: starved.watchdog.turn() or starved.watched.verdict, "it is killed")
        assert starved.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_process_that_is_still_importing_is_given_more_time() -> None:
    watchdog = Watchdog()
    watched = watchdog.watch(SERVING, "serving-0")
    process = subprocess.Popen(["sleep", "600"], pass_fds=[watched.end])
    watched.started(process)
    try:
        _wait_for(process.pid, psutil.STATUS_SLEEPING)
        for _ in range(LIMIT):
            watchdog.turn()
        assert process.poll() is None and watchdog.suspicions() == []
        for _ in range(watchdog_._STARTING_TURNS - LIMIT):
            watchdog.turn()
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        watched.close()


def test_a_process_ends_with_the_main_one() -> None:
    with child(RUNS) as one:
        os.dup2(os.open(os.devnull, os.O_RDONLY), one.watched._ours)
        assert one.process.wait(PATIENCE_S) == watchdog_._MAIN_IS_GONE


@contextmanager
def hurrying(watchdog: Watchdog) -> Iterator[asyncio.Task[None]]:
    """The watchdog runs; between two beats there are a few turns."""
    running_ = asyncio.create_task(watchdog.run())
    try:
        yield running_
    finally:
        running_.cancel()


async def test_a_serving_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    watchdog = Watchdog(interval_s=0.3)
    async with running(tmp_path, watchdog=watchdog) as world:
        with hurrying(watchdog):
            async with asyncio.timeout(PATIENCE_S), world.subscription("a") as events:
                assert isinstance(await anext(events), Handshake)
                (pid,) = world.children.pids
                os.kill(pid, signal.SIGSTOP)
                # Its client gets another handshake, of the process that came instead.
                async for event in events:
                    if isinstance(event, Handshake):
                        break
            assert world.children.pids != [pid] and world.children.restarts == 1
            assert watchdog.hangs[SERVING] == 1


@pytest.mark.thorough
async def test_a_snapshot_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    with open_store(tmp_path / "state") as store:
        with store.transaction() as transaction:
            transaction.set_source(SourceIdentity(History(7300, 1, 16384), "laredo", "laredo"))
        commit(store, live_table(store), (0x19F000, [insert("a", 1)]))
        watchdog = Watchdog(interval_s=0.3)
        schedule = scheduled_snapshots(tmp_path, watchdog=watchdog)
        with hurrying(watchdog):
            schedule.start()
            try:
                # Its position isn't verified, so that it waits.
                await until(lambda: list((tmp_path / "state").glob("snapshots/*/.*")))
                (pid,) = schedule.named_pids.values()
                os.kill(pid, signal.SIGSTOP)
                await until(lambda: (schedule.of(USERS) or {})["failed"])
                assert (
                    "was silent for 10 s, so it was killed" in (schedule.of(USERS) or {})["error"]
                )
                await until(lambda: schedule.named_pids)
                assert watchdog.hangs[SNAPSHOT] == 1 and schedule.named_pids != {"snapshot": pid}
            finally:
                await schedule.stop()


def test_a_segment_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    watchdog = Watchdog()
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as accepted:
        # A PostgreSQL that accepts, and says nothing more.
        dsn = f"host=127.0.0.1 port={server.getsockname()[1]} connect_timeout=600"
        order = Order(dsn, "slot", "p", 600.0, 600.0, "", 2, 0x10, 0x90, str(tmp_path), 0, 1 << 20)
        run = SegmentRun(Segment(2, 0x10, 0x90), order, watchdog)
        run.start(0)
        try:
            accepted.enter_context(server.accept()[0])
            pid, watched = run.pid, run._watched
            assert pid is not None and watched is not None
            wait_until(lambda: watchdog.turn() or watched._has_beaten, "a beat")
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: watchdog.turn() or watchdog.hangs[SEGMENT], "it is killed")
            wait_until(lambda: run.take_reports() and run.pid is None, "that is noticed")
            assert run.restarts == 1 and "was silent for 10 s" in run.error
            wait_until(lambda: run.due, "its pause")
            run.start(0)
            assert run.pid != pid
        finally:
            run.kill()


# Processes that come and go have their memory in the metrics while they are there.


WAITING = (sys.executable, "-c", "import sys; sys.stdin.read()")
"""A process that does nothing until its stdin ends, as a snapshot's does."""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    says_so = (*WAITING[:2], f"print(flush=True); {WAITING[2]}")
    with subprocess.Popen(says_so, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        # Only now its memory is what it stays: a process that is just forked has one page.
        started.stdout.readline()
        yield started
        started.terminate()


def shown(processes: dict[str, int]) -> dict[str, float]:
    samples = process_memory("laredo", processes.items()).samples
    return {sample.labels["process"]: sample.value for sample in samples}


def test_one_that_has_ended_is_absent(process: subprocess.Popen[bytes]) -> None:
    figures = shown({"segment-0": process.pid})
    assert figures.keys() == {"main", "segment-0"}
    resident = psutil.Process(process.pid).memory_info().rss
    assert figures["segment-0"] == pytest.approx(resident, rel=0.5)
    process.kill()
    process.wait()
    assert shown({"segment-0": process.pid}).keys() == {"main"}


def test_segments_are_named_by_their_number() -> None:
    def segment(number: int, pid: int | None) -> SegmentStatus:
        return SegmentStatus(number, 1, 2, 1, 1, "decoding", 0, pid)

    split = CatchupStatus(
        "auto", 1, 2, 3, 1, 0, 0, None, 5, 0, (segment(0, None), segment(1, 77), segment(2, 88))
    )
    assert scrape._segment_pids(split) == {"segment-1": 77, "segment-2": 88}
    assert scrape._segment_pids(None) == {}


async def test_a_snapshot_s_process_is_there_while_it_runs(tmp_path: Path) -> None:
    schedule = scheduled_snapshots(tmp_path, "1h", program=WAITING)
    assert schedule.named_pids == {}
    schedule.start()
    await until(lambda: schedule.named_pids)
    (pid,) = schedule.named_pids.values()
    assert shown(schedule.named_pids).keys() == {"main", "snapshot"}
    assert psutil.Process(pid).is_running()
    await asyncio.gather(schedule.stop())
    assert schedule.named_pids == {}
