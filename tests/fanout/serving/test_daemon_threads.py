"""The threads that read archives: as many as allowed, and nobody waits for one that hangs."""

import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from laredo_fanout.serving import periodic
from laredo_fanout.serving.options import ArchiveOptions, ServingTableOptions
from laredo_fanout.serving.periodic import PeriodicSnapshots
from laredo_fanout.serving.shared import Archives
from laredo_fanout.serving.slices import DaemonThreads, mount_of
from laredo_fanout.snapshots import SnapshotDirectory, SnapshotInfo
from tests.support.processes import PATIENCE_S


def test_work_is_done_at_once_up_to_the_limit() -> None:
    pool = DaemonThreads(3, "test")
    gate, barrier = threading.Event(), threading.Barrier(4)

    def meet() -> None:
        barrier.wait(PATIENCE_S)
        assert gate.wait(PATIENCE_S)

    busy = [pool.submit(meet) for _ in range(3)]
    waiting = pool.submit(lambda: "done")
    barrier.wait(PATIENCE_S)  # all three run together, whoever asked when
    assert not waiting.done()
    gate.set()
    assert waiting.result(PATIENCE_S) == "done"
    assert all(future.result(PATIENCE_S) is None for future in busy)
    pool.shutdown()


def test_an_idle_thread_is_used_again() -> None:
    pool = DaemonThreads(8, "again")
    first = pool.submit(threading.get_ident).result(PATIENCE_S)
    found = {pool.submit(threading.get_ident).result(PATIENCE_S) for _ in range(20)}
    assert len(found | {first}) <= 2, "a thread that is about to ask counts as busy"
    pool.shutdown()


def test_failures_and_cancelled_work() -> None:
    pool = DaemonThreads(1, "test")
    gate = threading.Event()
    pool.submit(gate.wait, 10)
    cancelled: Future[str] = pool.submit(lambda: "never")
    failing = pool.submit(lambda: 1 // 0)
    assert cancelled.cancel()
    gate.set()
    with pytest.raises(ZeroDivisionError):
        failing.result(PATIENCE_S)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(lambda: None)


def test_a_thread_that_the_system_refuses_leaves_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = DaemonThreads(1, "test")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.submit(lambda: None)
    assert pool.submit(lambda: "done").result(PATIENCE_S) == "done"
    pool.shutdown()


def test_a_thread_that_hangs_does_not_hold_the_process() -> None:
    program = (
        "import threading\n"
        "from laredo_fanout.serving.slices import DaemonThreads\n"
        "pool = DaemonThreads(2, 'hangs')\n"
        "begun = threading.Event()\n"
        "pool.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "assert begun.wait(120)\n"
        "pool.shutdown()\n"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S, check=False).returncode
        == 0
    )


async def test_a_directory_that_hangs_stops_no_other_and_no_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, found = threading.Event(), SnapshotDirectory.snapshots

    def hangs(of: SnapshotDirectory) -> list[SnapshotInfo]:
        if "nfs" in str(of.path):
            gate.wait(PATIENCE_S)
        return found(of)

    monkeypatch.setattr(SnapshotDirectory, "snapshots", hangs)
    monkeypatch.setattr(periodic, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(periodic, "mount_of", lambda path: path)
    paths = {name: ServingTableOptions(snapshot_path=tmp_path / name) for name in ("nfs", "disk")}
    served = PeriodicSnapshots(paths)
    assert [await served.infos("nfs") for _ in range(10)] == [[]] * 10
    assert await served.infos("disk") == []
    gate.set()


def test_a_path_s_mount() -> None:
    assert mount_of(Path("/proc/self/x")) == "/proc"
    assert mount_of(Path("x")) == mount_of(Path.cwd() / "y")


def test_archives_of_one_place_share_their_threads() -> None:
    options = [ArchiveOptions("a/", bucket=bucket) for bucket in ("one", "one", "other")]
    archives = Archives({f"t{n}": each for n, each in enumerate(options)}, None, lambda *_: None)
    places = [archives._threads_of(each) for each in options]
    assert places[0] == places[1] != places[2]
    archives.close()
