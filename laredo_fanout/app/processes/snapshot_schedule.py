"""The schedule of the tables' periodic snapshot files; a process of its own writes each."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from laredo_fanout.app.logs import Crashed, LogSettings, only_logged, supervised
from laredo_fanout.app.processes.store_process import StoreProcess
from laredo_fanout.config import Config, ReplicatedTableConfig, SnapshotConfig
from laredo_fanout.serving.shared import no_repair
from laredo_fanout.store.errors import Damage
from laredo_fanout.watchdog import SNAPSHOT, Watchdog
from laredo_service.retry import Backoff, Outage

_SHOWN_POLL = 0.2
_RETRY = Backoff(initial=5.0, maximum=300.0)
_VERIFIED_WITHIN = 60.0
_CHECK_EVERY = 1.0

log = structlog.get_logger("laredo_fanout.snapshots")


@dataclass
class _Outcomes:
    """Number and outcome of one table's snapshots since the start."""

    written: int = 0
    failed: int = 0
    last: dict[str, Any] | None = None
    error: str | None = None
    outage: Outage = field(default_factory=Outage)


@dataclass
class SnapshotSchedule:
    """Writes each table's snapshot file every ``interval``, one table at a time."""

    config: Config
    #: True if clients see the table; before that there is nothing to write.
    shown: Callable[[str], bool]
    log_settings: LogSettings
    #: Requests a catalog check, which each snapshot's position waits for.
    check_catalog_soon: Callable[[], None]
    #: Has damage repaired that a snapshot found in the store.
    report_damage: Callable[[Damage], None] = no_repair
    #: Kills a process that hangs.
    watchdog: Watchdog = field(default_factory=Watchdog)
    #: Called with the error if a defect ended a table's schedule.
    crashed: Crashed = only_logged
    program: tuple[str, ...] = (
        sys.executable,
        "-m",
        "laredo_fanout.app.processes.snapshot_process",
    )
    _plans: dict[str, _Outcomes] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)
    _process: StoreProcess = field(init=False)

    def __post_init__(self) -> None:
        self._process = StoreProcess(
            SNAPSHOT, self.program, self.log_settings, self.watchdog, self.report_damage
        )

    def start(self) -> None:
        """Start the schedules; returns at once."""
        for name, table in _scheduled(self.config).items():
            if name not in self._tasks:
                self._plans.setdefault(name, _Outcomes())
                what = f"snapshots of {name}"
                self._tasks[name] = supervised(self._keep(table), what, self.crashed)

    async def change(self, config: Config) -> None:
        """Follow the schedules of ``config`` from now on; unchanged ones go on, others restart."""
        before, self.config = _scheduled(self.config), config
        now = _scheduled(config)
        await self._stop(
            [name for name, table in before.items() if _snapshot(now.get(name)) != _snapshot(table)]
        )
        self._plans = {name: plan for name, plan in self._plans.items() if name in now}
        self.start()

    async def stop(self) -> None:
        """Stop, and end a snapshot under way: an unfinished file doesn't count."""
        await self._stop(list(self._tasks))

    async def _stop(self, names: Sequence[str]) -> None:
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def of(self, table: str) -> dict[str, Any] | None:
        """The table's snapshots for /status; None for a table without periodic snapshots."""
        plan = self._plans.get(table)
        if plan is None:
            return None
        return {
            "written": plan.written,
            "failed": plan.failed,
            "last": plan.last,
            "error": plan.error,
        }

    def written(self, table: str) -> int:
        """Number of the table's snapshots that were written since the start."""
        plan = self._plans.get(table)
        return 0 if plan is None else plan.written

    @property
    def named_pids(self) -> dict[str, int]:
        """Process id of the snapshot process, if one runs now."""
        return self._process.named_pids

    async def _keep(self, table: ReplicatedTableConfig) -> None:
        plan, snapshot = self._plans[table.name], table.target.snapshot
        assert snapshot is not None
        failures = 0
        while True:
            if not self.shown(table.name):
                await asyncio.sleep(_SHOWN_POLL)
                continue
            began = time.monotonic()
            async with self._one:
                await self._write(table, plan)
            if plan.error is None:
                failures = 0
                await asyncio.sleep(max(0.0, snapshot.interval - (time.monotonic() - began)))
            else:
                failures += 1
                await asyncio.sleep(min(_RETRY.delay(failures), snapshot.interval))

    async def _write(self, table: ReplicatedTableConfig, plan: _Outcomes) -> None:
        snapshot, directory = table.target.snapshot, self.config.snapshot_path(table)
        assert snapshot is not None and directory is not None
        order = {
            "state": str(self.config.state.path),
            "table": table.name,
            "directory": str(directory),
            "keep_count": snapshot.retention.keep_count,
            "max_age": snapshot.retention.max_age,
            "verified_within": _VERIFIED_WITHIN,
        }
        checking = asyncio.create_task(self._keep_checking())
        try:
            end = await self._process.run(order)
        finally:
            checking.cancel()
        plan.error = end.get("error")
        if plan.error is None:
            plan.written += end["written"]
            plan.last = end["snapshot"]
            plan.outage.end()
            log.info("snapshot taken", table=table.name, **end["snapshot"])
        else:
            plan.failed += 1
            level = log.error if plan.outage.is_news(plan.error) else log.debug
            level("snapshot failed", table=table.name, error=plan.error)

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_EVERY)
            self.check_catalog_soon()


def _scheduled(config: Config) -> dict[str, ReplicatedTableConfig]:
    return {table.name: table for table in config.tables if table.target.snapshot is not None}


def _snapshot(table: ReplicatedTableConfig | None) -> SnapshotConfig | None:
    return None if table is None else table.target.snapshot
