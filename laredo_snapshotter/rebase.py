"""Re-base: a new base from a second stream, while diffs go on. docs/commit-protocol.md, Re-base.

A base comes from the live stream if that can't resume (table/session.py), or for a re-base from a
second stream (here). Once whole it waits in the committer's queue.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

import structlog

from laredo_archive.manifest.updates import Head
from laredo_archive.write.base_upload import BaseUpload
from laredo_archive.write.table_archive import TableArchive
from laredo_fanout.client.events import Event, Handshake, SnapshotBegin, SnapshotEnd, SnapshotRows
from laredo_fanout.client.stream.stream import SyncOptions, open_stream
from laredo_model import position as position_
from laredo_model.checksum import StateChecksum
from laredo_model.column import Column, key_columns
from laredo_model.position import History, Position
from laredo_service.retry import Backoff
from laredo_snapshotter.committer import Committer
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.diff.buffer import FrozenBuffer
from laredo_snapshotter.diff.feed import Feed
from laredo_snapshotter.errors import RebaseAbandoned, SnapshotDamaged

Result = TypeVar("Result")


async def begin(
    archive: TableArchive,
    config: TableConfig,
    executor: Executor,
    committer: Committer,
    *,
    position: Position,
    history: History,
    columns: tuple[Column, ...],
    continues: bool,
    reason: str | None = None,
) -> "BaseJob":
    """Begin a base of the table as it is at ``position``."""
    began, began_at = datetime.now(UTC), time.monotonic()

    def upload() -> BaseUpload:
        return archive.snapshot(
            position=position,
            history=history,
            columns=columns,
            key_fields=[column.name for column in key_columns(columns)],
            formats=config.formats.of_bases,
        )

    uploading = await asyncio.get_running_loop().run_in_executor(executor, upload)
    return BaseJob(
        config.name,
        uploading,
        executor,
        committer,
        began=began,
        began_at=began_at,
        history=history,
        columns=columns,
        continues=continues,
        reason=reason,
    )


class BaseJob:
    """One base of a table: being written, then ``whole`` and waiting for its commit.

    Encoding and files are a thread's business; the loop only hands over.
    """

    def __init__(
        self,
        table: str,
        upload: BaseUpload,
        executor: Executor,
        committer: Committer,
        *,
        began: datetime,
        began_at: float,
        history: History,
        columns: tuple[Column, ...],
        continues: bool,
        reason: str | None,
    ) -> None:
        """``continues``: it is the state that the diffs before it lead to; if it isn't,
        ``reason`` is the reason."""
        self.began, self.began_at = began, began_at
        self.history = history
        self.columns = columns
        self.rows = 0
        """Rows handed over so far."""
        self._table = table
        self._upload = upload
        self._executor = executor
        self._committer = committer
        self._continues = continues
        self._reason = reason
        self._writing: asyncio.Future[None] | None = None
        self._put: asyncio.Future[asyncio.Future[object]] = (
            asyncio.get_running_loop().create_future()
        )

    @property
    def whole(self) -> bool:
        """True if all its rows are there and its commit was requested."""
        return self._put.done() and not self._put.cancelled()

    async def write(self, keys: list[bytes], lines: list[bytes]) -> None:
        """Rows, in key order.

        :raises CommitUnavailable: if a destination is unavailable; the base has to be made again.
        """
        # One batch is written while the next is received: more would only be memory.
        await self._written()
        self._writing = self._in_thread(lambda: self._upload.write(keys, lines))
        self.rows += len(lines)

    async def finish(self, end: SnapshotEnd) -> None:
        """All rows are there: have the base, which is in no manifest yet, committed.

        :raises SnapshotDamaged: if it isn't what the server reports to have sent.
        :raises CommitUnavailable: if a destination is unavailable; the base has to be made again.
        """
        await self._written()
        # It isn't known when the snapshot's last transaction was committed: not after it began.
        to_time = None if self._continues else self.began
        base = await self._in_thread(lambda: self._upload.finish(to_time))
        received = StateChecksum.from_hex(base.rows, base.state_checksum)
        rows = base.rows if end.rows is None else end.rows
        sent = StateChecksum.from_hex(rows, end.state_checksum or base.state_checksum)
        if sent != received:
            raise SnapshotDamaged(self._table, sent, received)
        self._put.set_result(
            self._committer.put_base(base, continues=self._continues, reason=self._reason)
        )

    async def epoch(self) -> int:
        """The epoch that it began, once it is whole and committed; cancelled if it is aborted.

        :raises ArchiveError: as :meth:`Committer.epoch_of`.
        :raises NeverVerified: if the table was changed before the base was known to be right.
        """
        return await self._committer.epoch_of(await self._put)

    async def abort(self) -> None:
        """Forget it; does nothing after finish()."""
        self._put.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
            if not self._writing.cancelled():
                self._writing.exception()
            self._writing = None
        await self._in_thread(self._upload.abort)

    async def _written(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                # A cancelled wait must not leave the thread writing while abort() deletes.
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                self._writing = writing
                raise

    def _in_thread(self, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        return asyncio.get_running_loop().run_in_executor(self._executor, work)


# Comparison of a stream with the archive's epoch: may its changes continue it?


def why_new_epoch(
    head: Head | None, columns: tuple[Column, ...], history: History, sent_reason: str
) -> str | None:
    """Reason why a base begins a new epoch after ``head``; None if there is nothing before it.

    ``sent_reason`` is the server's.
    """
    if head is None:
        return None
    if head.history != history:
        return f"the history was {head.history} and is {history} now" + (
            f": {sent_reason}" if sent_reason else ""
        )
    if not same_shape(columns, head.columns):
        return "the table's columns changed"
    return sent_reason or "the server gave no reason"


def same_shape(one: Sequence[Column] | None, other: Sequence[Column] | None) -> bool:
    """Names, types, their order and the key; whether a column may be NULL doesn't matter."""
    return one is not None and other is not None and _shape(one) == _shape(other)


def _shape(columns: Sequence[Column]) -> list[tuple[str, str, int, int | None]]:
    return [
        (column.name, column.type, column.type_modifier, column.key_ordinal)
        for column in sorted(columns, key=lambda column: column.ordinal)
    ]


log = structlog.get_logger(__name__)

ATTEMPTS = 10
"""Most second streams to open until one's snapshot isn't older than the live stream."""

OPENING_S = 60.0
"""Time for which the live stream is held for the second one to begin."""

_AGAIN = Backoff(initial=0.05, maximum=2.0)


class _Begun(NamedTuple):
    """A second stream whose snapshot has begun."""

    position: Position
    handshake: Handshake
    events: AsyncIterator[Event]


class Rebase:
    """One re-base of one table; :meth:`run` it once."""

    def __init__(
        self,
        config: TableConfig,
        feed: Feed,
        committer: Committer,
        archive: TableArchive,
        executor: Executor,
    ) -> None:
        self._config = config
        self._feed = feed
        self._committer = committer
        self._archive = archive
        self._executor = executor
        self._job: BaseJob | None = None
        self._log = log.bind(table=config.name)

    @property
    def rows_written(self) -> int | None:
        """Rows of the base so far; None before its first."""
        return None if self._job is None else self._job.rows

    async def run(self) -> int:
        """Write the base and commit it; the new epoch.

        :raises RebaseAbandoned: if the live stream or the table changed on the way.
        :raises StreamError: if there is no second stream, or it broke.
        :raises SnapshotDamaged: if it wasn't whole.
        :raises NeverVerified: if the table was changed before the base was known to be right.
        :raises ArchiveError: if the base can't be committed; ChecksumDiffers if it isn't
            the state that the diffs lead to.
        """
        async with AsyncExitStack() as streams:
            begun, cut = await self._begin(streams)
            self._log.info("re-base started", position=position_.text(begun.position))
            history = begun.handshake.history
            assert history is not None, "it is the archive's head's"
            self._job = job = await begin(
                self._archive,
                self._config,
                self._executor,
                self._committer,
                position=begun.position,
                history=history,
                columns=begun.handshake.columns,
                continues=True,
            )
            try:
                end = await self._copy(begun.events, job)
                # The live stream may still have to pass the position: its next heartbeat does.
                frozen = await cut
                if frozen is None:
                    raise RebaseAbandoned(self._config.name, "the live stream began again")
                await job.finish(end)
            except BaseException:
                await job.abort()
                raise
        return await job.epoch()

    async def _begin(
        self, streams: AsyncExitStack
    ) -> tuple[_Begun, "asyncio.Future[FrozenBuffer | None]"]:
        """A second stream whose snapshot isn't older than the live one, and the cut at it."""
        feed = self._feed
        feed.hold()
        try:
            async with asyncio.timeout(OPENING_S):
                for attempt in range(1, ATTEMPTS + 1):
                    begun = await self._open(streams)
                    self._check(begun.handshake)
                    if feed.cuts.position is not None and begun.position >= feed.cuts.position:
                        return begun, feed.cuts.cut_exactly(begun.position)
                    self._log.info(
                        "snapshot discarded: too old", position=position_.text(begun.position)
                    )
                    await streams.aclose()
                    await asyncio.sleep(_AGAIN.delay(attempt))
        except TimeoutError:
            raise RebaseAbandoned(
                self._config.name, f"no snapshot began within {OPENING_S:g} s"
            ) from None
        finally:
            feed.release()
        raise RebaseAbandoned(
            self._config.name,
            f"{ATTEMPTS} snapshots were older than the live stream; does"
            f" {self._config.endpoint.server} lead to several servers, of which some lag?",
        )

    async def _open(self, streams: AsyncExitStack) -> _Begun:
        config = self._config
        # The live stream brings its verified position; asking has the catalog checked at once.
        options = SyncOptions(config.name, f"{config.client_id}:rebase", boundaries=True)
        events = await streams.enter_async_context(open_stream(self._feed.endpoint, options))
        handshake: Handshake | None = None
        async for event in events:
            if isinstance(event, Handshake):
                handshake = event
            elif isinstance(event, SnapshotBegin) and handshake is not None:
                assert event.position is not None, "the live stream's server sends positions"
                return _Begun(event.position, handshake, events)
        raise RebaseAbandoned(config.name, "the server ended the second stream before a snapshot")

    def _check(self, handshake: Handshake) -> None:
        head = self._archive.head
        if not self._feed.cuts.live or head is None:
            raise RebaseAbandoned(self._config.name, "the live stream is closed")
        same_history = handshake.history == self._feed.cuts.history
        if not same_history or not same_shape(handshake.columns, head.columns):
            raise RebaseAbandoned(self._config.name, "the table isn't the one of this epoch")

    async def _copy(self, events: AsyncIterator[Event], job: BaseJob) -> SnapshotEnd:
        async for event in events:
            if isinstance(event, SnapshotRows):
                await job.write(event.keys, event.lines)
            elif isinstance(event, SnapshotEnd):
                return event
        raise RebaseAbandoned(self._config.name, "the server ended the snapshot half-way")
