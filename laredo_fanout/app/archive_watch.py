"""Looking after the tables' archives, so that /status says what a late client may expect of them.

The serving processes read the archives for themselves; this is for people and alerts.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from laredo_archive import timeline
from laredo_archive.errors import ArchiveError
from laredo_archive.location import Found
from laredo_fanout.app import options
from laredo_fanout.config import Config
from laredo_fanout.serving.archives import Archives
from laredo_fanout.serving.replay import NoReplay, Outcome
from laredo_fanout.store.table import TableRecord
from laredo_model import position
from laredo_model.history import History

INTERVAL_S = 30.0


@dataclass(frozen=True)
class Look:
    """An archive as it was at a moment; or why it couldn't be read."""

    at: datetime
    found: Found | None
    problem: str | None

    def of_history(self, history: History | None) -> tuple[int | None, int | None]:
        """The first boundary of that history, and up to where the archive knows the table."""
        if self.found is None or history is None:
            return None, None
        manifest = self.found.manifest
        reached = [a.to_position for a in manifest.artifacts if a.history == history]
        if not reached:
            return None, None
        if manifest.history == history and manifest.seen_position is not None:
            reached.append(manifest.seen_position)
        return min(reached), max(reached)

    def covers(self, record: TableRecord, history: History | None) -> bool:
        """Whether the archive leads to the table's journal: else no client is caught up by it."""
        _, reach = self.of_history(history)
        return reach is not None and reach >= record.floor


class ArchiveWatch:
    """Reads each table's manifest from time to time."""

    def __init__(self, config: Config) -> None:
        said = {table.name: options.archive_options(table) for table in config.tables}
        configured = {name: archive for name, archive in said.items() if archive is not None}
        self._archives = Archives(configured, None, _nobody)
        self._looks: dict[str, Look | None] = dict.fromkeys(configured)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._tasks = [asyncio.create_task(self._follow(name)) for name in self._looks]

    async def stop(self) -> None:
        """Look no more; a look under way is left to itself."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._archives.close()

    @property
    def looks(self) -> dict[str, Look]:
        """What was seen last, by table; not of those that weren't looked at yet."""
        return {name: look for name, look in self._looks.items() if look is not None}

    def status(
        self, table: str, record: TableRecord | None, history: History | None
    ) -> dict[str, Any] | None:
        """What /status shows of the table's archive; None if it has none."""
        if table not in self._looks:
            return None
        look = self._looks[table]
        if look is None:
            return {"readable": None, "problem": None}
        oldest, reach = look.of_history(history)
        found = look.found
        return {
            "uri": None if found is None else found.destination.uri_of(found.manifest_key),
            "readable": found is not None,
            "problem": look.problem,
            "looked_at": look.at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "oldest_position": None if oldest is None else position.text(oldest),
            "reaches_position": None if reach is None else position.text(reach),
            "covers_journal": record is not None and look.covers(record, history),
        }

    async def _follow(self, table: str) -> None:
        while True:
            self._looks[table] = await self._look(table)
            await asyncio.sleep(INTERVAL_S * random.uniform(0.8, 1.2))

    async def _look(self, table: str) -> Look:
        archive = self._archives.get(table)
        assert archive is not None, "it is configured"
        now = datetime.now(UTC)
        try:
            found, _ = await archive.found(newest=True)
            if found.manifest.table != table:
                other = f"it is the archive of table {found.manifest.table}"
                return Look(now, found, other)
            timeline.epochs(found.manifest, found.destination.uri_of(found.manifest_key))
        except (NoReplay, ArchiveError) as failure:
            return Look(now, None, str(failure))
        return Look(now, found, None)


def _nobody(table: str, outcome: Outcome) -> None:
    """The main process replays nothing."""
