"""One table's live stream into its buffer, which is sealed at the cuts (cut_buffer.py).

It closes the stream when nothing more can be kept (a destination is away and
the buffer at its limit) and resumes by position later; the journal keeps what
is missed meanwhile.
"""

import asyncio
import contextlib
from collections.abc import Callable

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
from laredo_fanout.client.stream.stream import SyncOptions
from laredo_fanout.client.stream.subscription import Observer, Subscription
from laredo_model import position as position_
from laredo_model.column import Column, key_columns
from laredo_model.history import History
from laredo_model.position import Position
from laredo_model.retry import Backoff
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.diff.buffer import ChangeBuffer, Sealed
from laredo_snapshotter.diff.cut_buffer import CutBuffer
from laredo_snapshotter.diff.feed_ports import Outlet, StreamedBase, Table
from laredo_snapshotter.diff.verified import VerifiedPosition
from laredo_snapshotter.errors import KeyFieldsDiffer, ServerUnfit

log = structlog.get_logger(__name__)

REFUSED = Backoff(initial=2.0, maximum=30.0)
"""Between attempts that the server refused for a reason that only people can change."""

STOP_GRACE = 2.0

UNVERIFIED_S = 0.2
"""Between two looks at the verified position while nothing more is taken."""


class Reopen(Exception):
    """Close the stream, wait, and open it again at the feed's place."""

    def __init__(self, why: str, until: Callable[[], "asyncio.Future[None]"]) -> None:
        super().__init__(why)
        self.until = until


class Feed:
    """Takes one table's stream; see the module. All methods belong to one event loop."""

    def __init__(
        self,
        config: TableConfig,
        table: Table,
        outlet: Outlet,
        observer: Observer,
        verified: VerifiedPosition,
        *,
        position: Position | None,
        history: History | None,
    ) -> None:
        self.columns: tuple[Column, ...] = ()
        self.problem: str | None = None
        """What the server said when it refused the stream."""
        self.closed_because: str | None = None
        """Why the feed itself closed the stream."""
        self._config = config
        self._table = table
        self._outlet = outlet
        self._observer = observer
        self._verified = verified
        self._cuts = CutBuffer(config, outlet, verified, position, history)
        self._base: StreamedBase | None = None
        self._stream_history: History | None = None
        self._tells_boundary = False
        self._gate = asyncio.Event()
        self._gate.set()
        self._taking = asyncio.Lock()
        self._log = log.bind(table=config.name)

    @property
    def buffer(self) -> ChangeBuffer:
        """What was taken and isn't sealed yet."""
        return self._cuts.changes

    @property
    def position(self) -> Position | None:
        """Every transaction up to here was taken."""
        return self._cuts.position

    @property
    def cut_position(self) -> Position | None:
        """See :attr:`CutBuffer.cut_position`."""
        return self._cuts.cut_position

    @property
    def seen_position(self) -> Position | None:
        """See :attr:`CutBuffer.seen_position`."""
        return self._cuts.seen_position

    @property
    def history(self) -> History | None:
        """What :attr:`position` belongs to."""
        return self._cuts.history

    @property
    def sequence(self) -> int | None:
        """Of the last entry of the last whole transaction; None until one was taken."""
        return self._cuts.sequence

    @property
    def live(self) -> bool:
        """Whether changes arrive that may follow the archive's head."""
        return self._cuts.live

    @property
    def quiet(self) -> bool:
        """Whether nothing at all is buffered, so that the state is the one last put."""
        return self.live and self.buffer.empty

    @property
    def cuts_forgotten(self) -> int:
        """Cuts that were given up because the stream didn't reach them in time."""
        return self._cuts.cuts_forgotten

    def cut(self, position: int) -> None:
        """Seal at ``position``, now or as soon as the stream has passed it."""
        self._cuts.cut(position)

    def cut_exactly(self, position: int) -> "asyncio.Future[Sealed | None]":
        """See :meth:`CutBuffer.cut_exactly`."""
        return self._cuts.cut_exactly(position)

    def seal_all(self) -> None:
        """Put everything that was taken, as far as its last whole transaction or heartbeat."""
        self._cuts.seal_all()

    def hold(self) -> None:
        """Take no more events until :meth:`release`."""
        self._gate.clear()

    def release(self) -> None:
        """Go on taking events."""
        self._gate.set()

    async def run(self) -> None:
        """Follow the stream until cancelled.

        :raises KeyFieldsDiffer: if the configured key isn't the table's.
        :raises SnapshotterError: see :meth:`Table.begin_base` and the buffer.
        """
        refusals = 0
        while True:
            try:
                await self._follow()
            except Reopen as again:
                refusals = 0
                self.closed_because = str(again)
                self._log.info("stream closed", reason=str(again), position=self._text())
                await self._drop_unfinished()
                await again.until()
                self.closed_because = None
            except StreamError as refused:
                refusals += 1
                self.problem = str(refused)
                await self._drop_unfinished()
                delay = REFUSED.delay(refusals)
                self._log.error("refused", error=str(refused), retry_in_s=round(delay, 1))
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
            position=self.position,
            history=self.history,
            want_old=True,
            boundaries=True,
        )
        subscription = Subscription(config.endpoint, options, observer=self._observer)
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
            if not self.live:
                raise ProtocolViolation(self._config.endpoint.server, "changes before the snapshot")
            self._cuts.take(event)
        elif isinstance(event, Heartbeat):
            if self.live and event.position is not None:
                self._cuts.reached(event.position)
            if self.live and event.boundary is not None:
                self._verified.tell(event.boundary)
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
            self._log.info("server is going away", reason=event.reason)

    async def _shake_hands(self, handshake: Handshake) -> None:
        await self._drop_unfinished()
        self.problem = None
        if handshake.history is None or handshake.position is None or not handshake.batches:
            raise ServerUnfit(self._config.name, self._config.endpoint.server)
        self._check_key(handshake.columns)
        self.columns = handshake.columns
        self._stream_history = handshake.history
        self._tells_boundary = handshake.boundary is not None
        if handshake.snapshot_follows:
            self._log.info("a snapshot follows", had=self._text())
        elif self.position is not None and self._table.fits(handshake):
            self._verified.tell(handshake.boundary)
            self._cuts.live = True
            self._log.info("following", position=self._text())
        else:
            # The server is right to resume, but what follows can't stand behind the archive's head.
            self._cuts.close_chain()
            self._cuts.start_over()
            raise Reopen("the table isn't the one that the archive ends with", _at_once)

    def _check_key(self, columns: tuple[Column, ...]) -> None:
        actual = tuple(column.name for column in key_columns(columns))
        configured = self._config.key_fields
        if configured is not None and configured != actual:
            raise KeyFieldsDiffer(self._config.name, list(configured), list(actual))

    async def _begin_base(self, begin: SnapshotBegin) -> None:
        if begin.position is None or self._stream_history is None:
            raise ServerUnfit(self._config.name, self._config.endpoint.server)
        had = self.position
        self._cuts.close_chain()
        self._verified.tell(0 if self._tells_boundary else None)
        try:
            await asyncio.wait_for(self._outlet.drained(), 5.0)
        except TimeoutError:
            raise Reopen("what was taken isn't committed yet", self._settled) from None
        place = self._table.place
        if had is not None and place is not None and place[0] < had:
            # What was taken beyond may have been put right since, and what is archived is right.
            self._cuts.go_back(*place)
            raise Reopen(
                "the server can't go on from there, perhaps from the archive's end", _at_once
            )
        self._base = await self._table.begin_base(begin, self.columns, self._stream_history)

    async def _end_base(self, end: SnapshotEnd) -> None:
        await self._begun().finish(end)
        self._base = None
        self._cuts.begin_after(end.position, self._stream_history, end.sequence)
        self._verified.tell(end.boundary)
        self._cuts.live = True

    def _begun(self) -> StreamedBase:
        if self._base is None:
            raise ProtocolViolation(self._config.endpoint.server, "a snapshot that never began")
        return self._base

    async def _pace(self) -> None:
        """Keep memory within its limit before the next event is taken."""
        limit, buffer, outlet = self._config.diff.max_memory, self.buffer, self._outlet
        if buffer.memory_bytes > limit // 2 or buffer.spilled_bytes:
            if not buffer.empty:
                self._cuts.seal_whole()
            if buffer.memory_bytes > limit // 2:
                async with self._taking:
                    await asyncio.to_thread(buffer.spill)
                self._log.info("transaction spilled", spilled_bytes=buffer.spilled_bytes)
        while buffer.memory_bytes + outlet.waiting_bytes > limit or outlet.waiting_on_disk:
            if outlet.blocked is not None:
                raise Reopen("a destination is away and the buffer is full", self._settled)
            if self._outlet.unverified is not None:
                # The next handshake tells the boundary before it sends more.
                raise Reopen("the buffer is full of what isn't verified yet", _shortly)
            await outlet.progress()

    def _settled(self) -> "asyncio.Future[None]":
        # What waits for a look would wait for ever: only the stream brings word of one.
        return asyncio.ensure_future(self._outlet.settled())

    async def _drop_unfinished(self) -> None:
        """What a stream that is gone left unfinished comes again with the next one."""
        self.buffer.abandon()
        base, self._base = self._base, None
        if base is not None:
            await base.abort()

    def _text(self) -> str | None:
        return None if self.position is None else position_.text(self.position)


def _shortly() -> "asyncio.Future[None]":
    return asyncio.ensure_future(asyncio.sleep(UNVERIFIED_S))


def _at_once() -> "asyncio.Future[None]":
    return asyncio.ensure_future(asyncio.sleep(0))
