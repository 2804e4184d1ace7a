"""The process: every table's writer, the cuts, HTTP, and what signals mean."""

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

import structlog

from laredo_snapshotter import http
from laredo_snapshotter.config import HttpBlock, TableConfig
from laredo_snapshotter.cuts import cut_each
from laredo_snapshotter.destinations import Stores
from laredo_snapshotter.errors import PortTaken
from laredo_snapshotter.metrics import Metrics, TableCounters
from laredo_snapshotter.status import TableStatus
from laredo_snapshotter.table import TableWriter

log = structlog.get_logger(__name__)

HANG_S = 10.0
"""What a table's writer may take to end, beside its last diff."""


class Service:
    """Everything that runs; :meth:`run` it once, on the event loop that it was made on."""

    def __init__(
        self, tables: Sequence[TableConfig], settings: HttpBlock, flush_timeout: float
    ) -> None:
        """``flush_timeout``: seconds that each table's last diff may take."""
        self._settings = settings
        self._flush_timeout = flush_timeout
        self._metrics = Metrics(self.statuses)
        stores = Stores(self._metrics.called)
        self._writers = {
            table.name: TableWriter(
                table, TableCounters(self._metrics, table.name), stores, flush_timeout
            )
            for table in tables
        }
        self._stopping = asyncio.Event()

    def statuses(self) -> list[TableStatus]:
        """Every table's."""
        return [writer.status() for writer in self._writers.values()]

    def request_snapshots(self, tables: Sequence[str]) -> Mapping[str, "asyncio.Future[int]"]:
        """Ask for a new base of each; the futures bring the epochs once committed.

        :raises SnapshotNotReady: if one of them can't make any; then none is asked.
        """
        now = datetime.now(UTC)
        for table in tables:
            self._writers[table].refuse_if_final()
        return {table: self._writers[table].request_snapshot(now) for table in tables}

    async def run(self) -> int:
        """Write until SIGTERM or SIGINT; the exit code: 0 if every last diff is in its archive.

        :raises PortTaken: if the HTTP port can't be listened on.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        server, serving = self._serve()
        log.info(
            "started",
            version=version("laredo-snapshotter"),
            http=f"{self._settings.host}:{server.port}",
            tables=list(self._writers),
        )
        cutting = [
            asyncio.create_task(cut_each(interval, writers, clock=time.monotonic))
            for interval, writers in self._by_interval().items()
        ]
        running = [asyncio.create_task(writer.run()) for writer in self._writers.values()]
        await self._stopping.wait()
        for task in cutting:
            task.cancel()
        for writer in self._writers.values():
            writer.stop()
        # A destination that hangs hangs its threads too: they aren't waited for.
        _, hanging = await asyncio.wait(running, timeout=self._flush_timeout + HANG_S)
        server.should_exit = True
        await serving
        return self._exit_code() or int(bool(hanging))

    def _serve(self) -> tuple[http.Server, "asyncio.Task[None]"]:
        application = http.app(self, self._metrics, self._settings, version("laredo-snapshotter"))
        server = http.Server(application)
        try:
            listening = server.listen(self._settings)
        except OSError as refused:
            raise PortTaken(self._settings.host, self._settings.port, refused) from refused
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        return server, serving

    def _by_interval(self) -> Mapping[float, list[TableWriter]]:
        groups: dict[float, list[TableWriter]] = defaultdict(list)
        for writer in self._writers.values():
            groups[writer.config.diff.interval].append(writer)
        return groups

    def _stop(self, number: int) -> None:
        if self._stopping.is_set():
            # Nothing is lost: the next start goes on at the archive's head.
            log.warning("second signal: ends without the last diff")
            os._exit(1)
        log.info("stopping", signal=signal.Signals(number).name)
        self._stopping.set()

    def _exit_code(self) -> int:
        unflushed = {
            name: writer.flush_problem
            for name, writer in self._writers.items()
            if writer.flush_problem is not None
        }
        for name, problem in unflushed.items():
            log.error("not flushed; the next start goes on at the head", table=name, error=problem)
        log.info("stopped")
        return 1 if unflushed else 0
