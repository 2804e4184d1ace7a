"""The committer: the one queue into a table's archive; artifacts are committed in its order.

An unavailable destination holds the queue: the same commit is retried, with a growing wait, until
it succeeds. The feed watches :attr:`Committer.blocked` and the memory that waits here.

An artifact waits until the server has verified the position of its end. Until then silent DDL,
unknown to the server, may have rewritten values before that position, so that the artifact's rows
are too old. Such an artifact is discarded.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from laredo_archive.errors import (
    CommitUnavailable,
    DestinationError,
    OutOfOrder,
    SpoolUnavailable,
)
from laredo_archive.manifest.model import EpochPosition
from laredo_archive.manifest.updates import Head
from laredo_archive.write.base_upload import Base
from laredo_archive.write.table_archive import TableArchive
from laredo_model import position as position_
from laredo_model.position import Position
from laredo_service.retry import Backoff, Outage
from laredo_snapshotter.diff.buffer import DiffSummary, FrozenBuffer
from laredo_snapshotter.diff.cuts import VerifiedPosition
from laredo_snapshotter.errors import NeverVerified
from laredo_snapshotter.metrics import TableCounters

# The commit of a diff: a frozen buffer is encoded, and appended to the archive.

UNWRITTEN = object()
"""Result of a diff without changes."""


class Written(NamedTuple):
    """A diff that was committed."""

    epoch: int
    from_position: Position
    to_position: int
    outcome: DiffSummary
    size_bytes: int

    def to_log(self) -> dict[str, object]:
        """Fields for the log."""
        return {
            "epoch": self.epoch,
            "from_position": position_.text(self.from_position),
            "to_position": position_.text(self.to_position),
            "changes": self.outcome.change_count,
            "rows": self.outcome.rows,
            "size_bytes": self.size_bytes,
        }


class Unwritten:
    """Number of changes that cancelled each other, in buffers that were empty and not written."""

    def __init__(self) -> None:
        self.cancelled = 0
        """Keys."""
        self.unchanged_until: int | None = None
        """The last position before the first of these changes; None if there is none."""

    def take(self, frozen: FrozenBuffer, cancelled: int) -> None:
        """One more of them."""
        self.cancelled += cancelled
        self.unchanged_until = self.before(frozen)

    def before(self, frozen: FrozenBuffer) -> int | None:
        """The last position before the first change of these and of ``frozen``."""
        return frozen.unchanged_until if self.unchanged_until is None else self.unchanged_until

    def clear(self) -> None:
        """A diff that records it was written."""
        self.cancelled = 0
        self.unchanged_until = None


class DiffCommit:
    """One diff's commit; run again after CommitUnavailable it is the same commit."""

    def __init__(
        self,
        archive: TableArchive,
        frozen: FrozenBuffer,
        formats: tuple[str, ...],
        unwritten: Unwritten,
        follows: Callable[[], EpochPosition | None],
    ) -> None:
        """``follows`` returns the archive's end after the jobs before it."""
        self._archive = archive
        self._frozen = frozen
        self._formats = formats
        self._unwritten = unwritten
        self._follows = follows
        self._measured: tuple[Position, DiffSummary] | None = None

    def run(self) -> object:
        """Commit it, in a thread; return what was written, or UNWRITTEN if there was nothing."""
        frozen = self._frozen
        start, outcome = self._measure()
        if outcome.empty and not (frozen.forced and frozen.to_position > start):
            self._unwritten.take(frozen, outcome.cancelled)
            frozen.close()
            return UNWRITTEN
        artifact = self._archive.commit_diff(
            frozen.changes(),
            from_position=start,
            to_position=Position(frozen.to_position),
            to_time=time_of(frozen.to_time_us),
            rows=outcome.rows,
            checksum=outcome.checksum,
            formats=self._formats,
            truncate=outcome.truncate,
            cancelled=outcome.cancelled + self._unwritten.cancelled,
            unchanged_until=_after(start, frozen, self._unwritten),
            history=frozen.history,
        )
        self._unwritten.clear()
        frozen.close()
        return Written(artifact.epoch, start, frozen.to_position, outcome, artifact.size_bytes)

    def _measure(self) -> tuple[Position, DiffSummary]:
        if self._measured is None:
            head = self._archive.head
            assert head is not None and head.rows is not None and head.checksum is not None
            if _end(head) != self._follows():
                # Changes that an earlier session's thread has written since would be in it twice.
                raise OutOfOrder(
                    f"the archive was extended to {position_.text(head.position)} by a session that"
                    " has ended; the writer reads the manifest again"
                )
            self._measured = head.position, self._frozen.measure(head.rows, head.checksum)
        return self._measured


def _end(head: Head | None) -> EpochPosition | None:
    return None if head is None else EpochPosition(head.epoch, head.position)


def _after(start: Position, frozen: FrozenBuffer, unwritten: Unwritten) -> Position | None:
    """The last position at which the table is known to be as at ``start``, if that is later."""
    until = unwritten.before(frozen)
    known = frozen.to_position if until is None else until
    return Position(known) if known > start else None


def time_of(microseconds: int | None) -> datetime | None:
    """A commit time in microseconds since 1970 as a datetime."""
    if microseconds is None:
        return None
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)


log = structlog.get_logger(__name__)

RETRY = Backoff(initial=0.5, maximum=15.0)
PROMPT_S = 10.0
"""A commit that isn't done by then, in addition to the time for its bytes, counts as held: a
destination may take a request and never answer, which its own timeouts notice much later."""
_SLOW_BYTES_S = 5e6
"""Bytes of a diff that are encoded and stored each second, at least, if nothing hangs."""


class CommitBlocked(NamedTuple):
    """Reason why nothing is committed at the moment: a destination is unavailable, or very slow."""

    reason: str
    since: float
    """Monotonic."""
    attempts: int


class Unverified(NamedTuple):
    """The next artifact can't be committed before the server has verified its end."""

    position: int
    """Its end."""
    verified: int
    """The server's verified position."""
    since: float
    """Monotonic."""


class Waiting(NamedTuple):
    """Artifacts and changes that aren't committed yet."""

    artifacts: int
    """Diffs and bases."""
    changes: int
    """Changed keys of these diffs."""


class _Job(NamedTuple):
    """One commit that waits in the queue."""

    what: str
    work: Callable[[], object]
    done: "asyncio.Future[object] | None"
    """Future of the waiter, who gets a failure; if nobody waits, a failure ends the committer."""
    until: int | None = None
    """Position where it ends; None: it may be committed whatever is verified."""
    begins_chain: bool = False
    """True for a base without which the jobs after it have nothing to follow."""
    frozen: FrozenBuffer | None = None
    number: int = 0
    """They count up."""

    @property
    def memory_bytes(self) -> int:
        return 0 if self.frozen is None else self.frozen.memory_bytes

    @property
    def spilled_bytes(self) -> int:
        return 0 if self.frozen is None else self.frozen.spilled_bytes


class Committer:
    """Commits one table's artifacts. The methods belong to one event loop, the work to threads."""

    def __init__(
        self,
        archive: TableArchive,
        table: str,
        diff_formats: tuple[str, ...],
        executor: Executor,
        counters: TableCounters,
        *,
        verified: VerifiedPosition,
    ) -> None:
        self._archive = archive
        self._diff_formats = diff_formats
        self._executor = executor
        self._counters = counters
        self._unwritten = Unwritten()
        self._end = _end(archive.head)
        """The archive's end after the jobs that are done."""
        self._jobs: deque[_Job] = deque()
        self._blocked: CommitBlocked | None = None
        self._outage = Outage()
        self._verified = verified
        verified.notify(self._notify)
        self._working: _Job | None = None
        self._thread: Future[object] | None = None
        """The last attempt at a job, in its thread."""
        self._waits_since = time.monotonic()
        self._changed = asyncio.Event()
        self._table = table
        self.newest = 0
        """Number of the job that was put last."""
        self.discarded = 0
        """Artifacts that were never verified."""
        self._log = log.bind(table=table)
        self.last_write = time.monotonic()
        """Time of the manifest's last write, monotonic."""

    @property
    def blocked(self) -> CommitBlocked | None:
        """Not None while a destination is unavailable, or a commit isn't done in time."""
        return self._blocked

    @property
    def unverified(self) -> Unverified | None:
        """Not None while the next commit waits to be verified."""
        job = self._jobs[0] if self._jobs else None
        if job is None or job is self._working or not self._waits(job):
            return None
        verified = self._verified.position
        assert job.until is not None and verified is not None
        return Unverified(job.until, verified, self._waits_since)

    def waiting(self, newest: int | None = None) -> Waiting:
        """Uncommitted part of the jobs up to number ``newest``, or of all jobs."""
        jobs = [job for job in self._jobs if newest is None or job.number <= newest]
        artifacts = sum(job.frozen is not None or job.done is not None for job in jobs)
        return Waiting(artifacts, sum(job.frozen.depth for job in jobs if job.frozen is not None))

    @property
    def waiting_bytes(self) -> int:
        """Memory of the frozen buffers that aren't committed."""
        return sum(job.memory_bytes for job in self._jobs)

    @property
    def waiting_spilled_bytes(self) -> int:
        """Disk space of the frozen buffers that aren't committed."""
        return sum(job.spilled_bytes for job in self._jobs)

    def waiting_changes(self, after: int) -> int:
        """Changed keys of the frozen buffers that end after ``after``, the archive's head."""
        # The job that is being committed may be in the archive already.
        return sum(
            job.frozen.depth
            for job in self._jobs
            if job.frozen is not None and job.frozen.to_position > after
        )

    def has_all_until(self, position: int) -> bool:
        """True if all jobs that end at or before ``position`` are committed and verified."""
        waits = any(job.until is not None and job.until <= position for job in self._jobs)
        return not waits and self._verified.covers(position)

    @property
    def idle(self) -> bool:
        """True if all jobs are committed."""
        return not self._jobs

    def put(self, frozen: FrozenBuffer) -> None:
        """Commit ``frozen`` as a diff, unless it turns out to be empty and isn't forced."""
        commit = DiffCommit(
            self._archive, frozen, self._diff_formats, self._unwritten, lambda: self._end
        )
        self._add(
            _Job(
                f"diff up to {position_.text(frozen.to_position)}",
                commit.run,
                None,
                frozen.to_position,
                frozen=frozen,
            )
        )

    def see(self, position: Position, unchanged_until: int | None = None) -> None:
        """Record in the manifest that the table at ``position`` is the one at the head.

        ``unchanged_until``: up to where no change came and went; None: up to there.
        """

        def work() -> None:
            # When its turn comes all that was put before is known to be written, or not to be.
            known = [each for each in (unchanged_until, self._unwritten.unchanged_until) if each]
            self._archive.see(position, Position(min([position, *known])))

        self._add(_Job("seen_position", work, None, position))

    def record_notices(self) -> None:
        """Record in the manifest which artifacts sinks were notified of."""
        self._add(_Job("the sinks' notices", self._archive.record_notices, None))

    def put_base(
        self, base: Base, *, continues: bool, reason: str | None = None
    ) -> "asyncio.Future[object]":
        """Commit ``base`` as a new epoch, after all that was put before; the result is for
        :meth:`epoch_of`.

        ``reason``: reason why it doesn't continue the epoch before.
        """

        def work() -> object:
            based = self._archive.commit_base(base, continues=continues, reason=reason)
            if not continues:
                self._unwritten.clear()
            return based.epoch

        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        until = base.artifact.to_position
        what = f"base of epoch {base.artifact.epoch}"
        self._add(_Job(what, work, done, until, begins_chain=not continues))
        return done

    async def epoch_of(self, putting: "asyncio.Future[object]") -> int:
        """The epoch that a base began, once it is committed.

        :raises ArchiveError: as TableArchive.commit_base, but for an unavailable destination,
            which is waited for.
        :raises NeverVerified: if the table changed before its position was verified.
        """
        epoch = await putting
        assert isinstance(epoch, int)
        self._counters.artifact("snapshot")
        return epoch

    def cut_off(self) -> int:
        """Discard the artifacts that aren't verified, and return their number.

        The others are committed whatever the server verifies from now on: the changes that come
        now don't follow them.
        """
        kept: deque[_Job] = deque()
        unverified = []
        for job in self._jobs:
            if job is self._working or not self._waits(job):
                kept.append(job if job is self._working else job._replace(until=None))
            else:
                unverified.append(job)
        self._jobs = kept
        for job in unverified:
            self._discard(job)
        if unverified:
            self._notify()
        return len(unverified)

    async def run(self) -> None:
        """Work off the queue until cancelled.

        :raises ArchiveError: if a diff, or the base that it follows, can't be committed, now or
            ever.
        :raises OSError: if a spill file can't be read.
        """
        while True:
            while self._jobs and not self._waits(self._jobs[0]):
                self._working = self._jobs[0]
                await self._finish(self._working)
                self._jobs.popleft()
                self._working = None
                self._waits_since = time.monotonic()
                self._notify()
            await self.progress()

    def close(self) -> None:
        """Drop all jobs, once :meth:`run` has ended, and give their memory and disk space back.

        Those of a job that a thread still works on are given back when it is done.
        """
        for job in self._jobs:
            frozen = job.frozen
            if frozen is not None and job is self._working and self._thread is not None:
                self._thread.add_done_callback(partial(_close, frozen))
            elif frozen is not None:
                frozen.close()
        self._jobs.clear()

    async def progress(self) -> None:
        """Wait until something changes here."""
        await self._changed.wait()

    async def drained(self) -> None:
        """Wait until all is committed."""
        while self._jobs:
            await self.progress()

    async def settled(self) -> None:
        """Wait until all is committed, but for what must wait for a catalog check."""
        while self._jobs and self.unverified is None:
            await self.progress()

    def _waits(self, job: _Job) -> bool:
        return job.until is not None and not self._verified.covers(job.until)

    def _discard(self, job: _Job) -> None:
        if job.frozen is not None or job.done is not None:
            self.discarded += 1
        self._log.warning("unverified changes discarded", what=job.what)
        if job.frozen is not None:
            job.frozen.close()
        if job.done is not None and not job.done.done():
            assert job.until is not None
            job.done.set_exception(NeverVerified(self._table, job.until))

    def _add(self, job: _Job) -> None:
        if not self._jobs:
            self._waits_since = time.monotonic()
        self.newest += 1
        self._jobs.append(job._replace(number=self.newest))
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _finish(self, job: _Job) -> None:
        try:
            result = await self._offer(job)
        except Exception as failure:
            if job.done is not None and not job.done.cancelled():
                job.done.set_exception(failure)
            if job.done is None or job.begins_chain:
                raise
            return
        self._end = _end(self._archive.head)
        if result is not UNWRITTEN:
            self.last_write = time.monotonic()
        if job.done is not None and not job.done.cancelled():
            job.done.set_result(result)
        if isinstance(result, Written):
            self._counters.artifact("diff")
            self._log.info("diff committed", **result.to_log())

    async def _offer(self, job: _Job) -> object:
        """The job's result, after as many attempts as it takes."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((CommitUnavailable, DestinationError, SpoolUnavailable)),
            wait=RETRY,
            before_sleep=partial(self._hold, job),
        )
        try:
            result: object = await retrying(self._attempt, job)
        except Exception:
            # It isn't tried again, so it holds nothing up.
            self._blocked = None
            raise
        if self._blocked is not None:
            self._log.info("commit resumed", what=job.what, attempts=self._blocked.attempts)
            self._outage.end()
        self._blocked = None
        return result

    async def _attempt(self, job: _Job) -> object:
        loop = asyncio.get_running_loop()
        prompt = PROMPT_S + (job.memory_bytes + job.spilled_bytes) / _SLOW_BYTES_S
        overdue = loop.call_later(prompt, self._overdue, job, time.monotonic())
        try:
            self._thread = self._executor.submit(job.work)
            return await asyncio.wrap_future(self._thread)
        finally:
            overdue.cancel()

    def _overdue(self, job: _Job, since: float) -> None:
        if self._blocked is not None:
            return
        seconds = time.monotonic() - since
        reason = (
            f"the commit of the {job.what} isn't done after {seconds:.0f} s:"
            f" {' or '.join(self._archive.heads)} doesn't answer, or very slowly"
        )
        self._blocked = CommitBlocked(reason, since, 1)
        self._log.warning("commit held", what=job.what, error=reason, attempt=1)
        self._notify()

    def _hold(self, job: _Job, state: RetryCallState) -> None:
        assert state.outcome is not None
        error = state.outcome.exception()
        failure = str(error)
        since = time.monotonic() if self._blocked is None else self._blocked.since
        self._blocked = CommitBlocked(failure, since, state.attempt_number)
        # A failure of another destination is news.
        place = getattr(error, "location", None)
        news = self._outage.is_news(f"{type(error).__name__} {place}")
        level = self._log.warning if news else self._log.debug
        level(
            "commit held",
            what=job.what,
            error=failure,
            attempt=state.attempt_number,
            retry_in_s=round(state.upcoming_sleep, 2),
        )
        self._notify()


def _close(frozen: FrozenBuffer, done: "Future[object]") -> None:
    del done
    frozen.close()
