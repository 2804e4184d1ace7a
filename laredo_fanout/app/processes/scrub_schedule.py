"""The schedule of the store's scrubs; a process of its own makes each."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from laredo_fanout.app.logs import Crashed, LogSettings, only_logged, supervised
from laredo_fanout.app.processes.store_process import StoreProcess
from laredo_fanout.config import StateConfig
from laredo_fanout.store.errors import Damage
from laredo_fanout.watchdog import SCRUB, Watchdog
from laredo_service.retry import Backoff, Outage

_RETRY = Backoff(initial=5.0, maximum=300.0)
_FIRST_AFTER_S = 60.0
"""Time after the server's start, when the disk is busy anyway; a server that is started often needs
no scrub each time."""
_SHOWN_POLL_S = 1.0
_REPAIRED_WITHIN_S = 30.0

log = structlog.get_logger("laredo_fanout.scrub")


@dataclass
class ScrubSchedule:
    """Scrubs the store soon after the start, and then every ``state.scrub.interval``."""

    config: StateConfig
    log_settings: LogSettings
    #: True once a table is shown; before that there is nothing to scrub.
    any_shown: Callable[[], bool]
    #: Has damage repaired that was found.
    report_damage: Callable[[Damage], None]
    #: Kills a process that hangs.
    watchdog: Watchdog = field(default_factory=Watchdog)
    #: Called with the error if a defect ended the schedule.
    crashed: Crashed = only_logged
    program: tuple[str, ...] = (sys.executable, "-m", "laredo_fanout.app.processes.scrub_process")
    #: Damage found since the start.
    found: int = 0
    _began: float = field(default_factory=time.time)
    _whole_at: float | None = None
    _error: str | None = None
    _process: StoreProcess = field(init=False)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._process = StoreProcess(
            SCRUB, self.program, self.log_settings, self.watchdog, self._found
        )

    def start(self) -> None:
        """Start it, unless ``bytes_per_second`` is 0; returns at once."""
        if self.config.scrub.bytes_per_second:
            self._task = supervised(self._keep(), "scrub", self.crashed)

    async def stop(self) -> None:
        """Stop, and end a scrub under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def age_s(self) -> float | None:
        """Seconds since the last scrub that found no damage, or since the start; None if it is
        off."""
        if not self.config.scrub.bytes_per_second:
            return None
        return max(0.0, time.time() - (self._whole_at or self._began))

    def status(self) -> dict[str, Any] | None:
        """The scrub in /status; None if it is off."""
        if not self.config.scrub.bytes_per_second:
            return None
        whole = self._whole_at
        return {
            "active": bool(self.named_pids),
            "place": self._process.progress,
            "last_whole_at": None
            if whole is None
            else datetime.fromtimestamp(whole, UTC).isoformat(timespec="seconds"),
            "damage_found": self.found,
            "error": self._error,
        }

    @property
    def named_pids(self) -> dict[str, int]:
        """The process that scrubs now, if one does."""
        return self._process.named_pids

    def _found(self, damage: Damage) -> None:
        self.found += 1
        self.report_damage(damage)

    async def _keep(self) -> None:
        failures, outage = 0, Outage()
        rate = self.config.scrub.bytes_per_second
        await asyncio.sleep(min(_FIRST_AFTER_S, self.config.scrub.interval))
        while True:
            if not self.any_shown():
                await asyncio.sleep(_SHOWN_POLL_S)
                continue
            began, found = time.monotonic(), self.found
            order = {"state": str(self.config.path), "bytes_per_second": rate}
            end = await self._process.run(order)
            self._error = end.get("error")
            if self._error is not None:
                failures += 1
                level = log.error if outage.is_news(self._error) else log.debug
                level("scrub failed; retry scheduled", error=self._error)
                await asyncio.sleep(_RETRY.delay(failures))
                continue
            failures = 0
            outage.end()
            log.info("store scrubbed", bytes=end["bytes"])
            pause = self.config.scrub.interval - (time.monotonic() - began)
            if self.found > found or end["unrepaired"]:
                # The next scrub shows whether the damage is repaired, and looks for more.
                pause = min(pause, _REPAIRED_WITHIN_S)
            else:
                self._whole_at = time.time()
            await asyncio.sleep(max(0.0, pause))
