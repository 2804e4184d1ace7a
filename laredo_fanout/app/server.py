"""The main process of the server: starts store, ingest thread, serving processes and HTTP, and
drains them at the end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from laredo_fanout.app import compiled, options, reload
from laredo_fanout.app.archive_watch import ArchiveWatch
from laredo_fanout.app.ingest_thread import AnyIngest, IngestThread, JournalPruning
from laredo_fanout.app.logs import LogSettings, ReadinessLog, supervised
from laredo_fanout.app.processes import children
from laredo_fanout.app.processes.children import ServingChildren
from laredo_fanout.app.processes.clients import Clients
from laredo_fanout.app.processes.control_wire import WakeUps
from laredo_fanout.app.processes.scrub_schedule import ScrubSchedule
from laredo_fanout.app.processes.snapshot_schedule import SnapshotSchedule
from laredo_fanout.app.reload import Reload, ReloadRefused
from laredo_fanout.app.scrape import ServerParts
from laredo_fanout.app.status import ServerView
from laredo_fanout.batch.write_batch import OnCommit
from laredo_fanout.catchup.fall_behind import FallBehind
from laredo_fanout.config import Config
from laredo_fanout.errors import FanoutError
from laredo_fanout.ingest.supervisor import Ingest
from laredo_fanout.pg_catalog.publication import TableDiscovery
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.relay.ingest import RelayIngest
from laredo_fanout.standby import StandbyIngest
from laredo_fanout.store.errors import StoreError
from laredo_fanout.store.writer import Store
from laredo_fanout.watchdog import Watchdog
from laredo_service.http.settings import HttpSettings
from laredo_service.systemd import ServiceNotifier
from laredo_service.table_pattern import TableName

if TYPE_CHECKING:
    from laredo_service.http.server import HttpServer

FAILED = 1
STOPPED_BY_SECOND_SIGNAL = 130
_HANDOVER_PATIENCE = 10.0
_INGEST_PATIENCE = 20.0
_POLL_UNTIL_READY = 0.05
_POLL_WHILE_READY = 1.0

log = structlog.get_logger("laredo_fanout")


def run(config: Config, log_settings: LogSettings, load: Callable[[], Config]) -> int:
    """Run the server until SIGTERM or SIGINT; the process's exit code.

    ``load`` reads the configuration again, for a reload.
    """
    # A SIGHUP before the server runs must not end it: the configuration was read just now.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The server's files contain the tables' rows: no other user may read them, whatever the umask.
    os.umask(0o077)
    for warning in (*config.warnings(), *compiled.warnings()):
        log.warning(warning)
    try:
        return asyncio.run(_run(config, log_settings, load))
    except (FanoutError, SourceError, StoreError) as error:
        log.error("server failed", error=str(error))
        return FAILED


async def _run(config: Config, log_settings: LogSettings, load: Callable[[], Config]) -> int:
    with ExitStack() as held:
        ports = await _reserve_ports(config, held)
        store = held.enter_context(_open_store(config))
        return await _Server(config, store, ports, log_settings, load).run()


class _Ports(NamedTuple):
    """The ports of the serving processes; None for Connect if it isn't configured."""

    grpc: int
    connect: int | None


async def _reserve_ports(config: Config, held: ExitStack) -> _Ports:
    reserve, connect = children.reserve, config.fanout.connect
    grpc = await reserve(config.fanout.grpc.listening_host, config.port, "fanout.grpc.port")
    number = held.enter_context(grpc).getsockname()[1]
    if connect is None:
        return _Ports(number, None)
    second = await reserve(config.connect_host, connect.port, "fanout.connect.port")
    return _Ports(number, held.enter_context(second).getsockname()[1])


def _open_store(config: Config) -> Store:
    try:
        return Store.open(config.state.path, max_size=config.state.max_size)
    except OSError as error:
        raise StateUnusable(
            f"state.path {config.state.path} can't be used: {error.strerror} ({error.filename});"
            " let this user write there, or choose another directory"
        ) from error


def _fall_behind(config: Config, store: Store, watchdog: Watchdog) -> FallBehind | None:
    catchup = options.catchup_options(config)
    if catchup is None:
        return None
    return FallBehind(catchup, options.source_options(config), store, watchdog)


class StateUnusable(FanoutError):
    """The directory of the store can't be made or written."""


class _Server:
    def __init__(
        self,
        config: Config,
        store: Store,
        ports: _Ports,
        log_settings: LogSettings,
        load: Callable[[], Config],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        found = reload.known(store)
        self.configured, self.config = config, reload.expand(config, found)
        config = self.config
        self.store = store
        self.discovery = self._make_discovery(found)
        self.clients = Clients(
            config.max_clients, config.max_clients_per_identity, config.max_clients_per_client_id
        )
        self.wake_ups = WakeUps()
        self.ports = ports
        self.pruning = JournalPruning.of(config, store, self.clients)
        self.watchdog = Watchdog()
        self.fall_behind = _fall_behind(config, store, self.watchdog)
        self.ingest = IngestThread(self._make_ingest, store, self.wake_ups.notify)
        self.children = ServingChildren(
            workers=config.fanout.grpc.workers,
            state=config.state.path,
            options=options.serving_options(config, ports.grpc, ports.connect),
            clients=self.clients,
            wake_ups=self.wake_ups,
            log_settings=log_settings,
            watchdog=self.watchdog,
            request_check=self.ingest.check_catalog_soon,
            report_standby=None if self.ingest.standby is None else self.ingest.standby.report,
            report_damage=self.ingest.repair,
            crashed=self._part_crashed,
        )
        self.snapshots = SnapshotSchedule(
            config,
            self._is_shown,
            log_settings,
            self.ingest.check_catalog_soon,
            watchdog=self.watchdog,
            report_damage=self.ingest.repair,
            crashed=self._part_crashed,
        )
        self.scrub = ScrubSchedule(
            config.state,
            log_settings,
            lambda: any(record.shown for record in store.tables.values()),
            self.ingest.repair,
            watchdog=self.watchdog,
            crashed=self._part_crashed,
        )
        self.archives = ArchiveWatch(config, store, self._part_crashed)
        parts = ServerParts(
            store=store,
            clients=self.clients,
            ingest=self.ingest,
            children=self.children,
            pruning=self.pruning,
            snapshots=self.snapshots,
            scrub=self.scrub,
            archives=self.archives,
            fall_behind=self.fall_behind,
            watchdog=self.watchdog,
        )
        self.view = ServerView(config, ports.grpc, parts)
        self.reload = Reload(
            self.configured,
            config,
            found,
            load,
            parts,
            view=self.view,
            discovery=self.discovery,
            change_http=self._change_http,
        )
        self._shown_in: object = None
        self._shown: frozenset[str] = frozenset()
        self._web: HttpServer | None = None
        self._reloading: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._exit_code = 0

    def _make_ingest(self, on_commit: OnCommit) -> AnyIngest:
        config, tables = self.config, options.source_tables(self.config)
        if config.upstream is not None:
            return RelayIngest(
                options.relay_options(config.upstream, config.source_name),
                tables,
                self.store,
                on_commit,
                self.pruning.prune,
            )
        if config.standby is not None:
            return StandbyIngest(
                options.source_options(config),
                tables,
                self.store,
                on_commit,
                self.pruning.prune,
                peers=options.peer_options(config),
                rule=options.standby_options(config),
                discovery=self.discovery,
            )
        return Ingest(
            options.source_options(config),
            tables,
            self.store,
            on_commit,
            self.pruning.prune,
            change_source=self.fall_behind,
            discovery=self.discovery,
        )

    def _make_discovery(self, known: frozenset[TableName]) -> TableDiscovery | None:
        """Make the discovery of tables that match patterns; None for a relay."""
        if self.config.source is None:
            return None

        def found(names: frozenset[TableName]) -> None:
            self._loop.call_soon_threadsafe(self._follow_patterns, names)

        return TableDiscovery(
            reload.patterns(self.configured),
            known,
            self.config.source.heartbeat_interval,
            found,
        )

    def _follow_patterns(self, found: frozenset[TableName]) -> None:
        self._supervise(self.reload.follow_patterns(found), "patterns of tables")

    async def run(self) -> int:
        listener = children.listen(
            self.config.http.listening_host, self.config.http.port, "http.port"
        )
        self._catch_signals()
        notifier = ServiceNotifier()
        self.ingest.start(on_end=self._ingest_ended)
        background = [supervised(self.watchdog.run(), "watchdog", self._part_crashed)]
        self.children.start()
        self.snapshots.start()
        self.scrub.start()
        self.archives.start()
        # These imports take half a second, in which everything else starts.
        from laredo_fanout.app import http, terminal
        from laredo_fanout.app.http import LagHistory
        from laredo_service.http.server import HttpServer

        lag = LagHistory(self.ingest.status)
        web = HttpServer(
            http.application(
                problems=self.view.problems,
                unserved=self.view.unserved,
                silent=self.watchdog.suspicions,
                status=self.view.status,
                metrics=self.view.metrics,
                catch_up=None if self.fall_behind is None else self.fall_behind.ask,
                recopy=self.ingest.recopy,
                recopy_status=self.view.recopy,
                promote=None if self.ingest.standby is None else self.ingest.standby.promote,
                reload=self.reload.run,
                lag=lag,
            ),
            self.config.http,
            listener,
            self.view.http,
        )
        web.start()
        self._web = web
        # A full collection over the objects of now, which stay, would delay the ingest by 50 ms.
        gc.freeze()
        gc.enable()
        log.info(
            "server started",
            grpc_port=self.ports.grpc,
            grpc_host=self.config.fanout.grpc.listening_host,
            connect_port=self.ports.connect,
            http_port=listener.getsockname()[1],
            http_host=self.config.http.listening_host,
            state=str(self.config.state.path),
            tables=[table.name for table in self.config.tables],
        )
        background += [
            supervised(self._announce_readiness(), "readiness", self._part_crashed),
            supervised(
                notifier.run(lambda: self.children.listening > 0), "systemd", self._part_crashed
            ),
            supervised(self.view.certificates.run(), "expiry of certificates"),
            supervised(lag.run(), "lag of the last hour"),
            supervised(terminal.draw(self.view.status), "bars of copies"),
        ]
        await self._stopping.wait()
        self.view.draining = True
        notifier.stopping()
        await self._stop()
        for task in background:
            task.cancel()
        await web.stop()
        return self._exit_code

    async def _stop(self) -> None:
        """Stop, clients first: they may stay for the grace, and are served changes until then."""
        await self._hand_over()
        grace = self.children.options.listener.drain_grace_s
        log.info("drain started", clients=len(self.clients), grace_s=grace)
        await asyncio.gather(
            self.snapshots.stop(), self.scrub.stop(), self.archives.stop(), self.children.drain()
        )
        if not await asyncio.to_thread(self.ingest.stop, _INGEST_PATIENCE):
            log.error("ingest abandoned", patience_s=_INGEST_PATIENCE)
            # The store can't be closed while the ingest uses it; confirmed changes are durable.
            os._exit(FAILED)
        if self.ingest.crash is not None:
            self._exit_code = FAILED
        log.info("server stopped", position=self.view.position_text, exit_code=self._exit_code)

    async def _hand_over(self) -> None:
        """Have a standby take over the slot before clients leave, so that they miss no change."""
        standby = self.ingest.standby
        if standby is None:
            return
        try:
            # Shielded: the ingest resolves the future, which fails once it is cancelled.
            handed = asyncio.shield(asyncio.wrap_future(standby.hand_over()))
            await asyncio.wait_for(handed, _HANDOVER_PATIENCE)
        except TimeoutError:
            log.warning("slot not handed over in time", patience_s=_HANDOVER_PATIENCE)

    async def _announce_readiness(self) -> None:
        """Log when the server becomes ready, and when and why it no longer is; the serving
        processes answer probes with it."""
        readiness, was_ready = ReadinessLog(time.monotonic()), None
        while True:
            problems = self.view.problems()
            readiness.note(problems, time.monotonic())
            if was_ready != (not problems):
                was_ready = not problems
                self.children.update_ready(was_ready)
            await asyncio.sleep(_POLL_UNTIL_READY if problems else _POLL_WHILE_READY)

    def _part_crashed(self, what: str, why: BaseException) -> None:
        """End the server with an exit code for its supervisor, which restarts it."""
        self._exit_code = FAILED
        self._stopping.set()

    def _is_shown(self, name: str) -> bool:
        tables = self.store.tables
        # Each commit brings another dict; every table's schedule asks five times a second.
        if tables is not self._shown_in:
            self._shown_in = tables
            self._shown = frozenset(each.qualified for each in tables.values() if each.shown)
        return name in self._shown

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload_signalled)

    def _change_http(self, settings: HttpSettings) -> None:
        if self._web is not None:
            self._web.change(settings)

    def _reload_signalled(self) -> None:
        log.info("signal received", signal="SIGHUP")
        self._supervise(self._reload(), "reload")

    def _supervise(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = supervised(work, what, self._part_crashed)
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _reload(self) -> None:
        with suppress(ReloadRefused):  # it is logged
            await self.reload.run()

    def _signalled(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            log.warning("second signal received", signal=number.name)
            # Nothing is lost: confirmed changes are durable, and serving processes notice the end.
            os._exit(STOPPED_BY_SECOND_SIGNAL)
        log.info("signal received", signal=number.name)
        self._stopping.set()

    def _ingest_ended(self) -> None:
        """Stop the server; called in the ingest's thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)
