"""Re-base: a new base from a second stream, while diffs go on. docs/commit-protocol.md, Re-base."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from typing import NamedTuple

import structlog

from laredo_archive.write.table_archive import TableArchive
from laredo_fanout.client.events import Event, Handshake, SnapshotBegin, SnapshotEnd, SnapshotRows
from laredo_fanout.client.stream.stream import SyncOptions, open_stream
from laredo_model import position as position_
from laredo_model.position import Position
from laredo_service.retry import Backoff
from laredo_snapshotter.base import base_job
from laredo_snapshotter.base.base_job import BaseJob
from laredo_snapshotter.base.continuing import same_shape
from laredo_snapshotter.commit.committer import Committer
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.diff.buffer import Sealed
from laredo_snapshotter.diff.feed import Feed
from laredo_snapshotter.errors import RebaseAbandoned

log = structlog.get_logger(__name__)

ATTEMPTS = 10
"""Second streams to open until one's snapshot isn't older than the live stream."""

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
            self._job = job = await base_job.begin(
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
                sealed = await cut
                if sealed is None:
                    raise RebaseAbandoned(self._config.name, "the live stream began again")
                await job.finish(end)
            except BaseException:
                await job.abort()
                raise
        return await job.epoch()

    async def _begin(
        self, streams: AsyncExitStack
    ) -> tuple[_Begun, "asyncio.Future[Sealed | None]"]:
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
            self._config.name, f"{ATTEMPTS} snapshots were older than the live stream"
        )

    async def _open(self, streams: AsyncExitStack) -> _Begun:
        config = self._config
        # The live stream brings its verified position; asking has the catalog checked at once.
        options = SyncOptions(config.name, f"{config.client_id}:rebase", boundaries=True)
        events = await streams.enter_async_context(open_stream(config.endpoint, options))
        handshake: Handshake | None = None
        async for event in events:
            if isinstance(event, Handshake):
                handshake = event
            elif isinstance(event, SnapshotBegin) and handshake is not None:
                assert event.position is not None, "the live stream's server sends positions"
                return _Begun(event.position, handshake, events)
        raise RebaseAbandoned(config.name, "the server ended the second stream")

    def _check(self, handshake: Handshake) -> None:
        head = self._archive.head
        if not self._feed.cuts.live or head is None:
            raise RebaseAbandoned(self._config.name, "the live stream is closed")
        if handshake.history != head.history or not same_shape(handshake.columns, head.columns):
            raise RebaseAbandoned(self._config.name, "the table isn't the one of this epoch")

    async def _copy(self, events: AsyncIterator[Event], job: BaseJob) -> SnapshotEnd:
        async for event in events:
            if isinstance(event, SnapshotRows):
                await job.write(event.keys, event.lines)
            elif isinstance(event, SnapshotEnd):
                return event
        raise RebaseAbandoned(self._config.name, "the server ended the snapshot half-way")
