"""The watchdog of the main process: it kills a child process that hangs, so that it is replaced.

Each child sends a beat a second, one byte into a pipe, from a thread of its own (:func:`beat`). A
thread alone proves only that the process runs. That is enough for a process that does one piece of
work: a snapshot, a segment, a scrub. A process that answers clients beats only while its event loop
comes round (:class:`LoopPulse`).

The main process counts silence in turns of its own, and reads every pipe in each turn. A main
process that was stopped, or had no CPU, took no turns meanwhile; what its children sent waits in
the pipes. A turn in which the child waited for a CPU doesn't count: snapshots and scrubs have a low
priority, so on a busy machine they may not run for many seconds.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from laredo_service.log import native_stderr

SERVING, SNAPSHOT, SEGMENT, SCRUB = KINDS = ("serving", "snapshot", "segment", "scrub")

_BEAT_S = 1.0
_SILENT_TURNS = 10
_SUSPECT_TURNS = 5
_STARTING_TURNS = 120
"""Most turns until the first beat: on a busy machine, imports take long."""
_STARVED_TURNS = 120
"""Most turns of one silence that don't count, since the process waited for a CPU."""
_COMPUTING_BEATS = 60
"""Most beats for a loop that computes without coming round."""
_MAIN_IS_GONE = 3

log = structlog.get_logger("laredo_fanout.watchdog")


# The child's side.


def beat(end: int, is_well: Callable[[], bool] = lambda: True) -> None:
    """Beat into ``end`` from a thread while ``is_well``; end the process when the main one does."""
    os.set_blocking(end, False)
    threading.Thread(target=_keep_beating, args=(end, is_well), name="beats", daemon=True).start()


def _keep_beating(end: int, is_well: Callable[[], bool]) -> None:
    poll = select.poll()
    poll.register(end, 0)
    while True:
        if is_well():
            # A full pipe holds hours of beats that the main process hasn't read.
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(end, b"\1")
        if poll.poll(1000 * _BEAT_S):
            os._exit(_MAIN_IS_GONE)


class LoopPulse:
    """Health of the event loop in the thread that makes it: the loop comes round, or computes.

    In one round of the loop each client with data to send takes a slice of CPU time. So with many
    clients a busy loop may take a minute for a round.
    """

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._rounds = self._seen = 0
        self._used = 0.0
        self._missed = 0

    def came_round(self) -> None:
        """Call it in the loop, at least once a second."""
        self._rounds += 1

    def is_well(self) -> bool:
        """True if the loop has come round, or has used the CPU, since the last call."""
        rounds, used = self._rounds, time.clock_gettime(self._clock)
        self._missed = 0 if rounds != self._seen else self._missed + 1
        computes = used > self._used
        self._seen, self._used = rounds, used
        return self._missed == 0 or (computes and self._missed < _COMPUTING_BEATS)


# The main process's side.


class Killable(Protocol):
    """A running process, of subprocess or of asyncio."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...


class Watched:
    """One child process; made before it is started, closed when it has ended."""

    def __init__(self, watchdog: Watchdog, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self._watchdog = watchdog
        self._ours, self.end = os.pipe()
        os.set_blocking(self._ours, False)
        self._process: Killable | None = None
        self._has_beaten = False
        self._silent = self._starved = 0
        self._run = _Run(0, 0, False)
        self.verdict: str | None = None
        """Reason of its kill; None: it wasn't killed."""

    @property
    def suspicion(self) -> str | None:
        """Text about its silence; None if it isn't silent."""
        if not self._has_beaten or self._silent < _SUSPECT_TURNS or self._process is None:
            return None
        if self.verdict is not None:
            return f"{self._who}: {self.verdict}"
        return (
            f"{self._who} has been silent for {self._silent} s; after {_SILENT_TURNS} s it is"
            " killed and replaced"
        )

    @property
    def _who(self) -> str:
        pid = None if self._process is None else self._process.pid
        return f"process {self.name} (pid {pid})"

    async def start(
        self, program: Sequence[str], arguments: Sequence[str]
    ) -> asyncio.subprocess.Process:
        """Start a program that takes an order on stdin, answers on stdout, and beats into the
        descriptor of its first argument.

        :raises OSError: if it can't be started.
        """
        process = await asyncio.create_subprocess_exec(
            *program,
            str(self.end),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=native_stderr(),
            pass_fds=[self.end],
            process_group=0,
        )
        self.started(process)
        return process

    def started(self, process: Killable) -> None:
        """Watch ``process``, which has inherited :attr:`end`, from now on."""
        os.close(self.end)
        self._process = process
        self._run = _Run.of(process.pid)
        self._watchdog.add(self)

    def close(self) -> None:
        """Watch it no longer: it has ended, or wasn't started."""
        if self._process is None:
            os.close(self.end)
        self._watchdog.remove(self)
        os.close(self._ours)

    def listen(self) -> bool:
        """Take the beats since the last turn; True if it was killed for having sent none."""
        assert self._process is not None
        with suppress(BlockingIOError):
            # An empty read is the end of the process, which its starter notices.
            os.read(self._ours, 1 << 16)
            self._has_beaten, self._silent, self._starved = True, 0, 0
            self._run = _Run.of(self._process.pid)
            return False
        if self._is_starved() and self._starved < _STARVED_TURNS:
            self._starved += 1
            return False
        self._silent += 1
        limit = _SILENT_TURNS if self._has_beaten else _STARTING_TURNS
        if self._silent < limit or self.verdict is not None:
            return False
        self.verdict = f"silent for {self._silent} s, so it was killed"
        with suppress(ProcessLookupError):
            self._process.kill()
        log.error("hung process killed", process=self.name, pid=self._process.pid, silent_s=limit)
        return True

    def _is_starved(self) -> bool:
        """True if its first thread is ready to run, and mostly had no CPU since the last turn."""
        assert self._process is not None
        before, now = self._run, _Run.of(self._process.pid)
        self._run = now
        return now.is_ready and 2 * (now.ran_ns - before.ran_ns) < now.at_ns - before.at_ns


class _Run(NamedTuple):
    """The first thread of a process, as the scheduler sees it."""

    at_ns: int
    ran_ns: int
    is_ready: bool
    """True if it runs, or waits for a CPU; not if it is stopped or waits for anything else."""

    @classmethod
    def of(cls, pid: int) -> _Run:
        """https://docs.kernel.org/scheduler/sched-stats.html and proc_pid_stat(5)."""
        at, process = time.monotonic_ns(), Path(f"/proc/{pid}")
        try:
            state = (process / "stat").read_text().rpartition(") ")[2][:1]
            return cls(at, int((process / "schedstat").read_text().split()[0]), state == "R")
        except (OSError, IndexError, ValueError):
            return cls(at, 0, False)


class Watchdog:
    """Watches child processes, and kills those that hang; their starters replace them."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._children: set[Watched] = set()
        self.hangs = Counter(dict.fromkeys(KINDS, 0))
        """Number of processes that were killed, by kind."""

    def watch(self, kind: str, name: str) -> Watched:
        """Make the pipe for the beats of a child that is about to be started; from any thread.

        :raises OSError: if there is no descriptor left.
        """
        return Watched(self, kind, name)

    def add(self, child: Watched) -> None:
        """Listen to it in each turn."""
        with self._lock:
            self._children.add(child)

    def remove(self, child: Watched) -> None:
        """Don't listen to it any more."""
        with self._lock:
            self._children.discard(child)

    def suspicions(self, *kinds: str) -> list[str]:
        """Texts about the children that are silent, of these kinds or of all."""
        with self._lock:
            found = [each.suspicion for each in self._children if each.kind in (kinds or KINDS)]
        return sorted(filter(None, found))

    def turn(self) -> None:
        """Listen to every child, and kill those that were silent for too many turns."""
        with self._lock:
            for child in self._children:
                self.hangs[child.kind] += child.listen()

    async def run(self) -> None:
        """Take a turn a second; never returns."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.turn()
