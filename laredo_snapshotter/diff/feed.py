"""The reader of one table's live stream, which takes changes into a buffer.

The buffer is frozen into a diff at each cut (cuts.py).

It closes the stream when a destination is unavailable and the buffer is full, and resumes by
position later: the server's journal keeps the changes meanwhile.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from laredo_fanout.client.errors import ProtocolViolation, StreamError
from laredo_fanout.client.events import (
    Changes,
    Event,
    GoAway,
    Handshake,
    Heartbeat,
    SchemaChange,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRows,
)
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.servers import Servers
from laredo_fanout.client.stream.stream import Observer, Subscription, SyncOptions
from laredo_model import position as position_
from laredo_model.column import Column, key_columns
from laredo_model.position import History, Position
from laredo_service.retry import Backoff, Outage
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.diff.cuts import (
    CutBuffer,
    FeedTable,
    Outlet,
    StreamedBase,
    VerifiedPosition,
)
from laredo_snapshotter.errors import KeyFieldsDiffer, ServerUnfit

log = structlog.get_logger(__name__)

REFUSED = Backoff(initial=2.0, maximum=30.0)
"""Between attempts that the server refused for a reason that only people can change."""

STOP_GRACE = 2.0

UNVERIFIED = Backoff(initial=0.2, maximum=5.0)
"""Between handshakes while nothing more can be taken before it is verified: a handshake has the
verified position before any change."""


class Reopen(Exception):
    """Close the stream, wait, and open it again at the feed's position."""

    def __init__(self, why: str, until: Callable[[], Awaitable[None]]) -> None:
        super().__init__(why)
        self.until = until


class Feed:
    """Reads one table's live stream into its buffer. All methods belong to one event loop."""

    def __init__(
        self,
        config: TableConfig,
        table: FeedTable,
        outlet: Outlet,
        observer: Observer,
        verified: VerifiedPosition,
        *,
        position: Position | None,
        history: History | None,
    ) -> None:
        self.columns: tuple[Column, ...] = ()
        self.problem: str | None = None
        """Error with which the server refused the stream."""
        self._outage = Outage()
        self.closed_because: str | None = None
        """Reason why the feed itself closed the stream."""
        self._config = config
        self._table = table
        self._outlet = outlet
        self._observer = observer
        self._verified = verified
        self.cuts = CutBuffer(config, outlet, verified, position, history)
        """Changes that were taken and aren't frozen, and the positions for freezing them."""
        self._servers = Servers(config.endpoint)
        self._base: StreamedBase | None = None
        self._stream_history: History | None = None
        self._has_verified = False
        self._stalled_at: int | None = None
        self._stalls = 0
        """Number of successive times that the buffer was full at the verified ``_stalled_at``."""
        self._gate = asyncio.Event()
        self._gate.set()
        self._taking = asyncio.Lock()
        self._log = log.bind(table=config.name)

    @property
    def endpoint(self) -> Endpoint:
        """The server that the stream comes from, or came from last."""
        return self._servers.answered

    def hold(self) -> None:
        """Take no more events until :meth:`release`."""
        self._gate.clear()

    def release(self) -> None:
        """Go on taking events."""
        self._gate.set()

    async def run(self) -> None:
        """Follow the stream until cancelled.

        :raises KeyFieldsDiffer: if the configured key isn't the table's.
        :raises SnapshotterError: see :meth:`FeedTable.begin_base` and the buffer.
        """
        refusals = 0
        while True:
            try:
                await self._follow()
            except Reopen as again:
                refusals = 0
                self.closed_because = str(again)
                self._say("stream closed", reason=str(again), position=self._text())
                await self._drop_unfinished()
                await again.until()
                self.closed_because = None
            except StreamError as refused:
                refusals += 1
                self.problem = str(refused)
                await self._drop_unfinished()
                delay = REFUSED.delay(refusals)
                news = self._outage.is_news(str(refused))
                level = self._log.error if news else self._log.debug
                level("stream refused", error=str(refused), retry_in_s=round(delay, 1))
                await asyncio.sleep(delay)

    async def stop(self, task: "asyncio.Task[None]") -> None:
        """Cancel ``task``, which runs :meth:`run`, if it can be between two events."""
        # It may be in the middle of one for long: a base whose commit waits for a destination.
        between = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_GRACE):
                between = await self._taking.acquire()
        task.cancel()
        await asyncio.wait([task])
        if between:
            self._taking.release()
        await self._drop_unfinished()

    async def _follow(self) -> None:
        config = self._config
        options = SyncOptions(
            config.name,
            config.client_id,
            position=self.cuts.position,
            history=self.cuts.history,
            want_old=True,
            boundaries=True,
            relay=True,
        )
        subscription = Subscription(
            config.endpoint, options, observer=self._observer, servers=self._servers
        )
        async with subscription as events:
            async for event in events:
                await self._gate.wait()
                async with self._taking:
                    await self.take(event)
                await self._pace()

    async def take(self, event: Event) -> None:
        """One event of the stream.

        :raises SnapshotterError: as :meth:`run`.
        :raises ProtocolViolation: if it comes where it makes no sense.
        """
        if isinstance(event, Changes):
            if not self.cuts.live:
                raise ProtocolViolation(self.endpoint.server, "changes before the snapshot")
            self.cuts.take(event)
        elif isinstance(event, Heartbeat):
            if self.cuts.live and event.position is not None:
                self.cuts.reached(event.position)
            if self.cuts.live and event.boundary is not None:
                self._verified.set(event.boundary)
        elif isinstance(event, Handshake):
            await self._shake_hands(event)
        elif isinstance(event, SnapshotRows):
            await self._begun().write(event.keys, event.lines)
        elif isinstance(event, SnapshotBegin):
            await self._begin_base(event)
        elif isinstance(event, SnapshotEnd):
            await self._end_base(event)
        elif isinstance(event, SchemaChange):
            self.columns = event.new
            self._log.warning("schema changed", columns=[column.name for column in event.new])
        elif isinstance(event, GoAway):
            self._log.info("GoAway received", reason=event.reason)

    async def _shake_hands(self, handshake: Handshake) -> None:
        await self._drop_unfinished()
        self.problem = None
        self._outage.end()
        if handshake.history is None or handshake.position is None or not handshake.batches:
            raise ServerUnfit(self._config.name, self.endpoint.server)
        self._check_key(handshake.columns)
        self.columns = handshake.columns
        self._stream_history = handshake.history
        self._has_verified = handshake.boundary is not None
        if handshake.snapshot_follows:
            self._log.info("snapshot announced", server=self.endpoint.server, had=self._text())
        elif self.cuts.position is not None and self._table.fits(handshake):
            self._verified.set(handshake.boundary)
            self.cuts.resume(handshake.history)
            self._say("stream resumed", server=self.endpoint.server, position=self._text())
        else:
            # The server may resume, but what follows can't continue the archive's head.
            self.cuts.close_chain()
            self.cuts.start_over()
            raise Reopen("the table isn't the one that the archive ends with", _at_once)

    def _check_key(self, columns: tuple[Column, ...]) -> None:
        actual = tuple(column.name for column in key_columns(columns))
        configured = self._config.key_fields
        if configured is not None and configured != actual:
            raise KeyFieldsDiffer(self._config.name, list(configured), list(actual))

    async def _begin_base(self, begin: SnapshotBegin) -> None:
        if begin.position is None or self._stream_history is None:
            raise ServerUnfit(self._config.name, self.endpoint.server)
        had = self.cuts.position
        self.cuts.close_chain()
        self._verified.set(0 if self._has_verified else None)
        try:
            await asyncio.wait_for(self._outlet.drained(), 5.0)
        except TimeoutError:
            raise Reopen("received changes aren't committed yet", self._outlet.settled) from None
        end = self._table.archive_end
        if had is not None and end is not None and end[0] < had:
            # Changes after the archive's end may have been repaired since; the archive is right.
            self.cuts.go_back(*end)
            raise Reopen(
                "the server can't go on from there, perhaps from the archive's end", _at_once
            )
        self._base = await self._table.begin_base(begin, self.columns, self._stream_history)

    async def _end_base(self, end: SnapshotEnd) -> None:
        await self._begun().finish(end)
        self._base = None
        self.cuts.begin_after(end.position, self._stream_history, end.sequence)
        self._verified.set(end.boundary)
        self.cuts.live = True

    def _begun(self) -> StreamedBase:
        if self._base is None:
            raise ProtocolViolation(self.endpoint.server, "a snapshot that never began")
        return self._base

    async def _pace(self) -> None:
        """Keep memory within its limit before the next event is taken."""
        limit, buffer, outlet = self._config.diff.max_memory, self.cuts.changes, self._outlet
        if buffer.memory_bytes > limit // 2 or buffer.spilled_bytes:
            if not buffer.empty:
                self.cuts.freeze_whole()
            if buffer.memory_bytes > limit // 2:
                async with self._taking:
                    await asyncio.to_thread(buffer.spill)
                self._log.info("transaction spilled", spilled_bytes=buffer.spilled_bytes)
        while buffer.memory_bytes + outlet.waiting_bytes > limit or outlet.waiting_spilled_bytes:
            if outlet.blocked is not None:
                raise Reopen("a destination is unavailable and the buffer is full", outlet.settled)
            if outlet.unverified is not None:
                self._stalled()
                raise Reopen("the buffer is full of unverified changes", self._after_a_stall)
            await outlet.progress()

    def _stalled(self) -> None:
        verified = self._verified.position
        self._stalls = self._stalls + 1 if verified == self._stalled_at else 1
        self._stalled_at = verified

    async def _after_a_stall(self) -> None:
        await asyncio.sleep(UNVERIFIED.delay(self._stalls))

    def _say(self, event: str, **fields: object) -> None:
        """Log an event of the stream; for debugging only if a stall repeats it."""
        is_repeated = self._stalls > 1 and self._verified.position == self._stalled_at
        (self._log.debug if is_repeated else self._log.info)(event, **fields)

    async def _drop_unfinished(self) -> None:
        """Discard the unfinished part of a closed stream; the next stream brings it again."""
        self.cuts.changes.abandon()
        base, self._base = self._base, None
        if base is not None:
            await base.abort()

    def _text(self) -> str | None:
        return None if self.cuts.position is None else position_.text(self.cuts.position)


async def _at_once() -> None:
    await asyncio.sleep(0)
