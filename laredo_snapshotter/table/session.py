"""One session of a table's writer: from the archive's head to the first thing that goes wrong."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime

import structlog

from laredo_archive.errors import ChecksumDiffers, Fenced
from laredo_archive.manifest.updates import Head
from laredo_archive.write.table_archive import TableArchive
from laredo_fanout.client.errors import StreamError
from laredo_fanout.client.events import Handshake, SnapshotBegin
from laredo_fanout.client.table_client import table_status
from laredo_model import position as position_
from laredo_model.column import Column
from laredo_model.position import History, Position
from laredo_service.retry import Backoff, Outage
from laredo_snapshotter import rebase
from laredo_snapshotter.committer import Committer
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.diff.cuts import StreamedBase, VerifiedPosition
from laredo_snapshotter.diff.feed import Feed
from laredo_snapshotter.errors import NeverVerified, StreamBehind
from laredo_snapshotter.events.notifier import Notifier
from laredo_snapshotter.metrics import TableCounters
from laredo_snapshotter.rebase import BaseJob, Rebase, same_shape, why_new_epoch
from laredo_snapshotter.table.last_flush import JournalReach, LastFlush, UnwrittenChanges
from laredo_snapshotter.triggers import SinceSnapshot

log = structlog.get_logger(__name__)

REBASE_AGAIN = Backoff(initial=1.0, maximum=60.0)
BEAT_S = 1.0
JOURNAL_S = 5.0
"""Between two checks of the server's journal while the stream is closed."""


class WriterSession:
    """Feed, committer and re-bases over one claimed archive; :meth:`run` it once."""

    def __init__(
        self,
        config: TableConfig,
        archive: TableArchive,
        executor: Executor,
        counters: TableCounters,
        *,
        notifier: Notifier,
        epoch_committed: Callable[[int, float], None],
        wanted: Callable[[], bool],
    ) -> None:
        """``notifier`` is woken after each commit; ``epoch_committed`` is called with each new
        epoch and when its making began; ``wanted`` returns True if an operator asks for one,
        whatever the triggers.
        """
        self._config = config
        self._archive = archive
        self._executor = executor
        self._notifier = notifier
        self._counters = counters
        self._epoch_committed = epoch_committed
        self._wanted = wanted
        self._log = log.bind(table=config.name)
        self.verified = VerifiedPosition()
        """Set by the feed, waited for by the committer."""
        self.committer = Committer(
            archive,
            config.name,
            config.formats.of_diffs,
            executor,
            counters,
            verified=self.verified,
        )
        head = usable(archive.head)
        self.feed = Feed(
            config,
            self,
            self.committer,
            counters,
            self.verified,
            position=None if head is None else head.position,
            history=None if head is None else head.history,
        )
        self.live_base: BaseJob | None = None
        """The base that the live stream brings, until it is committed."""
        self._live_base_commit: asyncio.Task[None] | None = None
        self.rebase: Rebase | None = None
        self.rebase_reason: str | None = None
        self.rebase_problem: str | None = None
        """Error of the last re-base, if it failed."""
        self.rebase_failing_since: float | None = None
        """Time of the first failed re-base, by the monotonic clock; None: the last one
        succeeded."""
        self.left: UnwrittenChanges | None = None
        """Changes that were taken and never written, once it has ended."""
        self._last = LastFlush(
            config.name,
            archive,
            self.feed,
            self.committer,
            notifier=notifier,
            executor=executor,
        )
        self.journal: JournalReach | None = None
        """Not None while the feed itself keeps the stream closed."""
        self._rebasing: asyncio.Task[None] | None = None
        self._rebase_failures = 0
        self._rebase_outage = Outage()
        self._not_before = 0.0
        self._journal_check_at = 0.0
        self._journal_outage = Outage()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, stopping: asyncio.Event, flush_timeout: float) -> None:
        """Write until ``stopping``, then flush within ``flush_timeout`` seconds.

        :raises Exception: the error that ended it; the archive is intact.
        """
        committing = asyncio.create_task(self.committer.run())
        feeding = asyncio.create_task(self.feed.run())
        beating = asyncio.create_task(self._beats())
        waking = asyncio.create_task(self._after_commits())
        waiting = asyncio.create_task(_until(stopping))
        try:
            ends: list[asyncio.Future[None]] = [self._failed, committing, feeding, beating, waking]
            await asyncio.wait([*ends, waiting], return_when=asyncio.FIRST_COMPLETED)
            for ended in ends:
                if ended.done():
                    ended.result()
            await self._drop_rebase()
            self.left = await self._last.run(feeding, committing, self._failed, flush_timeout)
        except Exception as failure:
            self.left = self._last.left(str(failure))
            raise
        finally:
            self._failed.cancel()
            tasks = [committing, feeding, beating, waking, waiting]
            if self._rebasing is not None:
                tasks.append(self._rebasing)
            if self._live_base_commit is not None:
                tasks.append(self._live_base_commit)
            await self.feed.stop(feeding)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.feed.cuts.changes.clear()
            # Otherwise their files would wait for the cyclic garbage collector.
            self.committer.close()

    def is_known_at(self, position: int) -> bool | None:
        """True if the archive has the table's state at a position where it was to be cut.

        None: not yet; False: it won't.
        """
        cut = self.feed.cuts.was_cut(position)
        return None if cut and not self.committer.has_all_until(position) else cut

    def left_now(self) -> UnwrittenChanges | None:
        """The changes that would stay unwritten if the session ended now."""
        return self._last.left()

    def tick(self) -> None:
        """A diff interval has passed, or a diff was committed: is a re-base due?"""
        head = self._archive.head
        if head is None or self._rebasing is not None or time.monotonic() < self._not_before:
            return
        reason = self._config.triggers.due(self.since_snapshot(head))
        if reason is not None:
            self._begin_rebase(reason)

    def beat(self) -> None:
        """Do the work that no diff interval delays: re-bases, seen_position, notices."""
        if self._notifier.recording_due(self._config.diff.interval) and self.committer.idle:
            self.committer.record_notices()
        feed = self.feed
        if not feed.cuts.live:
            return
        self._enter_history()
        if self._wanted() and self._rebasing is None and time.monotonic() >= self._not_before:
            self._begin_rebase("request")
        position = feed.cuts.seen_position
        interval = self._config.seen_interval
        due = self.committer.last_write + interval
        if interval and feed.cuts.quiet and self.committer.idle and time.monotonic() >= due:
            head = self._archive.head
            seen = None if head is None else head.seen_position or head.position
            of_head = head is not None and head.history == feed.cuts.history
            if position is not None and seen is not None and position > seen and of_head:
                self.committer.see(position, feed.cuts.unchanged_until)

    def _enter_history(self) -> None:
        """Have a diff, perhaps an empty one, end in the history that goes on from the head's.

        A manifest's positions after its head, such as seen_position, are of the head's history.
        """
        cuts, head = self.feed.cuts, usable(self._archive.head)
        if head is None or head.history == cuts.history or not self.committer.idle:
            return
        if self.live_base is None and self._rebasing is None:
            position = cuts.cut_position
            if position is not None and position > head.position:
                cuts.cut_exactly(position)

    def since_snapshot(self, head: Head) -> SinceSnapshot:
        """Figures since the epoch's base, up to the archive's head, whose rows are known."""
        return SinceSnapshot(
            age_s=(datetime.now(UTC) - head.snapshot_created_at).total_seconds(),
            snapshot_bytes=head.snapshot_bytes,
            rows=head.snapshot_rows if head.rows is None else head.rows,
            diffs=head.diffs_since_snapshot,
            diff_bytes=head.diff_bytes,
            churn_records=head.diff_changes,
        )

    def buffered(self, head: Head | None) -> int:
        """Changed rows that aren't in the archive: in the buffer, frozen, or spilled."""
        position = 0 if head is None else head.position
        return self.feed.cuts.changes.depth + self.committer.waiting_changes(position)

    def fits(self, handshake: Handshake) -> bool:
        """True if changes from this stream may follow the archive's head."""
        base, head = self.live_base, usable(self._archive.head)
        if base is not None and base.whole:
            # The archive ends with it as soon as it is committed.
            held = handshake.holds(base.history, self.feed.cuts.position or 0)
            return held and same_shape(handshake.columns, base.columns)
        return (
            head is not None
            and handshake.holds(head.history, max(head.position, head.seen_position or 0))
            and same_shape(handshake.columns, head.columns)
        )

    @property
    def archive_end(self) -> tuple[Position, History] | None:
        """End of the archive; None if nothing may follow its artifacts."""
        head = usable(self._archive.head)
        if head is None or head.history is None:
            return None
        return head.position, head.history

    @property
    def base_waits(self) -> bool:
        """True if the base of a new epoch is whole and not yet committed."""
        return self.live_base is not None and self.live_base.whole

    async def begin_base(
        self, begin: SnapshotBegin, columns: tuple[Column, ...], history: History
    ) -> StreamedBase:
        """The stream begins a snapshot: the base of a new epoch.

        :raises StreamBehind: if it is older than what the archive has.
        """
        await self._drop_rebase()
        position, head = begin.position, self._archive.head
        assert position is not None, "checked by the feed"
        if head is not None and head.history == history and position < head.position:
            raise StreamBehind(self._config.name, position, head.position)

        reason = why_new_epoch(head, columns, history, begin.reason)
        base = await rebase.begin(
            self._archive,
            self._config,
            self._executor,
            self.committer,
            position=position,
            history=history,
            columns=columns,
            continues=False,
            reason=reason,
        )
        self.live_base = base
        self._live_base_commit = asyncio.create_task(self._commit_live_base(base))
        self._log.info(
            "base started", position=position_.text(position), rows=begin.row_count, reason=reason
        )
        return base

    async def _commit_live_base(self, base: BaseJob) -> None:
        """Wait until ``base`` is committed.

        The stream goes on meanwhile: only it brings the position up to which the base is verified.
        """
        try:
            epoch = await base.epoch()
        except NeverVerified as discarded:
            self._log.warning("base discarded", reason=str(discarded))
        except Exception as failure:  # noqa: BLE001  # it ends this session
            if not self._failed.done():
                self._failed.set_exception(failure)
            return
        else:
            self._log.info("base committed", epoch=epoch)
            self._epoch_committed(epoch, base.began_at)
        finally:
            if self.live_base is base:
                self.live_base = None

    async def _beats(self) -> None:
        seen = self._config.seen_interval or BEAT_S
        while True:
            await asyncio.sleep(min(BEAT_S, seen / 2))
            self.beat()
            await self._check_journal()

    async def _after_commits(self) -> None:
        """Begin notices, and a base that a diff triggers, right after each commit."""
        head = self._archive.head
        while True:
            self._notifier.wake()
            if self._archive.head != head:
                head = self._archive.head
                self.tick()
            await self.committer.progress()

    async def _check_journal(self) -> None:
        if self.feed.closed_because is None:
            self.journal = None
            self._journal_outage.end()
            return
        if self.journal is None:
            self.journal = JournalReach(self.feed.cuts.sequence)
        elif time.monotonic() < self._journal_check_at:
            return
        self._journal_check_at = time.monotonic() + JOURNAL_S
        try:
            status = await table_status(self.feed.endpoint, self._config.name)
        except StreamError as refused:
            if self._journal_outage.is_news(type(refused).__name__):
                self._log.warning("journal status not read", error=str(refused))
            return
        reach = self.journal.check(status)
        if reach.reaches is False and self._journal_outage.is_news("pruned"):
            self._log.warning("journal pruned after the stream was closed", **reach._asdict())

    def _begin_rebase(self, reason: str) -> None:
        cuts, head = self.feed.cuts, self._archive.head
        if not cuts.live or self.committer.blocked is not None or self.base_waits:
            return
        if head is None or head.history != cuts.history:
            return
        self.rebase_reason = reason
        self._rebasing = asyncio.create_task(self._run_rebase(reason))

    async def _run_rebase(self, reason: str) -> None:
        self._log.info("re-base scheduled", reason=reason)
        began_at = time.monotonic()
        self.rebase = Rebase(self._config, self.feed, self.committer, self._archive, self._executor)
        try:
            epoch = await self.rebase.run()
        except (Fenced, ChecksumDiffers) as final:
            self._counters.rebased("failed")
            if not self._failed.done():
                self._failed.set_exception(final)
        except Exception as failure:  # noqa: BLE001  # tried again; the epoch goes on meanwhile
            self._rebase_failures += 1
            self._counters.rebased("failed")
            delay = REBASE_AGAIN.delay(self._rebase_failures)
            self._not_before = time.monotonic() + delay
            self.rebase_problem = str(failure)
            if self.rebase_failing_since is None:
                self.rebase_failing_since = time.monotonic()
            expected = not isinstance(failure, AssertionError | TypeError | ValueError)
            news = self._rebase_outage.is_news(type(failure).__name__)
            level = self._log.warning if news else self._log.debug
            level(
                "re-base failed",
                reason=reason,
                error=str(failure),
                kind=type(failure).__name__,
                retry_in_s=round(delay, 1),
                exc_info=None if expected else failure,
            )
        else:
            self._rebase_failures = 0
            self._rebase_outage.end()
            self._counters.rebased("done")
            self.rebase_problem = self.rebase_failing_since = None
            self._log.info("re-base committed", epoch=epoch, reason=reason)
            self._epoch_committed(epoch, began_at)
        finally:
            self._rebasing = self.rebase = self.rebase_reason = None

    async def _drop_rebase(self) -> None:
        rebasing = self._rebasing
        if rebasing is not None:
            rebasing.cancel()
            await asyncio.wait([rebasing])


async def _until(event: asyncio.Event) -> None:
    await event.wait()


def usable(head: Head | None) -> Head | None:
    """``head``, if it records all that a diff after it needs; archives of other writers may not."""
    if head is None or None in (head.history, head.rows, head.checksum, head.columns):
        return None
    return head
