"""The release of segments' transactions, which a session reads instead of the slot's own stream.

The head segment is read while it is still being decoded, then the next segment. Released messages
go through the same decoder, tables, copies, catalog checks and barriers as the slot's own stream.
"""

from __future__ import annotations

import os
import select
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.catchup import segment_run, spool
from laredo_fanout.catchup.plan import Failure, SegmentStatus
from laredo_fanout.catchup.segment_run import SegmentRun
from laredo_fanout.catchup.spool import SegmentReader
from laredo_fanout.postgres.connections import SourceError, SourceUnavailable
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.batch.write_batch import WriteBatch
    from laredo_fanout.catchup.plan import CatchupOptions, CatchupPlan, Order, SpoolPiece
    from laredo_fanout.watchdog import Watchdog

_log = structlog.get_logger()

_MOST_FAILURES = 5
_CHECK_INTERVAL = 0.1


class Release:
    """The feed of one session. ``durable`` is the position that was confirmed last.

    ``over`` is True from ``over_at`` on, if another session must follow: everything is
    released, or the plan was given up because of ``trouble``, which loses nothing.
    """

    local = True

    def __init__(
        self,
        options: CatchupOptions,
        order: Order,
        plan: CatchupPlan,
        batch: WriteBatch,
        position: int,
        *,
        may_end: Callable[[int], bool],
        watchdog: Watchdog,
    ) -> None:
        self._options = options
        self._directory = Path(order.directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        self._batch = batch
        self._after = self.durable = position
        self._may_end = may_end
        self._poll = select.epoll()
        self._more = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._waking = threading.Lock()
        self._closed = False
        self._poll.register(self._more, select.EPOLLIN)
        remaining = [spool.remaining(self._directory, each, position) for each in plan.segments]
        self.runs = [SegmentRun(segment, order, watchdog) for segment in remaining]
        self.head = 0
        self._reader = self._reader_of(self.runs[0])
        self._finishing = self._ending = self._heard = False
        self._kept_at = self._checked_at = 0.0
        self._unlinking: list[Path] = []
        self.over = False
        self.over_at = 0.0
        self.trouble: str | None = None

    # ------------------------------------------------------------ as a feed

    def fileno(self) -> int:
        """Descriptor that is readable when a process has reported, or spools have more."""
        return self._poll.fileno()

    @property
    def get(self) -> Callable[[int], tuple[int, bytes]]:
        """Function that returns the head segment's messages."""
        return self._reader.get

    def read_available(self) -> int:
        """Supervise the segments, and read more of the head; returns the bytes.

        :raises SourceUnavailable: if PostgreSQL can't be reached.
        """
        heard = any([self._heard, *(run.take_reports() for run in self.runs)])
        self._heard = False
        now = time.monotonic()
        if self._ending:
            return int(heard)
        if heard or now - self._checked_at >= _CHECK_INTERVAL:
            self._checked_at = now
            self._supervise()
        taken = self._read()
        if not self._reader.at_end or self.runs[self.head].done:
            os.eventfd_write(self._more, 1)
        else:
            with suppress(BlockingIOError):
                os.eventfd_read(self._more)
        if now - self._kept_at >= self._options.keep_interval and not self._ending:
            self._keep()
        return max(taken, int(heard))

    def read_ahead(self) -> int:
        """Take the segments' reports: a process waits until somebody takes them."""
        heard = [run.take_reports() for run in self.runs]
        if any(heard):
            self._heard = True
            os.eventfd_write(self._more, 1)
            segment_run.bound(self.runs[self.head :], self._reader.unread_bytes, self._options)
        return 0

    def confirm(self, position: int, *, reply: bool = False) -> None:
        """Record that the store is durable up to ``position``; spools of earlier changes may go."""
        del reply
        self.durable = position

    def end(self) -> SourceError:
        """The error of an ended feed, which never occurs here: ``get`` never returns -1."""
        return SourceUnavailable("the segments' release ended")

    def close(self) -> None:
        """End every process; the spools stay for the next session, if the plan does."""
        for run in self.runs:
            run.kill()
        self._reader.close()
        self._poll.close()
        with self._waking:
            self._closed = True
            os.close(self._more)

    # ------------------------------------------------------------ segments

    @property
    def spooled_bytes(self) -> int:
        """Size of all spools, in bytes."""
        return sum(run.spooled_bytes for run in self.runs)

    @property
    def only_tail(self) -> bool:
        """True if the last segment is the head."""
        return self.head == len(self.runs) - 1

    @property
    def reached(self) -> int:
        """Position up to which all decoded changes are durable; 0 if unknown."""
        run = self.runs[self.head]
        level = self._reader.at_end and self.durable >= run.position
        return run.reached if self.only_tail and level else 0

    @property
    def decoded(self) -> int:
        """Position that the decoding of the last segment has reached."""
        return self.runs[-1].reached

    @property
    def waits_for_tail(self) -> bool:
        """True if only the last segment is left, and little of its spool is unread."""
        unread = self._reader.unread_bytes
        heard = self.runs[-1].heard
        return self.only_tail and heard and unread < self._options.min_segment_bytes

    @property
    def restarts(self) -> int:
        """Number of processes that ended before their segments."""
        return sum(run.restarts for run in self.runs)

    def status(self) -> tuple[SegmentStatus, ...]:
        """Status of the segments; may be called from any thread."""
        return tuple(
            SegmentStatus(
                number=run.number,
                start=run.plan_start,
                stop=run.segment.stop,
                position=run.position,
                reached=run.reached,
                state=self._state(run),
                spooled_bytes=run.spooled_bytes,
                pid=run.pid,
            )
            for run in self.runs
        )

    def _state(self, run: SegmentRun) -> str:
        head = self.runs[self.head].number
        if run.number < head:
            return "released"
        if run.done:
            return "releasing" if run.number == head else "decoded"
        if run.paused:
            return "paused"
        if run.pid is None:
            return "waiting"
        return "releasing" if run.number == head else "decoding"

    def wake(self) -> None:
        """Make the ingest take a turn, unless the feed is closed; may be called from any thread."""
        with self._waking:
            if not self._closed:
                os.eventfd_write(self._more, 1)

    def end_early(self) -> None:
        """End the release, so that another plan can begin at the durable position."""
        if not self._ending:
            self._end()

    def give_up(self, why: str) -> None:
        """End the release, so that the slot's own stream resumes at the durable position."""
        if not self._ending:
            self.trouble = why
            self._end()

    def _supervise(self) -> None:
        self.runs[self.head].held_back = False
        for run in self.runs[self.head :]:
            if run.failure is Failure.NO_ROOM and run.pid is not None:
                # Its process is about to end, which counts the failure and sets the pause.
                continue
            if run.failure is not None or run.failures >= _MOST_FAILURES:
                self._failed(run)
            if self._ending:
                return
            if run.due:
                self._poll.register(run.start(self.durable), select.EPOLLIN)
                if self._finishing and run is self.runs[-1]:
                    run.finish()
        segment_run.bound(self.runs[self.head :], self._reader.unread_bytes, self._options)
        if self.only_tail and not self._finishing and self._may_end(self.durable):
            self._finishing = True
            self.runs[-1].finish()

    def _failed(self, run: SegmentRun) -> None:
        failure, run.failure = run.failure, None
        is_head = run is self.runs[self.head]
        match failure:
            case Failure.UNREACHABLE | Failure.GAP:
                raise SourceUnavailable(run.error)
            case Failure.NO_SPACE if self._make_room():
                # If its process hasn't ended yet, its end counts as one more.
                run.failures = min(run.failures, _MOST_FAILURES - 1 - (run.pid is not None))
            case Failure.NO_SPACE:
                self.give_up(f"the spool of segment {run.number} can't be written: {run.error}")
            case Failure.NO_ROOM if not is_head:
                # It waits: the segments before it will release their slots.
                run.failures = min(run.failures, _MOST_FAILURES - 1)
            case Failure.NO_ROOM:
                self.give_up(run.error)
            case _ if run.failures >= _MOST_FAILURES:
                self.give_up(f"segment {run.number} can't be decoded: {run.error or 'killed'}")

    def _make_room(self) -> bool:
        """Free disk space for a spool that can't be written; False if that is impossible.

        Released pieces are removed, or else the last segment gives up its spool.
        """
        released = any(run.pieces for run in self.runs[: self.head])
        read = any(piece.number < self._reader.piece for piece in self.runs[self.head].pieces)
        if self._unlinking or released or read:
            self._keep()
            return True
        return segment_run.give_back(self.runs[self.head + 1 :], self._directory)

    # ------------------------------------------------------------ release

    def _reader_of(self, run: SegmentRun) -> SegmentReader:
        """A reader of the unreleased transactions of the segment that is the head now."""
        return SegmentReader(self._directory, run.number, self._after)

    def _read(self) -> int:
        run = self.runs[self.head]
        self._reader.know(run.pieces)
        if run.done and self._reader.at_end:
            if self.only_tail:
                self._end()
                return 0
            self._reader.close()
            self.head += 1
            run = self.runs[self.head]
            self._reader = self._reader_of(run)
            self._reader.know(run.pieces)
            _log.info("segment release started", segment=run.number)
        try:
            taken = self._reader.read()
        except OSError as failed:
            self.give_up(f"the spool of segment {run.number} can't be read: {failed}")
            return 0
        return taken

    # ------------------------------------------------------------ the plan in the store

    def _keep(self) -> None:
        """Write the present plan in the store's transaction; remove released pieces afterwards."""
        self._kept_at = time.monotonic()
        for run in self.runs:
            gone = [piece for piece in run.pieces if self._is_over(run, piece)]
            if gone:
                run.forget(gone)
                self._unlinking += [
                    spool.path(self._directory, run.number, piece.number) for piece in gone
                ]
        segments = tuple(run.segment for run in self.runs if not self._is_released(run))
        plan = replace(self._plan, segments=segments)
        if plan != self._plan:
            self._plan = plan
            self._batch.transaction.set_catchup_plan(plan.to_bytes())
            self._batch.when_durable(self._unlink)

    def _is_over(self, run: SegmentRun, piece: SpoolPiece) -> bool:
        """True if nothing will read this piece again."""
        head = self.runs[self.head].number
        read = run.number < head or (run.number == head and piece.number < self._reader.piece)
        return read and piece.position <= self.durable

    def _is_released(self, run: SegmentRun) -> bool:
        return run.number < self.runs[self.head].number and not run.pieces

    def _unlink(self) -> None:
        unlinking, self._unlinking = self._unlinking, []
        for path in unlinking:
            path.unlink(missing_ok=True)

    def _end(self) -> None:
        """Forget the plan in the commit that has the last released changes."""
        self._ending = True
        for run in self.runs:
            run.kill()
        if self.trouble is not None:
            _log.error("split backlog given up; no change lost", reason=self.trouble)
        self._batch.transaction.set_catchup_plan(None)
        self._batch.when_durable(self._ended)

    def _ended(self) -> None:
        self.over_at = time.monotonic()
        self.over = True
        shutil.rmtree(self._directory, ignore_errors=True)
        _log.info("segments released", position=position_.text(self.durable))
