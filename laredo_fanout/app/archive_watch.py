"""Periodic checks of the tables' archives, for /status and alerts.

Serving processes read the archives by themselves when they replay them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from laredo_archive.errors import ArchiveError
from laredo_archive.manifest import timeline
from laredo_archive.read.location import FoundArchive
from laredo_fanout.app import options
from laredo_fanout.app.logs import Crashed, only_logged, supervised
from laredo_fanout.config import Config
from laredo_fanout.serving.options import ArchiveOptions
from laredo_fanout.serving.replay import NoReplay, Outcome
from laredo_fanout.serving.shared import Archives
from laredo_fanout.store import reader
from laredo_fanout.store.writer import Store
from laredo_model import position
from laredo_model.position import History

INTERVAL_S = 30.0
AGAIN_S = 12.0
"""Seconds between checks of an archive that can't be read, or isn't there yet."""


@dataclass(frozen=True)
class ArchiveCheck:
    """One reading of a table's archive, or the reason why it couldn't be read."""

    at: datetime
    found: FoundArchive | None
    problem: str | None
    covers_journal: bool = False
    """True if the archive reached the table's journal; otherwise it can't catch up a client."""

    def of_history(self, history: History | None) -> tuple[int | None, int | None]:
        """The archive's first boundary in this history, and the position that it reaches."""
        if self.found is None or history is None:
            return None, None
        manifest = self.found.manifest
        reached = [a.to_position for a in manifest.artifacts if a.history == history]
        if not reached:
            return None, None
        if manifest.history == history and manifest.seen_position is not None:
            reached.append(manifest.seen_position)
        return min(reached), max(reached)


class ArchiveWatch:
    """Reads each table's manifest every INTERVAL_S."""

    def __init__(self, config: Config, store: Store, crashed: Crashed = only_logged) -> None:
        self._store = store
        self._crashed = crashed
        self._configured = _configured(config)
        self._archives = Archives(self._configured, None, _no_outcome)
        self._checks: dict[str, ArchiveCheck | None] = dict.fromkeys(self._configured)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Start the checks, on the running event loop."""
        for name in self._checks.keys() - self._tasks.keys():
            what = f"archive of {name}"
            self._tasks[name] = supervised(self._follow(name), what, self._crashed)

    async def change(self, config: Config) -> None:
        """Check the archives of ``config`` from now on; checks of unchanged archives are kept."""
        before, self._configured = self._configured, _configured(config)
        others = {name for name in before if self._configured.get(name) != before[name]}
        await self._stop(others)
        self._checks = {
            name: None if name in others else self._checks.get(name) for name in self._configured
        }
        self._archives.change(self._configured)
        self.start()

    async def stop(self) -> None:
        """Stop the checks; one that is under way isn't waited for."""
        await self._stop(list(self._tasks))
        self._archives.close()

    async def _stop(self, names: Iterable[str]) -> None:
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def checks(self) -> dict[str, ArchiveCheck]:
        """The last check of each table that was checked already."""
        return {name: check for name, check in self._checks.items() if check is not None}

    def status(self, table: str) -> dict[str, Any] | None:
        """The status of the table's archive, for /status; None if it has none."""
        if table not in self._checks:
            return None
        check = self._checks[table]
        if check is None:
            return {"readable": None, "problem": None}
        oldest, reach = check.of_history(self._history)
        found = check.found
        return {
            "uri": None if found is None else found.destination.uri_of(found.manifest_key),
            "readable": found is not None,
            "problem": check.problem,
            "looked_at": check.at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "oldest_position": None if oldest is None else position.text(oldest),
            "reaches_position": None if reach is None else position.text(reach),
            "covers_journal": check.covers_journal,
        }

    async def _follow(self, table: str) -> None:
        while True:
            check = self._checks[table] = await self._check(table)
            interval = AGAIN_S if check.problem else INTERVAL_S
            await asyncio.sleep(interval * random.uniform(0.9, 1.1))

    async def _check(self, table: str) -> ArchiveCheck:
        archive = self._archives.get(table)
        assert archive is not None, "it is configured"
        now = datetime.now(UTC)
        # Read before the manifest: on a busy table the floor moves while the manifest is fetched.
        floor = self._floor(table)
        try:
            found, _ = await archive.found(newest=True)
            if found.manifest.table != table:
                other = f"the archive there is that of table {found.manifest.table}"
                return ArchiveCheck(now, found, other)
            timeline.epochs_of(found.manifest, found.destination.uri_of(found.manifest_key))
        except (NoReplay, ArchiveError) as failure:
            return ArchiveCheck(now, None, str(failure))
        check = ArchiveCheck(now, found, None)
        reach = check.of_history(self._history)[1]
        covers = None not in (reach, floor) and (reach or 0) >= (floor or 0)
        return replace(check, covers_journal=covers)

    @property
    def _history(self) -> History | None:
        identity = self._store.source
        return None if identity is None else identity.history

    def _floor(self, table: str) -> int | None:
        """The floor of the table's journal; None while clients can't see the table."""
        found = reader.current([r for r in self._store.tables.values() if r.qualified == table])
        return found.floor if found is not None and found.shown else None


def _configured(config: Config) -> dict[str, ArchiveOptions]:
    archives = {table.name: options.archive_options(table) for table in config.tables}
    return {name: archive for name, archive in archives.items() if archive is not None}


def _no_outcome(table: str, outcome: Outcome) -> None:
    """Do nothing: the main process replays nothing."""
