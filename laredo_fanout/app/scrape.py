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
from laredo_fanout.app.snapshot_schedule import SnapshotSchedule
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
class Scrape:
    """The parts of the running server that have figures."""

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
    http: HttpCounts
    certificates: CertificateWatch
    #: The record of a configured table that clients see, or will.
    record: Callable[[str], TableRecord | None]

    async def answer(self, config: Config, accept: str) -> Exposition:
        """The metrics now, in the format that the request's Accept header asks for."""
        names = [table.name for table in config.tables]
        found = {name: self.record(name) for name in names}
        tables = {name: record for name, record in found.items() if record is not None}
        clients: dict[str, list[ClientState]] = {name: [] for name in names}
        for client in self.clients.of():
            clients.setdefault(client.info.table, []).append(client)
        limits = {t.name: t.target.client_buffer.max_size for t in config.tables}
        store = await asyncio.to_thread(self._read_files, config.state.max_size)
        client_buffers = await asyncio.to_thread(
            metrics.measured, self.store.reader(), tables, clients, limits
        )
        catchup = None if self.fall_behind is None else self.fall_behind.status()
        figures = Figures(
            source_name=config.source_name,
            source=self.ingest.status(),
            tables=tables,
            clients=clients,
            buffers=client_buffers,
            max_clients=config.max_clients,
            disconnects=self.clients.left(),
            snapshots={name: self.snapshots.written(name) for name in names},
            store=store,
            pruned=self.pruning.pruned,
            serving_restarts=self.children.restarts,
            serving_spawn_failures=self.children.spawn_failures,
            hangs=dict(self.watchdog.hangs),
            ingest_restarts=self.ingest.given_up,
            replays=self.children.replays,
            archives=self.archives.checks,
            catchup=catchup,
            pids={
                **self.children.named_pids,
                **self.snapshots.named_pids,
                **self.scrub.named_pids,
                **_segment_pids(catchup),
            },
            sent=self.children.sent,
            http=self.http,
            certificates=self.certificates,
            scrub_age=self.scrub.age_s,
            relay=None if self.ingest.relay is None else self.ingest.relay.relay_status(),
            standby=None if self.ingest.standby is None else self.ingest.standby.standby_status(),
        )
        return exposition(figures, accept)

    def _read_files(self, max_size: int) -> StoreSpace | None:
        self.certificates.read()
        return metrics.measured_space(self.store, max_size)


def _segment_pids(catchup: CatchupStatus | None) -> dict[str, int]:
    segments = () if catchup is None else catchup.segments
    return {f"segment-{each.number}": each.pid for each in segments if each.pid is not None}
