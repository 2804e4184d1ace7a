"""The task behind both clients: it keeps a replica of one table up to date with the server.

It loads the local snapshot, applies the subscription's events to the replica, passes the
differences to the listeners, and saves the local snapshot, by a timer and at the end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import structlog

from laredo_fanout.client.errors import (
    ClientError,
    ClientStopped,
    LocalSnapshotUnusable,
    NotReadyInTime,
    ProtocolViolation,
    StreamError,
)
from laredo_fanout.client.events import (
    Changes,
    Event,
    Handshake,
    Heartbeat,
    SchemaChange,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRows,
)
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.stream import SyncOptions
from laredo_fanout.client.stream.subscription import Observer, Subscription
from laredo_fanout.client.table.local_snapshot import LocalSnapshot, SnapshotFile
from laredo_fanout.client.table.replica import Difference, Replica
from laredo_model.errors import ModelError
from laredo_model.retry import Backoff

log = structlog.get_logger(__name__)

_NOWHERE = 1 << 64  # beyond every position

Deliver = Callable[[Iterable[Difference]], Awaitable[None]]


class Follower(Observer):
    """Follows one table until it is stopped, or until an error that no retry can cure.

    ``wanted`` returns whether there are listeners, ``deliver`` takes the differences, in order; the
    stream waits for it. ``ended`` is called with the error that ended it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: SyncOptions,
        replica: Replica,
        *,
        file: SnapshotFile | None,
        save_interval: float,
        backoff: Backoff | None,
        wanted: Callable[[], bool],
        deliver: Deliver,
        ended: Callable[[BaseException], None],
    ) -> None:
        self._endpoint = endpoint
        self._options = options
        self._replica = replica
        self._file = file
        self._save_interval = save_interval
        self._backoff = backoff
        self._wanted = wanted
        self._deliver = deliver
        self._ended = ended
        self._log = log.bind(server=endpoint.server, table=options.table)
        self._ready = asyncio.Event()
        self._greeting: Handshake | None = None
        self._stream_sequence = -1
        self._following: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._saved_version = -1
        self.error: BaseException | None = None
        self.last_error: StreamError | None = None
        self.disconnects = 0

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._replica.begin_session()
        self._following = asyncio.create_task(self._follow())
        if self._file is not None:
            self._saving = asyncio.create_task(self._save_by_timer())

    async def stop(self) -> None:
        """End the stream and save the local snapshot."""
        self._stopping.set()
        self._replica.begin_session()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._saving is not None:
            # A thread that writes the file can't be cancelled, and two must not write it at once.
            await asyncio.wait([self._saving])
        if self.error is None:
            self.error = ClientStopped("the client was stopped")
        self._ready.set()
        await self._save()

    async def await_ready(self, timeout: float | None) -> None:
        """Wait until the rows are those that the server had when it was asked, or later.

        :raises NotReadyInTime: after ``timeout`` seconds.
        :raises ClientError: what ended the client for good.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            raise NotReadyInTime(
                self._options.table, self._endpoint.server, timeout or 0, self.last_error
            ) from self.last_error
        if self.error is not None:
            raise self.error

    def connected(self, handshake: Handshake) -> None:
        """Log the stream, as an :class:`Observer`."""
        self._log.info("connected", mode=handshake.mode.name, sequence=handshake.sequence)

    def disconnected(self, error: StreamError, delay: float) -> None:
        """Keep the error, as an :class:`Observer`."""
        self.last_error = error
        self.disconnects += 1

    async def _follow(self) -> None:
        try:
            await self._load()
            reached = self._replica.reached
            options = SyncOptions(
                self._options.table,
                self._options.client_id,
                reached.position,
                reached.history,
                reached.sequence,
                self._options.filters,
            )
            subscription = Subscription(
                self._endpoint, options, backoff=self._backoff, observer=self
            )
            async with subscription as events:
                async for event in events:
                    if isinstance(event, Handshake) and self._replica.needs_snapshot(event):
                        subscription.start_over()
                    else:
                        await self._apply(event)
        except ClientError as fatal:
            self._end(fatal)
        except ModelError as wrong:
            self._end(ProtocolViolation(self._endpoint.server, f"sent what is no row: {wrong}"))
        except Exception as bug:
            log.exception("following failed", table=self._options.table)
            self._end(bug)

    def _end(self, error: Exception) -> None:
        self._log.error("following ended", error=str(error), kind=type(error).__name__)
        self.error = error
        self._ready.set()
        self._ended(error)

    async def _apply(self, event: Event) -> None:
        replica = self._replica
        if isinstance(event, Changes):
            differences = replica.apply(event, differences=self._wanted())
            if differences:
                await self._deliver(differences)
            self._stream_sequence = replica.reached.sequence or 0
        elif isinstance(event, SnapshotRows):
            replica.add_rows(event)
        elif isinstance(event, SnapshotEnd):
            # Indexes over a large table take seconds; other clients share this loop.
            found = await asyncio.to_thread(replica.show, replica.end_snapshot(event))
            if self._wanted():
                await self._deliver(found)
            self._ready.set()
        elif isinstance(event, Heartbeat):
            replica.heartbeat(event)
        elif isinstance(event, Handshake):
            self._greeting, self._stream_sequence = event, -1
            replica.begin_stream(event)
        elif isinstance(event, SnapshotBegin):
            replica.begin_snapshot()
        elif isinstance(event, SchemaChange):
            replica.change_schema(event)
        self._note_ready()

    def _note_ready(self) -> None:
        """A resumed client is ready once it has reached the position of the handshake."""
        greeting, replica = self._greeting, self._replica
        if self._ready.is_set() or greeting is None or greeting.snapshot_follows:
            return
        position = replica.reached.position
        if (
            greeting.resume_from_sequence > greeting.sequence
            or self._stream_sequence >= greeting.sequence
            or (position is not None and position >= (greeting.position or _NOWHERE))
        ):
            self._ready.set()

    async def _load(self) -> None:
        if self._file is None or self._replica.whole:
            return
        try:
            saved = await asyncio.to_thread(self._file.load)
        except LocalSnapshotUnusable as unusable:
            self._log.warning("starting without the local snapshot", reason=str(unusable))
            return
        if saved is None:
            return
        rows = dict(zip(saved.keys, saved.lines, strict=True))
        restored = self._replica.restored(rows, saved.columns, saved.reached)
        found = await asyncio.to_thread(self._replica.show, restored)
        self._saved_version = self._replica.version
        if self._wanted():
            await self._deliver(found)

    async def _save_by_timer(self) -> None:
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._save_interval):
                    await self._stopping.wait()
            if not self._stopping.is_set():
                await self._save()

    async def _save(self) -> None:
        replica, file = self._replica, self._file
        if file is None or not replica.whole or replica.version == self._saved_version:
            return
        version = replica.version
        snapshot = LocalSnapshot(*replica.freeze())
        try:
            await asyncio.to_thread(file.save, snapshot)
        except OSError as refused:
            self._log.error(
                "can't save the local snapshot", path=str(file.path), error=str(refused)
            )
            return
        self._saved_version = version
