"""The processes that decode: kept running, given blocks in turn."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.source.decode_process import DecodeProcess

if TYPE_CHECKING:
    from laredo_fanout.source.status import Counters

_log = structlog.get_logger()

_SLOTS = 16
"""Of all processes together, so that memory doesn't grow with their number; each has two."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 15.0


@dataclass(eq=False)
class _Place:
    """One of the processes, or the wait for another one."""

    process: DecodeProcess | None = None
    start_at: float = 0.0
    failures: int = 0
    """Of processes in a row that ended before they had decoded anything."""


class DecodePool:
    """``workers`` processes, for blocks of ``room`` bytes.

    One that is lost is replaced, after growing pauses if it was no use.

    Used by the ingest's thread, :meth:`with_room` by the one that reads the stream.
    """

    def __init__(self, workers: int, room: int, counters: Counters) -> None:
        self._places = [_Place() for _ in range(workers)]
        self._slots = max(2, _SLOTS // workers)
        self._room = room
        self._turn = 0
        self._counters = counters

    @property
    def processes(self) -> Sequence[DecodeProcess]:
        """Those that there are, lost ones that hold something still included."""
        return [place.process for place in self._places if place.process is not None]

    @property
    def ready(self) -> bool:
        """Whether any could be given something, now or soon."""
        return any(process.ready and not process.lost for process in self.processes)

    def tend(self) -> None:
        """Hear what they tell, replace those that are lost."""
        for place in self._places:
            process = place.process
            if process is None:
                if time.monotonic() >= place.start_at:
                    self._start(place)
                continue
            process.listen()
            if process.lost and process.idle:
                self._bury(place, process)

    def with_room(self) -> DecodeProcess | None:
        """The one whose turn it is among those that may be given a block."""
        count = len(self._places)
        for step in range(count):
            process = self._places[(self._turn + step) % count].process
            if process is not None and process.has_room and process.setup:
                self._turn = (self._turn + step + 1) % count
                return process
        return None

    def close(self) -> None:
        """End them all."""
        for place in self._places:
            if place.process is not None:
                process, place.process = place.process, None
                process.close()

    def _start(self, place: _Place) -> None:
        try:
            place.process = DecodeProcess(self._slots, self._room)
        except OSError as failed:
            self._failed(place)
            _log.warning("no process can be started that decodes", error=str(failed))

    def _bury(self, place: _Place, process: DecodeProcess) -> None:
        place.process = None
        code = process.close()
        if process.decoded:
            place.failures = 0
        self._failed(place)
        _log.warning(
            "a process that decodes has ended; another takes its place",
            pid=process.pid,
            exit_code=code,
            blocks=process.decoded,
            failures=place.failures,
        )

    def _failed(self, place: _Place) -> None:
        place.failures += 1
        self._counters.decode_restarts += 1
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (place.failures - 1))
        place.start_at = time.monotonic() + pause * random.uniform(0.5, 1.0)
