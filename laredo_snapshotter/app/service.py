"""The laredo-snapshotter process: one writer for each table, the cuts, HTTP, and signals."""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog

from laredo_archive.manifest.model import Manifest
from laredo_service import build
from laredo_service.certificates import CertificateWatch
from laredo_service.http import settings as settings_
from laredo_service.http.connections import HttpCounts
from laredo_service.http.server import HttpServer
from laredo_service.http.settings import HttpSettings
from laredo_service.systemd import ServiceNotifier, supervised
from laredo_snapshotter import config
from laredo_snapshotter.app import http
from laredo_snapshotter.app.reload import RunningWriter, ServedPatterns, TableWriters, WriterReload
from laredo_snapshotter.config import Found, SnapshotterBlock, TableConfig
from laredo_snapshotter.destinations import Stores
from laredo_snapshotter.errors import PortTaken, ReloadImpossible
from laredo_snapshotter.metrics import Metrics
from laredo_snapshotter.status import TableWriterStatus
from laredo_snapshotter.table import status

log = structlog.get_logger(__name__)

CRASHED = 1
"""Exit code: a defect ended a part of the program, so that its supervisor starts it again."""
NOT_WRITTEN = 3
"""Exit code: received changes aren't in their archive."""


class Service:
    """The process's writers, cuts and HTTP server.

    :meth:`run` it once, on the event loop that it was made on.
    """

    def __init__(
        self,
        block: SnapshotterBlock,
        flush_timeout: float,
        load: Callable[[], SnapshotterBlock],
    ) -> None:
        """``flush_timeout``: seconds in which received changes are verified and written at the
        end. ``load`` reads the configuration again, for a reload.
        """
        settings, patterns = block.http, config.patterns(block)
        tables = config.matching_tables(block, {})
        self._settings = settings
        self._http_counts = HttpCounts()
        self._certificates = CertificateWatch(status.configured(tables))
        self._metrics = Metrics(self.statuses, self._http_counts, self._certificates)
        self._writers = TableWriters(
            self._metrics, Stores(self._metrics.called), flush_timeout, self._supervised
        )
        # An error in a table's outputs ends the program here, before it does anything.
        self._made = [self._writers.make(table) for table in tables]
        self._server: HttpServer | None = None
        self._stopping = asyncio.Event()
        self._crashed = False
        self._patterns = ServedPatterns(patterns, self._follow_patterns)
        self._reload = WriterReload(
            block,
            tables,
            load,
            RunningWriter(
                self._writers,
                self._change_http,
                self._forget,
                self._changed,
                self._stopping.is_set,
                self._patterns.change,
            ),
        )
        self._reloading: set[asyncio.Task[None]] = set()

    def statuses(self) -> list[TableWriterStatus]:
        """The status of every table."""
        return [status.of(writer) for writer in self._writers.all]

    def manifest(self, table: str) -> Manifest | None:
        """The manifest of ``table`` as last committed everywhere; None before it is claimed."""
        archive = self._writers[table].archive
        return None if archive is None else archive.manifest

    def request_snapshot(self, table: str) -> "asyncio.Future[int]":
        """Ask for a new base of ``table``; the future brings its epoch once committed.

        :raises SnapshotNotReady: if it can't make any.
        """
        return self._writers[table].request_snapshot()

    async def reload(self) -> dict[str, Any]:
        """Take up the configuration as it is now; return what was done.

        :raises ReloadImpossible: if it is wrong; nothing has changed.
        """
        return await self._reload.run()

    async def _follow_patterns(self, found: Found) -> None:
        await self._reload.follow_patterns(found)

    @property
    def waiting_patterns(self) -> dict[str, str]:
        """The patterns whose server hasn't answered yet: path and reason."""
        return self._patterns.waiting

    async def run(self) -> int:
        """Write until SIGTERM or SIGINT, or until a part crashes, and return the exit code.

        It is 0 if nothing crashed and all received changes are written.

        :raises PortTaken: if the HTTP port can't be listened on.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_signalled)
        notifier = ServiceNotifier()
        listener = self._listen()
        asks_token = self._settings.token is not None
        application = http.app(self, self._metrics, asks_token=asks_token)
        self._server = server = HttpServer(application, self._settings, listener, self._http_counts)
        server.start()
        for danger in self._settings.dangers:
            log.warning(danger)
        log.info(
            "writer started",
            version=build.version(),
            commit=build.commit(),
            http=settings_.local_url(self._settings.listening_host, listener.getsockname()[1]),
            tables=[writer.config.name for writer in self._made],
        )
        background = [
            self._supervised(self._certificates.run(), "expiry of certificates"),
            self._supervised(notifier.run(lambda: True), "systemd"),
            self._supervised(self._patterns.run(), "patterns of tables"),
        ]
        for writer in self._made:
            self._writers.begin(writer)
        await self._stopping.wait()
        notifier.stopping()
        for task in background:
            task.cancel()
        await self._writers.stop()
        await server.stop()
        return self._exit_code()

    def _supervised(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        return supervised(work, what, self._part_crashed, log, "a part of the writer crashed")

    def _part_crashed(self, what: str, why: BaseException) -> None:
        """End the program: without its cuts it would write nothing and seem healthy."""
        self._crashed = True
        self._stopping.set()

    def _listen(self) -> socket.socket:
        host, port = self._settings.listening_host, self._settings.port
        try:
            return settings_.listen(host, port)
        except OSError as refused:
            raise PortTaken(host, port, refused) from refused

    def _reload_signalled(self) -> None:
        log.info("configuration reload requested", signal="SIGHUP")
        task = asyncio.create_task(self._reload_and_log())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _reload_and_log(self) -> None:
        with suppress(ReloadImpossible):  # it is logged
            await self.reload()

    def _change_http(self, settings: HttpSettings) -> None:
        if self._server is not None:
            self._server.change(settings)

    def _forget(self, tables: list[str]) -> None:
        for table in tables:
            self._metrics.forget(table)

    def _changed(self, tables: list[TableConfig]) -> None:
        self._certificates.change(status.configured(tables))

    def _stop(self, number: int) -> None:
        if self._stopping.is_set():
            log.warning("shutdown cut short by a second signal", signal=signal.Signals(number).name)
            code = self._exit_code()
            sys.stderr.flush()
            os._exit(code)
        log.info("shutdown started", signal=signal.Signals(number).name)
        self._stopping.set()

    def _exit_code(self) -> int:
        """Log the tables that have unwritten changes, and return the exit code."""
        unwritten = {writer.config.name: writer.left for writer in self._writers.all if writer.left}
        for name, left in unwritten.items():
            left.log(name)
        log.info("writer stopped", not_written=list(unwritten))
        if unwritten:
            return NOT_WRITTEN
        return CRASHED if self._crashed else 0


# The C library's allocator, configured to return memory to the system.
#
# Without this glibc keeps an arena for every gRPC thread, and raises the size up to which freed
# memory stays with the process once messages of a megabyte have come by: 120 MB of anonymous memory
# instead of 80 in a catch-up [measured]. https://man7.org/linux/man-pages/man3/mallopt.3.html

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_SETTINGS = {_ARENA_MAX: 2, _MMAP_THRESHOLD: 128 * 1024, _TRIM_THRESHOLD: 128 * 1024}


def give_back() -> None:
    """Configure the allocator of this process, before its threads begin."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # not glibc
    for option, value in _SETTINGS.items():
        mallopt(option, value)
