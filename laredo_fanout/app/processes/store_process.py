"""A child process that reads the store once: a snapshot, or a scrub.

Its order is a line of JSON on stdin, and each line that it writes to stdout is a report. The last
report of a process that has done its work has the key "done". A process ends when the main process
does: its read transaction would keep old pages of the next server's store.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from laredo_fanout.app import logs
from laredo_fanout.snapshots import SnapshotError
from laredo_fanout.store.errors import Damage, JournalDamaged, RowsDamaged, StoreError
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.watchdog import Watchdog, beat

_FAILED = 1

Report: TypeAlias = dict[str, Any]
Order: TypeAlias = dict[str, Any]


# The child's side.


def run(work: Callable[[StoreReader, Order], Iterator[Report]], niceness: int) -> int:
    """Do ``work`` on the store of the order, as a program of ``BEAT_FD LOG_FORMAT LOG_LEVEL``."""
    beat_fd, log_format, level = sys.argv[1:]
    beat(int(beat_fd))
    logs.configure(logs.LogSettings(log_format, level))
    # A reload is for the main process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Clients that wait for a change come first.
    os.nice(niceness)
    order = orjson.loads(sys.stdin.buffer.readline())
    try:
        with StoreReader.open(Path(order["state"])) as reader:
            for report in work(reader, order):
                _write(report)
    except (RowsDamaged, JournalDamaged) as damaged:
        _write({"error": str(damaged), **damage_report(damaged)})
        return _FAILED
    except (SnapshotError, StoreError) as error:
        _write({"error": str(error)})
        return _FAILED
    return 0


def damage_report(damaged: RowsDamaged | JournalDamaged) -> Report:
    """Report of damage in the store, which the main process has repaired."""
    return {"damage": list(damaged.damage)}


def _write(report: Report) -> None:
    sys.stdout.buffer.write(orjson.dumps(report) + b"\n")
    sys.stdout.buffer.flush()


# The main process's side.


@dataclass
class StoreProcess:
    """Runs such a process, one at a time, under the watchdog."""

    #: One of the watchdog's kinds; names the process in messages.
    kind: str
    program: tuple[str, ...]
    log_settings: logs.LogSettings
    watchdog: Watchdog
    #: Has damage repaired that the process found.
    report_damage: Callable[[Damage], None]
    #: The latest report of the process that runs now, but for damage and its end.
    progress: Report | None = None
    _running: asyncio.subprocess.Process | None = field(default=None, repr=False)

    @property
    def named_pids(self) -> dict[str, int]:
        """Process id by kind; empty while none runs."""
        return {} if self._running is None else {self.kind: self._running.pid}

    async def run(self, order: Order) -> Report:
        """Run the process to its end; returns its last report: "done", or "error" with a text."""
        try:
            watched = self.watchdog.watch(self.kind, self.kind)
        except OSError as failed:
            return self._not_started(failed)
        with closing(watched):
            try:
                process = await watched.start(self.program, self.log_settings.arguments)
            except OSError as failed:
                return self._not_started(failed)
            last = await self._followed(process, order)
            if watched.verdict is not None:
                return {"error": f"the {self.kind} process was {watched.verdict}"}
        if "done" in last or "error" in last:
            return last
        code = process.returncode
        return {"error": f"the {self.kind} process ended with exit code {code} and no answer"}

    async def _followed(self, process: asyncio.subprocess.Process, order: Order) -> Report:
        """Take the process's reports; it has ended then, whatever happens. Returns the last."""
        self._running, last = process, {}
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(orjson.dumps(order) + b"\n")
            async for line in process.stdout:
                last = _parsed(line)
                if "damage" in last:
                    self.report_damage(Damage(*last["damage"]))
                elif "done" not in last and "error" not in last:
                    self.progress = last
            process.stdin.close()
            await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        finally:
            self._running = self.progress = None
        return last

    def _not_started(self, failed: OSError) -> Report:
        return {"error": f"the {self.kind} process can't be started: {failed}"}


def _parsed(line: bytes) -> Report:
    """The report in a line; empty if the process was killed as it wrote it."""
    try:
        report: Report = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return report
