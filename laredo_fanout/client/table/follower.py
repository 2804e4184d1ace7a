"""The task behind both clients: it keeps a replica of one table up to date with the server.

It loads the local snapshot, applies the subscription's events to the replica, passes the
differences to the listeners, and saves the local snapshot, by a timer and at the end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from time import sleep

from laredo_fanout.client.errors import (
    BadField,
    ClientError,
    ClientStopped,
    LocalSnapshotUnusable,
    NotReadyInTime,
    NotUnique,
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
from laredo_fanout.client.loop_share import LoopShare
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.servers import Servers
from laredo_fanout.client.stream.stream import Observer, Subscription, SyncOptions
from laredo_fanout.client.table.local_snapshot import LocalSnapshot, SnapshotFile
from laredo_fanout.client.table.replica import Difference, Replica, ReplicaSnapshot, pieces
from laredo_fanout.client.table.rows import RowView
from laredo_model.errors import ModelError
from laredo_service.log import Log
from laredo_service.retry import Backoff

log = Log(__name__)

_NOWHERE = 1 << 64  # beyond every position
_BLOCK = 500

Deliver = Callable[[Iterable[Difference]], Awaitable[None]]


class _Locks:
    """The locks of a client's rows and file, which its next follower shares."""

    def __init__(self) -> None:
        #: Held while the rows change, or all of them are read.
        self.rows = asyncio.Lock()
        #: Held from the reading of the rows to the end of their writing.
        self.file = asyncio.Lock()


class Follower(Observer):
    """Follows one table until it is stopped, or until an error that no retry can cure.

    ``wanted`` returns whether there are listeners. ``deliver`` takes the differences, in order; the
    stream waits for it. ``at_once`` is the number of a transaction's changes to apply without a
    pause, if there are no listeners and indexes. ``ended`` is called with the error that ended it.
    ``former`` is the replica's last follower, which may still save the rows.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: SyncOptions,
        replica: Replica,
        *,
        servers: Servers,
        file: SnapshotFile | None,
        save_interval: float,
        backoff: Backoff | None,
        wanted: Callable[[], bool],
        deliver: Deliver,
        at_once: int,
        ended: Callable[[BaseException], None],
        former: "Follower | None",
    ) -> None:
        self._endpoint = endpoint
        self._options = options
        self._replica = replica
        self._servers = servers
        self._file = file
        self._save_interval = save_interval
        self._backoff = backoff
        self._wanted = wanted
        self._deliver = deliver
        self._at_once = at_once
        self._ended = ended
        self._log = log.bind(table=options.table)
        self._subscription: Subscription | None = None
        self._share = LoopShare.of_running_loop()
        # A lock belongs to a loop. A follower of another loop has ended with that.
        same_loop = former is not None and former._share is self._share
        self._locks: _Locks = former._locks if former is not None and same_loop else _Locks()
        self._ready = asyncio.Event()
        self._waiting: list[asyncio.Future[RowView]] = []
        self._greeting: Handshake | None = None
        self._stream_sequence = -1
        self._following: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._saved_version = -1
        self.error: BaseException | None = None
        self.last_error: StreamError | None = None
        self.disconnects = 0

    @property
    def server(self) -> str:
        """The server that the stream comes from, or that is tried."""
        if self._subscription is None:
            return self._servers.answered.server
        return self._subscription.server

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._following = asyncio.create_task(self._follow())
        if self._file is not None:
            self._saving = asyncio.create_task(self._save_by_timer())

    async def stop(self) -> None:
        """End the stream and save the local snapshot."""
        self._stopping.set()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._saving is not None:
            # A thread that writes the file can't be cancelled, and two must not write it at once.
            await asyncio.wait([self._saving])
        if self.error is None:
            self.error = ClientStopped("the client was stopped")
            self._ended(self.error)
        self._ready.set()
        self._give_views()
        await self._save()

    async def view(self, timeout: float | None, *, by_listener: bool = False) -> RowView:
        """The rows at one position, after the end of a transaction that is in them in part.

        :raises NotReadyInTime: if that doesn't end within ``timeout`` seconds.
        :raises ClientError: what ended the client in the middle of it, or if a listener calls it
            then.
        """
        view = self._replica.view()
        if view is not None:
            return view
        if self.error is not None:
            raise self.error
        if self._waits_for_caller(by_listener):
            raise ClientError(
                f"{self._options.table}: rows() and to_arrow() can't wait in a listener for the end"
                " of a transaction that comes in parts, as the stream waits for the listener; call"
                " rows() once before the transaction, so that the rows before it are kept, or call"
                " it outside the listener"
            )
        waiting: asyncio.Future[RowView] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(timeout):
                return await waiting
        except TimeoutError:
            raise self._too_late(timeout) from self.last_error

    def _give_views(self) -> None:
        """Answer calls that wait for a transaction's end, if it has come or never will."""
        while self._waiting:
            view = self._replica.view()
            if view is None and self.error is None:
                return
            waiting = self._waiting.pop()
            if waiting.done():
                continue
            if view is not None:
                waiting.set_result(view)
            elif self.error is not None:
                waiting.set_exception(self.error)

    def _waits_for_caller(self, by_listener: bool) -> bool:
        """True if the stream goes on only when the caller, a listener, has returned."""
        return by_listener or asyncio.current_task() is self._following

    async def await_ready(self, timeout: float | None, *, by_listener: bool = False) -> None:
        """Wait until the rows are those that the server had when it was asked, or later.

        :raises NotReadyInTime: after ``timeout`` seconds.
        :raises ClientError: what ended the client for good, or if a listener would wait.
        """
        if not self._ready.is_set() and self._waits_for_caller(by_listener):
            raise ClientError(
                f"{self._options.table}: await_ready() can't wait in a listener, as the stream"
                " waits for the listener; call it outside the listener"
            )
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            raise self._too_late(timeout) from self.last_error
        if self.error is not None:
            raise self.error

    def _too_late(self, timeout: float | None) -> NotReadyInTime:
        return NotReadyInTime(
            self._options.table, str(self._servers), timeout or 0, self.last_error
        )

    def connected(self, handshake: Handshake) -> None:
        """Log the stream, as an :class:`Observer`."""
        self._log.info(
            "connected",
            server=self.server,
            mode=handshake.mode.name,
            sequence=handshake.sequence,
        )

    def disconnected(self, error: StreamError, delay: float) -> None:
        """Keep the error, as an :class:`Observer`."""
        self.last_error = error
        self.disconnects += 1

    async def _follow(self) -> None:
        try:
            await self._load()
            reached = self._replica.reached
            options = replace(
                self._options,
                position=reached.position,
                history=reached.history,
                sequence=reached.sequence,
            )
            subscription = self._subscription = Subscription(
                self._endpoint,
                options,
                backoff=self._backoff,
                observer=self,
                servers=self._servers,
            )
            async with subscription as events:
                async for event in events:
                    if isinstance(event, Handshake) and self._replica.needs_snapshot(event):
                        subscription.start_over()
                        continue
                    if isinstance(event, Handshake) and not (
                        event.snapshot_follows or self._replica.whole
                    ):
                        subscription.reject(f"offered {event.mode.name} to a client without rows")
                        continue
                    try:
                        await self._apply(event)
                    except ModelError as wrong:
                        # A part of the event may be in the rows: a snapshot repairs them.
                        self._replica.start_over()
                        subscription.reject(f"sent an invalid row: {wrong}")
        except NotUnique as error:
            # A later transaction may cure it: the next start takes the rows as they are then.
            self._replica.start_over()
            self._end(error)
        except ClientError as fatal:
            self._end(fatal)
        except Exception as bug:
            log.exception("following failed", table=self._options.table)
            self._end(bug)

    def _end(self, error: Exception) -> None:
        self._log.error("following ended", error=str(error), kind=type(error).__name__)
        self.error = error
        # A client that is started again has another timer.
        self._stopping.set()
        self._ready.set()
        self._give_views()
        self._ended(error)

    async def _apply(self, event: Event) -> None:
        replica = self._replica
        if isinstance(event, Changes):
            await self._apply_changes(event)
            self._stream_sequence = replica.reached.sequence or 0
        elif isinstance(event, SnapshotRows):
            await self._take(replica.add_rows(event))
        elif isinstance(event, SnapshotEnd):
            await self._show(replica.end_snapshot(event))
            self._ready.set()
        elif isinstance(event, Heartbeat):
            replica.heartbeat(event)
        elif isinstance(event, Handshake):
            self._greeting, self._stream_sequence = event, -1
            await self._take(replica.begin_stream(event))
            await self._take(replica.free())
        elif isinstance(event, SnapshotBegin):
            replica.begin_snapshot()
        elif isinstance(event, SchemaChange):
            replica.change_schema(event)
        self._note_ready()

    async def _apply_changes(self, changes: Changes) -> None:
        # Piece by piece of whole transactions, so that a small one is seen as a whole.
        wanted = self._wanted()
        weight = 1 + 6 * self._replica.indexes + 2 * wanted
        most = max(1, self._at_once // weight)
        for piece in pieces(changes, most):
            # ``most`` changes take about a slice.
            await self._share.pause_before(len(piece) / most)
            async with self._locks.rows:
                differences = self._replica.apply(piece, differences=wanted)
            self._give_views()
            if differences:
                await self._deliver(differences)
            await self._share.pause_if_used()
        await self._take(self._replica.free())

    async def _show(self, snapshot: ReplicaSnapshot) -> None:
        async with self._locks.rows:
            found = self._replica.show(snapshot)
        self._give_views()
        if self._wanted():
            await self._deliver(found)
        await self._take(self._replica.free())

    async def _take(self, steps: Iterator[None]) -> None:
        """Take steps that are short, and let other tasks run between them."""
        for _ in steps:
            await self._share.pause_if_used()

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
            self._log.warning("local snapshot not used", reason=str(unusable))
            return
        if saved is None:
            return
        replica = self._replica
        try:
            replica.begin_restoring(saved.columns)
            # Blocks from the end, so that each is freed when it is taken; rows stay in their order.
            saved.keys.reverse()
            saved.lines.reverse()
            while saved.keys:
                keys, lines = saved.keys[-_BLOCK:][::-1], saved.lines[-_BLOCK:][::-1]
                del saved.keys[-_BLOCK:], saved.lines[-_BLOCK:]
                await self._take(replica.add_rows(SnapshotRows(keys, lines)))
            await self._show(replica.end_staging(saved.reached))
        # The file may lack a column that an index needs now, or break one that is unique now.
        except (BadField, NotUnique) as error:
            self._log.warning("local snapshot not used", reason=str(error))
        self._saved_version = replica.version

    async def _save_by_timer(self) -> None:
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._save_interval):
                    await self._stopping.wait()
            if not self._stopping.is_set():
                await self._save()

    async def _save(self) -> None:
        if self._file is not None:
            async with self._locks.file:
                await self._save_to(self._file)

    async def _save_to(self, file: SnapshotFile) -> None:
        replica = self._replica
        if not replica.whole or replica.version == self._saved_version:
            return
        async with self._locks.rows:
            version, snapshot = replica.version, LocalSnapshot(replica.reached, replica.columns)
            for part in replica.parts:
                snapshot.keys.extend(part)
                snapshot.lines.extend(part.values())
                await self._share.pause_if_used()
        try:
            await asyncio.to_thread(_save_and_forget, file, snapshot)
        except OSError as refused:
            self._log.error("local snapshot not saved", path=str(file.path), error=str(refused))
            return
        self._saved_version = version


def _save_and_forget(file: SnapshotFile, snapshot: LocalSnapshot) -> None:
    try:
        file.save(snapshot)
    finally:
        # In this thread, as dropping a million references takes long.
        for rows in (snapshot.keys, snapshot.lines):
            while rows:
                del rows[-_BLOCK:]
                sleep(0)
