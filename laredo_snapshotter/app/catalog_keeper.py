"""Writer of catalog.json: the tables of this process, and the positions at which all are known.

A cut of all tables is entered once every archive has all changes before it. Archives don't depend
on the catalog: where it can't be written they go on, and the write is retried.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial

import structlog

from laredo_archive.errors import ArchiveError
from laredo_archive.manifest import timeline
from laredo_archive.manifest.catalog import MOST_BOUNDARIES, CatalogEntry, GroupBoundary
from laredo_archive.manifest.model import Artifact
from laredo_archive.storage.destination import Destination
from laredo_archive.write.manifest_store import CatalogStore
from laredo_model import position as histories
from laredo_model.position import Position
from laredo_service.retry import Backoff, Outage
from laredo_snapshotter.destinations import Stores
from laredo_snapshotter.table.writer import TableWriter

log = structlog.get_logger(__name__)

BEAT_S = 0.5
MOST_CUTS = 64
"""Most cuts that wait for an archive; if a table is stuck, the oldest are dropped."""
AGAIN = Backoff(initial=5.0, maximum=300.0)

Entries = dict[str, dict[str, CatalogEntry]]
"""By the destination's location, and there by the archive's prefix."""


class CatalogKeeper:
    """Writes the catalogs of a process's destinations. Belongs to one event loop."""

    def __init__(self, stores: Stores, writers: Callable[[], Sequence[TableWriter]]) -> None:
        self._stores = stores
        self._writers = writers
        self._group = secrets.token_hex(8)
        self._cuts: deque[tuple[str, int]] = deque(maxlen=MOST_CUTS)
        self._boundaries: deque[GroupBoundary] = deque(maxlen=MOST_BOUNDARIES)
        self._heads: Sequence[Artifact] = ()
        self._tables: set[str] = set()
        """Tables that the boundaries are about."""
        self._catalogs: dict[str, _Catalog] = {}
        # A destination that hangs hangs its catalog's thread and nobody else's.
        self._executor = ThreadPoolExecutor(4, thread_name_prefix="catalog")

    def all_cut(self, positions: Mapping[str, int]) -> None:
        """All tables were asked for a cut at these positions, by history."""
        self._cuts.extend(positions.items())

    async def run(self) -> None:
        """Write what is due until cancelled."""
        try:
            while True:
                await asyncio.sleep(BEAT_S)
                self._follow_tables()
                self._settle()
                self._write()
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _follow_tables(self) -> None:
        """Forget earlier positions if a table joins: they are unknown for it."""
        tables = {writer.config.name for writer in self._writers() if not writer.state.ended}
        if not tables <= self._tables:
            self._boundaries.clear()
            self._heads = ()
            self._cuts.clear()
        self._tables = tables

    def _settle(self) -> None:
        """Enter the cuts that every archive has now; drop those that one will never have."""
        waiting = list(self._cuts)
        self._cuts.clear()
        tables = {history: self._of(history) for history in {history for history, _ in waiting}}
        for history, position in waiting:
            known = _known_at(tables[history], history, position)
            if known is None:
                self._cuts.append((history, position))
            elif known:
                self._enter(history, Position(position))

    def _of(self, history: str) -> list[TableWriter]:
        """The tables that are written, whose archives are of a history, or of none yet."""
        found = []
        for writer in self._writers():
            head = None if writer.archive is None else writer.archive.head
            if not writer.state.ended and (head is None or str(head.history) == history):
                found.append(writer)
        return found

    def _enter(self, history: str, position: Position) -> None:
        ends = [_last_at(writer, position) for writer in self._of(history)]
        heads = [end for end in ends if end is not None]
        if len(heads) < len(ends):
            return
        boundary = GroupBoundary(histories.parse_history(history), position, max(map(_time, heads)))
        if self._boundaries and heads == list(self._heads):
            self._boundaries.pop()  # nothing has changed since: it is known up to here
        self._heads = heads
        self._boundaries.append(boundary)

    def _write(self) -> None:
        if len(self._tables) < 2:
            return  # one table's manifest has all of it
        # A table with 0 records nothing of its own while it is quiet; that isn't about the others.
        intervals = [writer.config.seen_interval for writer in self._writers()]
        interval = min((each for each in intervals if each), default=0.0)
        for location, entries in self._entries().items():
            due = self._catalogs[location]
            if due.is_due(entries, self._boundaries, interval):
                due.begin(self._executor, entries, list(self._boundaries))

    def _entries(self) -> Entries:
        found: Entries = {location: {} for location in self._catalogs}
        for writer in self._writers():
            head = None if writer.archive is None else writer.archive.head
            if writer.state.ended or head is None:
                continue
            config = writer.config
            entry = CatalogEntry(
                config.name, self._group, head.columns or (), head.key_fields or ()
            )
            for location, block in zip(writer.locations, config.destinations, strict=True):
                if location not in self._catalogs:
                    clients = self._stores.clients(config.profiles)
                    open_ = partial(self._stores.destination, block, clients)
                    self._catalogs[location] = _Catalog(open_, self._group)
                found.setdefault(location, {})[config.key_prefix] = entry
        return found


class _Catalog:
    """One destination's catalog, and when it was written."""

    def __init__(self, open_: Callable[[], Destination], group: str) -> None:
        """``open_`` is called in a thread, as a directory may hang."""
        self._open = open_
        self._group = group
        self._store: CatalogStore | None = None
        self._writing: asyncio.Task[None] | None = None
        self._entries: Mapping[str, CatalogEntry] = {}
        self._boundaries: list[GroupBoundary] = []
        self._written_at = 0.0
        self._not_before = 0.0
        self._failures = 0
        self._outage = Outage()

    def is_due(
        self,
        entries: Mapping[str, CatalogEntry],
        boundaries: Sequence[GroupBoundary],
        interval: float,
    ) -> bool:
        """True if a new catalog is to be written now; new positions at most every ``interval``."""
        now = time.monotonic()
        if self._writing is not None or now < self._not_before:
            return False
        if entries != self._entries:
            return True
        later = list(boundaries) != self._boundaries
        return later and interval > 0 and now >= self._written_at + interval

    def begin(
        self,
        executor: ThreadPoolExecutor,
        entries: Mapping[str, CatalogEntry],
        boundaries: list[GroupBoundary],
    ) -> None:
        """Write it, while everything else goes on."""
        self._writing = asyncio.create_task(self._write(executor, entries, boundaries))

    async def _write(
        self,
        executor: ThreadPoolExecutor,
        entries: Mapping[str, CatalogEntry],
        boundaries: list[GroupBoundary],
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(executor, self._enter, entries, boundaries)
        except Exception as failure:  # noqa: BLE001  # archives go on without a catalog
            self._failures += 1
            delay = AGAIN.delay(self._failures)
            self._not_before = time.monotonic() + delay
            level = log.warning if self._outage.is_news(type(failure).__name__) else log.debug
            level(
                "catalog not written",
                error=str(failure),
                retry_in_s=round(delay, 1),
                exc_info=None if isinstance(failure, ArchiveError) else failure,
            )
        else:
            self._failures = 0
            self._outage.end()
            self._entries, self._boundaries = entries, boundaries
            self._written_at = time.monotonic()
        finally:
            self._writing = None

    def _enter(
        self, entries: Mapping[str, CatalogEntry], boundaries: Sequence[GroupBoundary]
    ) -> None:
        if self._store is None:
            self._store = CatalogStore(self._open(), self._group)
        self._store.enter(entries, boundaries)


def _known_at(writers: list[TableWriter], history: str, position: int) -> bool | None:
    """True if each archive has all changes before it; None: one hasn't yet; False: one never will.

    The table that decides moves to the front: it is likely to decide later positions too.
    """
    for number, writer in enumerate(writers):
        known = writer.is_known_at(history, position)
        if not known:
            writers.insert(0, writers.pop(number))
            return known
    return bool(writers)


def _last_at(writer: TableWriter, position: Position) -> Artifact | None:
    manifest = None if writer.archive is None else writer.archive.manifest
    return None if manifest is None else timeline.last_boundary(manifest.artifacts, position)


def _time(artifact: Artifact) -> datetime:
    return artifact.to_time or artifact.created_at
