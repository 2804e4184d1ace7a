"""What is used and what is free of the cores that this process may use: Linux' own figures."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from laredo_fanout.catchup.choice import CoreLoad

if TYPE_CHECKING:
    from collections.abc import Callable

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_IDLE, _IOWAIT = 4, 5
"""Columns of /proc/stat, after the core's name."""


class Quota(NamedTuple):
    """A cgroup's limit in cores (cpu.max), and where its use is shown."""

    cores: float
    group: Path

    def used(self) -> float:
        """CPU seconds that the group has used."""
        for line in (self.group / "cpu.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "usage_usec":
                return int(value) / 1e6
        return 0.0


class CoresInUse:
    """Measures from when it is made. ``ingest`` gives the seconds that the ingest was busy."""

    def __init__(self, ingest: Callable[[], float]) -> None:
        self._ingest = ingest
        self._allowed = os.sched_getaffinity(0)
        self._quota = smallest_quota()
        self._began = time.monotonic(), *self._now()

    @property
    def seconds(self) -> float:
        """For how long it has measured."""
        return time.monotonic() - self._began[0]

    def load(self, *, is_server_here: bool, in_parts: float = 0.0) -> CoreLoad:
        """The averages since it was made."""
        began, *before = self._began
        seconds = max(1e-3, time.monotonic() - began)
        ingest, idle, of_group = (
            (now - then) / seconds for now, then in zip(self._now(), before, strict=True)
        )
        cores, free = float(len(self._allowed)), idle
        if self._quota is not None and self._quota.cores < cores:
            cores, free = self._quota.cores, min(idle, self._quota.cores - of_group)
        return CoreLoad(
            min(1.0, ingest), max(0.0, min(free, cores)), cores, is_server_here, in_parts
        )

    def _now(self) -> tuple[float, float, float]:
        group = 0.0
        if self._quota is not None:
            with suppress(OSError):  # it may have been moved to another group
                group = self._quota.used()
        return self._ingest(), idle_seconds(self._allowed), group


def idle_seconds(allowed: set[int]) -> float:
    """Seconds that these cores had nothing to do; always 0 where that can't be read."""
    try:
        lines = (_PROC / "stat").read_text().splitlines()
    except OSError:
        return 0.0
    names = {f"cpu{number}" for number in allowed}
    ticks = 0
    for columns in map(str.split, lines):
        if columns[:1] and columns[0] in names:
            ticks += int(columns[_IDLE]) + int(columns[_IOWAIT])
    return ticks / os.sysconf("SC_CLK_TCK")


def smallest_quota(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Quota | None:
    """The cpu.max that binds this process, its own cgroup's or one above; None: there is none."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    found: list[Quota] = []
    for line in lines:
        number, _, path = line.partition("::")
        if number != "0":
            continue
        own = cgroups / path.lstrip("/")
        for group in (own, *own.parents):
            if not group.is_relative_to(cgroups):
                break
            with suppress(OSError, ValueError):  # the uppermost has no such file, or it says max
                quota, period = map(int, (group / "cpu.max").read_text().split())
                found.append(Quota(quota / period, group))
    return min(found, default=None)


class Connected(Protocol):
    """What has a connected socket."""

    def fileno(self) -> int:
        """Its descriptor."""


def is_server_here(connection: Connected) -> bool:
    """Whether the connection doesn't leave this machine: a unix socket, or an address of ours.

    A proxy on this machine counts as the server.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as one:
        if one.family == socket.AF_UNIX:
            return True
        return bool(one.getsockname()[0] == one.getpeername()[0])
