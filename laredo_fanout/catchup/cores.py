"""CPU time on this host, from /proc and the control groups: what a process used, what is idle.

Where there is no such file (another system, another pid namespace) the answer is None.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = slice(3, 5)
"""idle and iowait: a core whose processes wait for a disk is free for others."""
_USER, _SYSTEM, _STARTED = 11, 12, 19
"""Behind the name in /proc/PID/stat."""
_SAME_START_S = 2.0


class Cores:
    """Idle cores since it was made, of those that this process may use."""

    def __init__(self, proc: Path, groups: Path = _GROUPS) -> None:
        self._proc = proc
        self._groups = _with_limits(groups, proc)
        self._began = time.monotonic()
        self._idle = self._idle_seconds()
        self._used = {group: _used_seconds(group) for group, _ in self._groups}

    def idle(self) -> float | None:
        """How many were idle, on average."""
        seconds = time.monotonic() - self._began
        idle = self._idle_seconds()
        if self._idle is None or idle is None or seconds <= 0:
            return None
        free = (idle - self._idle) / seconds
        for group, limit in self._groups:
            before, now = self._used[group], _used_seconds(group)
            if before is not None and now is not None:
                free = min(free, limit - (now - before) / seconds)
        return max(0.0, free)

    def _idle_seconds(self) -> float | None:
        """Of the cores that this process may run on."""
        try:
            allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
            lines = (self._proc / "stat").read_text().splitlines()
            rows = [line.split() for line in lines if line.startswith("cpu")]
            found = [row[1:] for row in rows if row[0] in allowed]
            return sum(int(each) for row in found for each in row[_IDLE]) / _TICKS
        except (OSError, AttributeError, ValueError):
            return None


def walsender_seconds(pid: int, started: float, proc: Path) -> float | None:
    """CPU time of a walsender of this host; None if ``pid`` isn't one here that began at
    ``started`` (seconds since 1970): it is another host's, or another pid namespace's."""
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        command = (proc / str(pid) / "cmdline").read_bytes()
        booted = next(
            int(line.split()[1])
            for line in (proc / "stat").read_text().splitlines()
            if line.startswith("btime")
        )
        born = booted + int(fields[_STARTED]) / _TICKS
        if b"walsender" not in command or abs(born - started) > _SAME_START_S:
            return None
        return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _with_limits(groups: Path, proc: Path) -> list[tuple[Path, float]]:
    """The control groups (version 2) around this process that limit its cores."""
    found: list[tuple[Path, float]] = []
    with suppress(OSError, ValueError, IndexError):
        lines = (proc / "self/cgroup").read_text().splitlines()
        own = next((line[3:] for line in lines if line.startswith("0::")), "/").strip("/")
        group = groups / own
        for each in (group, *group.parents):
            with suppress(OSError, ValueError):
                quota, period = (each / "cpu.max").read_text().split()
                if quota != "max":
                    found.append((each, int(quota) / int(period)))
            if each == groups:
                break
    return found


def _used_seconds(group: Path) -> float | None:
    try:
        lines = (group / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("usage_usec")) / 1e6
    except (OSError, ValueError, StopIteration):
        return None
