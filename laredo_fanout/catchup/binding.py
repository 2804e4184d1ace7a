"""What binds while the one slot reads a backlog: measured from the first check above the threshold.

A few bounded queries a check, over the side connection, and only while a split may follow.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from laredo_fanout.catchup.cores import Cores, walsender_seconds
from laredo_fanout.catchup.decision import Measured

if TYPE_CHECKING:
    from pathlib import Path

    from laredo_fanout.postgres.connections import Connection

_SAMPLES, _PAUSE_S = 4, 0.005
_WAITING = (
    "WalSenderWriteData",
    "ClientWrite",
    "ClientRead",
    "WalSenderMain",
    "WalSenderWaitForWAL",
    "WalSenderWaitForWal",
)
"""Wait events of a walsender that has nothing to decode, or nobody who takes what it decoded."""

_WALSENDER = """
SELECT a.pid, extract(epoch FROM a.backend_start)::float8, a.wait_event
  FROM pg_replication_slots s, pg_stat_get_activity(s.active_pid) a
 WHERE s.slot_name = %s AND s.active_pid IS NOT NULL
"""


class Clock(NamedTuple):
    """The ingest thread's CPU time and the wall's, in seconds, noted by that thread."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Clock:
        """Of the thread that calls it."""
        return cls(time.monotonic(), time.thread_time())


class Binding:
    """Measures from when it is made on; ``ingest`` is the ingest's clock at that time."""

    def __init__(self, slot: str, ingest: Clock, proc: Path) -> None:
        self._slot = slot
        self._ingest = ingest
        self._proc = proc
        self._cores = Cores(proc)
        self._began: tuple[int, float, float | None] | None = None
        self._walsender: float | None = None
        self._decoding = self._samples = 0

    def sample(self, connection: Connection) -> None:
        """See what the walsender does.

        :raises psycopg.Error: if the server can't be asked.
        """
        for number in range(_SAMPLES):
            if number:
                time.sleep(_PAUSE_S)
            row = connection.execute(_WALSENDER, (self._slot,)).fetchone()
            if row is None:
                continue
            pid, started, event = row
            if started is None:
                continue
            self._samples += 1
            self._decoding += event not in _WAITING
        if row is not None and row[1] is not None:
            self._note_cpu(pid, started)

    def measured(self, ingest: Clock) -> Measured | None:
        """What was measured until the ingest's ``ingest``; None if that is too early."""
        seconds = ingest.wall - self._ingest.wall
        if seconds <= 0:
            return None
        return Measured(
            min(1.0, (ingest.cpu - self._ingest.cpu) / seconds),
            self._decoding / self._samples if self._samples else None,
            self._walsender,
            self._cores.idle(),
        )

    def _note_cpu(self, pid: int, started: float) -> None:
        now, used = time.monotonic(), walsender_seconds(pid, started, self._proc)
        if self._began is None or self._began[0] != pid:
            self._began = pid, now, used
            return
        _, began, before = self._began
        if used is not None and before is not None and now > began:
            self._walsender = min(1.0, (used - before) / (now - began))
