"""The answer to a scrape of /metrics: figures of the server's parts, as metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from laredo_fanout.app import metrics
from laredo_fanout.app.archive_watch import ArchiveWatch
from laredo_fanout.app.ingest_thread import IngestThread, JournalPruning
from laredo_fanout.app.metrics import Figures, StoreSpace, exposition
from laredo_fanout.app.processes.children import ServingChildren
from laredo_fanout.app.processes.clients import Clients
from laredo_fanout.app.processes.scrub_schedule import ScrubSchedule
from laredo_fanout.app.processes.snapshot_schedule import SnapshotSchedule
from laredo_fanout.catchup.fall_behind import FallBehind
from laredo_fanout.catchup.plan import CatchupStatus
from laredo_fanout.config import Config
from laredo_fanout.serving.ports import ClientState
from laredo_fanout.store.table import TableRecord
from laredo_fanout.store.writer import Store
from laredo_fanout.watchdog import Watchdog
from laredo_service.certificates import CertificateWatch
from laredo_service.http.connections import HttpCounts
from laredo_service.metrics import Exposition


@dataclass(frozen=True)
class ServerParts:
    """The parts of the running server."""

    store: Store
    clients: Clients
    ingest: IngestThread
    children: ServingChildren
    pruning: JournalPruning
    snapshots: SnapshotSchedule
    scrub: ScrubSchedule
    archives: ArchiveWatch
    fall_behind: FallBehind | None
    watchdog: Watchdog


@dataclass(frozen=True)
class Scrape:
    """The figures of the server's parts."""

    parts: ServerParts
    http: HttpCounts
    certificates: CertificateWatch
    #: Returns the record of each table that clients see, or will.
    records: Callable[[], dict[str, TableRecord]]

    async def answer(self, config: Config, accept: str) -> Exposition:
        """The metrics now, in the format that the request's Accept header asks for."""
        parts = self.parts
        names, records = [table.name for table in config.tables], self.records()
        tables = {name: records[name] for name in names if name in records}
        clients: dict[str, list[ClientState]] = {name: [] for name in names}
        for client in parts.clients.of():
            clients.setdefault(client.info.table, []).append(client)
        limits = {t.name: t.target.client_buffer.max_size for t in config.tables}
        store = await asyncio.to_thread(self._read_files, config.state.max_size)
        client_buffers = await asyncio.to_thread(
            metrics.measured, parts.store.reader(), tables, clients, limits
        )
        catchup = None if parts.fall_behind is None else parts.fall_behind.status()
        figures = Figures(
            source_name=config.source_name,
            source=parts.ingest.status(),
            tables=tables,
            clients=clients,
            buffers=client_buffers,
            max_clients=config.max_clients,
            disconnects=parts.clients.left(),
            snapshots={name: parts.snapshots.written(name) for name in names},
            store=store,
            pruned=parts.pruning.pruned,
            serving_restarts=parts.children.restarts,
            serving_spawn_failures=parts.children.spawn_failures,
            hangs=dict(parts.watchdog.hangs),
            ingest_restarts=parts.ingest.given_up,
            replays=parts.children.replays,
            archives=parts.archives.checks,
            catchup=catchup,
            pids={
                **parts.children.named_pids,
                **parts.snapshots.named_pids,
                **parts.scrub.named_pids,
                **_segment_pids(catchup),
            },
            sent=parts.children.sent,
            http=self.http,
            certificates=self.certificates,
            scrub_age=parts.scrub.age_s,
            relay=None if parts.ingest.relay is None else parts.ingest.relay.relay_status(),
            standby=None if parts.ingest.standby is None else parts.ingest.standby.standby_status(),
        )
        return exposition(figures, accept)

    def _read_files(self, max_size: int) -> StoreSpace | None:
        self.certificates.read()
        return metrics.measured_space(self.parts.store, max_size)


def _segment_pids(catchup: CatchupStatus | None) -> dict[str, int]:
    segments = () if catchup is None else catchup.segments
    return {f"segment-{each.number}": each.pid for each in segments if each.pid is not None}
