"""The laredo-snapshotter process: one writer a table, the cuts, HTTP, and what signals mean."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

import structlog

from laredo_archive.manifest.model import Manifest
from laredo_model.files.certificates import CertificateWatch
from laredo_model.http import exposure
from laredo_model.http.counts import HttpCounts
from laredo_model.http.server import HttpServer
from laredo_model.service_notify import ServiceNotifier
from laredo_snapshotter.app import http
from laredo_snapshotter.commit.destinations import Stores
from laredo_snapshotter.config import HttpBlock, TableConfig
from laredo_snapshotter.diff.cuts import cut_each
from laredo_snapshotter.errors import PortTaken
from laredo_snapshotter.metrics import Metrics, TableCounters
from laredo_snapshotter.status import TableWriterStatus
from laredo_snapshotter.table import certificates
from laredo_snapshotter.table import status as table_status
from laredo_snapshotter.table.writer import TableWriter

log = structlog.get_logger(__name__)

HANG_S = 7.0
"""What a table's writer may take to end, beside its last diffs: with 20 s for those all is over
before the 30 s that Kubernetes waits."""
NOT_WRITTEN = 3
"""Exit code: something that was taken isn't in its archive."""


class Service:
    """The process's writers, cuts and HTTP server; :meth:`run` it once, on the event loop that it
    was made on."""

    def __init__(
        self, tables: Sequence[TableConfig], settings: HttpBlock, flush_timeout: float
    ) -> None:
        """``flush_timeout``: seconds that what was taken may take to be verified and written."""
        self._settings = settings
        self._flush_timeout = flush_timeout
        self._http_counts = HttpCounts()
        self._certificates = CertificateWatch(certificates.configured(tables))
        self._metrics = Metrics(self.statuses, self._http_counts, self._certificates)
        stores = Stores(self._metrics.called)
        self._writers = {
            table.name: TableWriter(
                table, TableCounters(self._metrics, table.name), stores, flush_timeout
            )
            for table in tables
        }
        self._stopping = asyncio.Event()

    def statuses(self) -> list[TableWriterStatus]:
        """Every table's."""
        return [table_status.of(writer) for writer in self._writers.values()]

    def manifest(self, table: str) -> Manifest | None:
        """The archive's of ``table``, as last committed everywhere; None before it is claimed."""
        archive = self._writers[table].archive
        return None if archive is None else archive.manifest

    def request_snapshot(self, table: str) -> "asyncio.Future[int]":
        """Ask for a new base of ``table``; the future brings its epoch once committed.

        :raises SnapshotNotReady: if it can't make any.
        """
        return self._writers[table].request_snapshot(datetime.now(UTC))

    async def run(self) -> int:
        """Write until SIGTERM or SIGINT; the exit code: 0 if all that was taken is written.

        :raises PortTaken: if the HTTP port can't be listened on.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        notifier = ServiceNotifier()
        listener = self._listen()
        application = http.app(
            self,
            self._metrics,
            version("laredo-snapshotter"),
            asks_token=self._settings.token is not None,
        )
        server = HttpServer(application, self._settings, listener, self._http_counts)
        server.start()
        for danger in self._settings.dangers:
            log.warning(danger)
        log.info(
            "started",
            version=version("laredo-snapshotter"),
            http=exposure.local_url(self._settings.listening_host, listener.getsockname()[1]),
            tables=list(self._writers),
        )
        cutting = [
            asyncio.create_task(cut_each(interval, writers, clock=time.monotonic))
            for interval, writers in self._by_interval().items()
        ]
        cutting.append(asyncio.create_task(self._certificates.run()))
        cutting.append(asyncio.create_task(notifier.run(lambda: True)))
        running = [asyncio.create_task(writer.run()) for writer in self._writers.values()]
        await self._stopping.wait()
        notifier.stopping()
        for task in cutting:
            task.cancel()
        for writer in self._writers.values():
            writer.stop()
        # A destination that hangs hangs its threads too: they aren't waited for.
        await asyncio.wait(running, timeout=self._flush_timeout + HANG_S)
        await server.stop()
        return self._exit_code()

    def _listen(self) -> socket.socket:
        host, port = self._settings.listening_host, self._settings.port
        try:
            return exposure.listen(host, port)
        except OSError as refused:
            raise PortTaken(host, port, refused) from refused

    def _by_interval(self) -> Mapping[float, list[TableWriter]]:
        groups: dict[float, list[TableWriter]] = defaultdict(list)
        for writer in self._writers.values():
            groups[writer.config.diff.interval].append(writer)
        return groups

    def _stop(self, number: int) -> None:
        if self._stopping.is_set():
            log.warning("second signal: ends at once", signal=signal.Signals(number).name)
            code = self._exit_code()
            sys.stderr.flush()
            os._exit(code)
        log.info("stopping", signal=signal.Signals(number).name)
        self._stopping.set()

    def _exit_code(self) -> int:
        """After a line for each table of which something isn't written."""
        unwritten = {name: writer.left for name, writer in self._writers.items() if writer.left}
        for name, left in unwritten.items():
            left.log(name)
        log.info("stopped", not_written=list(unwritten))
        return NOT_WRITTEN if unwritten else 0
