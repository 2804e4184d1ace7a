"""CPU time as the kernel tells it: of this process, and where nothing can be read."""

import os
import subprocess
import sys
import time
from pathlib import Path

from laredo_fanout.catchup.cores import Cores, walsender_seconds
from tests.support.postgres import Database
from tests.support.processes import wait_until

_PROC = Path("/proc")


def test_idle_cores_are_between_none_and_all_of_ours() -> None:
    cores = Cores(_PROC)
    wait_until(cores.idle, "a core was idle for a moment")
    idle = cores.idle()
    assert idle is not None
    # The kernel's clock ticks a hundred times a second.
    assert 0 <= idle <= len(os.sched_getaffinity(0)) + 1


def test_a_group_s_limit_bounds_them(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/ours/server\n")
    core = min(os.sched_getaffinity(0))
    (tmp_path / "stat").write_text(f"cpu{core} 0 0 0 0 0 0\n")
    group = tmp_path / "groups/ours"
    (group / "server").mkdir(parents=True)
    (group / "server/cpu.max").write_text("max 100000\n")
    (group / "cpu.max").write_text("50000 100000\n")
    (group / "cpu.stat").write_text("usage_usec 0\n")
    cores = Cores(tmp_path, tmp_path / "groups")
    (tmp_path / "stat").write_text(f"cpu{core} 0 0 0 {10**9} 0 0\n")
    assert cores.idle() == 0.5


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert Cores(tmp_path / "none", tmp_path / "none").idle() is None
    assert walsender_seconds(os.getpid(), time.time(), tmp_path / "none") is None


def test_another_process_isn_t_taken_for_a_walsender(database: Database) -> None:
    """A pid of another host, or pid namespace, may be anybody's here."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()", "walsender"], stdin=subprocess.PIPE
    ) as process:
        started = time.time()
        wait_until(
            lambda: walsender_seconds(process.pid, started, _PROC) is not None,
            "its command line is there",
        )
        assert walsender_seconds(process.pid, started - 60, _PROC) is None
        process.communicate(b"\n")
    with database.connect() as connection:
        row = connection.execute(
            "SELECT pid, extract(epoch FROM backend_start)::float8 FROM pg_stat_activity"
            " WHERE pid = pg_backend_pid()"
        ).fetchone()
    assert row is not None
    assert walsender_seconds(int(str(row[0])), float(str(row[1])), _PROC) is None
