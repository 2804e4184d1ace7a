"""The last flush of a table's writer, and the journal's reach after it.

Received changes wait until the server's verified position has passed them, so the stream stays open
meanwhile. Changes after the stop are written only if they are verified in time: on a busy table
there are always more.
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import structlog

from laredo_archive.write.table_archive import TableArchive
from laredo_fanout.client.table_client import TableStatus
from laredo_model import position
from laredo_snapshotter.committer import Committer
from laredo_snapshotter.diff.feed import Feed
from laredo_snapshotter.events.notifier import Notifier

_log = structlog.get_logger(__name__)

LAST_NOTICES_S = 3.0
"""Time for the last notices to sinks, and for recording them in the manifest."""


class UnwrittenChanges(NamedTuple):
    """The changes that were taken from the stream and aren't in the archive."""

    artifacts: int
    """Diffs and bases that wait to be committed."""
    changes: int
    """Changed keys of them, and of what isn't a diff yet."""
    after: int | None
    """The archive's head; None if it has no base yet."""
    why: str

    def log(self, table: str) -> None:
        """One line in the log."""
        after = None if self.after is None else position.text(self.after)
        if after is None:
            goes_on = "the next start begins the first base again"
        else:
            goes_on = (
                f"nothing is lost if the server's journal still reaches back to {after} at the "
                "next start, which resumes there"
            )
        _log.error(
            "changes not written",
            table=table,
            changes=self.changes,
            artifacts=self.artifacts,
            after=after,
            reason=self.why,
            advice=goes_on,
        )


class LastFlush:
    """Writes received changes; :meth:`run` it once. Belongs to the event loop of ``feed``."""

    def __init__(
        self,
        table: str,
        archive: TableArchive,
        feed: Feed,
        committer: Committer,
        *,
        notifier: Notifier,
        executor: Executor,
    ) -> None:
        self._archive = archive
        self._feed = feed
        self._committer = committer
        self._notifier = notifier
        self._executor = executor
        self._log = _log.bind(table=table)
        self._flush_target: int | None = None
        """Number of the last job that has to be committed; None until :meth:`run`."""
        self._discarded_before = 0

    def left(self, why: str | None = None) -> UnwrittenChanges | None:
        """The changes that should have been written and were not, or None.

        ``why`` is the reason, if it wasn't the deadline.
        """
        waiting = self._committer.waiting(self._flush_target)
        artifacts, changes = waiting.artifacts, waiting.changes
        if self._flush_target is None:
            changes += 0 if self._feed.cuts.changes.empty else self._feed.cuts.changes.depth
        elif discarded := self._committer.discarded - self._discarded_before:
            artifacts += discarded
            why = why or "the table was changed before it was verified; a new base begins"
        if not artifacts and not changes:
            return None
        head = self._archive.head
        after = None if head is None else head.position
        return UnwrittenChanges(artifacts, changes, after, why or self._reason())

    async def run(
        self,
        feeding: "asyncio.Task[None]",
        committing: "asyncio.Task[None]",
        failed: "asyncio.Future[None]",
        within: float,
    ) -> UnwrittenChanges | None:
        """Write the changes that were received until now, within this time; return the rest.

        :raises Exception: the error that ended one of the tasks before all is written.
        """
        deadline = asyncio.get_running_loop().time() + within
        self._feed.cuts.freeze_all()
        self._discarded_before = self._committer.discarded
        self._flush_target = self._committer.newest
        await self._wait(self._flushed(), deadline, [feeding, committing, failed])
        if left := self.left():
            await self._feed.stop(feeding)
            return left
        await self._write_the_rest(feeding, committing, deadline)
        left = self.left()
        if left is None:
            await self._finish_notices()
        return left

    async def _flushed(self) -> None:
        while self._committer.waiting(self._flush_target).artifacts:
            await self._committer.progress()

    async def _write_the_rest(
        self, feeding: "asyncio.Task[None]", committing: "asyncio.Task[None]", deadline: float
    ) -> None:
        """Write the changes that came after the stop, as far as they are verified.

        The next start takes the rest.
        """
        await self._feed.stop(feeding)
        self._feed.cuts.freeze_all()
        if later := self._committer.cut_off():
            self._log.info("unverified artifacts left to the next start", artifacts=later)
            self._discarded_before = self._committer.discarded
        await self._wait(self._committer.drained(), deadline, [committing])

    async def _wait(
        self,
        done: Coroutine[Any, Any, None],
        deadline: float,
        ends: "Sequence[asyncio.Future[None]]",
    ) -> None:
        """Until ``done``, the deadline, or one of ``ends`` has ended.

        :raises Exception: what ended it.
        """
        waiting = asyncio.ensure_future(done)
        within = max(0.0, deadline - asyncio.get_running_loop().time())
        try:
            await asyncio.wait(
                [waiting, *ends], timeout=within, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        for ended in ends:
            if ended.done():
                ended.result()

    async def _finish_notices(self) -> None:
        """Send the notices that can be sent at once, and record them in the manifest.

        The next start sends the notices that aren't recorded.
        """
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._executor, self._notifier.settle, LAST_NOTICES_S):
            self._log.warning("notices left to the next start")
        if self._notifier.unrecorded:
            self._committer.record_notices()
            drained = asyncio.create_task(self._committer.drained())
            await asyncio.wait([drained], timeout=LAST_NOTICES_S)
            drained.cancel()

    def _reason(self) -> str:
        blocked, unverified = self._committer.blocked, self._committer.unverified
        if blocked is not None:
            return blocked.reason
        if unverified is not None:
            return (
                f"the server's verified position {position.text(unverified.verified)} hasn't "
                f"passed {position.text(unverified.position)}"
            )
        return "--flush-timeout was over, or a second signal ended the writer at once"


# The journal's reach: how long it still goes back to where a closed stream stopped.


class Reach(NamedTuple):
    """Extent of the server's journal, compared with the end of a closed stream."""

    sequence: int | None
    """Number of the last journal entry that was taken."""
    oldest_sequence: int
    """Number of the oldest entry that the journal still has."""
    current_sequence: int
    """Number of its newest entry."""
    reaches: bool | None
    """True if the stream can still be resumed there; None: not known."""
    seconds_left: float | None
    """Time until it can't, at the pace of pruning between the last two checks; None: no pruning."""


class JournalReach:
    """Compares the server's journal with the end of a closed stream."""

    def __init__(self, sequence: int | None) -> None:
        """``sequence``: of the last entry that was taken."""
        self.latest: Reach | None = None
        self._sequence = sequence
        self._before: tuple[float, int] | None = None

    def check(self, status: TableStatus, now: float | None = None) -> Reach:
        """Note the server's figures; ``now`` is monotonic."""
        now = time.monotonic() if now is None else now
        oldest = status.oldest_sequence
        seconds_left: float | None = None
        reaches = None if self._sequence is None else oldest <= self._sequence + 1
        if self._before is not None and self._sequence is not None:
            then, before = self._before
            rate = (oldest - before) / max(now - then, 1e-3)
            if rate > 0:
                seconds_left = round(max(0.0, (self._sequence + 1 - oldest) / rate), 1)
        self._before = (now, oldest)
        self.latest = Reach(self._sequence, oldest, status.current_sequence, reaches, seconds_left)
        return self.latest
