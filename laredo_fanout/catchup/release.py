"""Segments' transactions, released: what a session of the stream takes instead of the slot's own
stream.

The head segment is read, while it is still being decoded, then the next. What is released
goes through the very same decoder, tables, copies, catalog checks and barriers as the slot's own
stream does.
"""

from __future__ import annotations

import os
import select
import shutil
import time
from collections.abc import Callable
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

    ``over``: another session must follow, because everything is released, or because
    of ``trouble`` (the plan is given up; nothing is lost by it); since ``over_at``.
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
        self._poll.register(self._more, select.EPOLLIN)
        remaining = [spool.remaining(self._directory, each, position) for each in plan.segments]
        self.runs = [SegmentRun(segment, order, watchdog) for segment in remaining]
        self.head = 0
        self._reader = self._reader_of(self.runs[0])
        self._finishing = self._ending = False
        self._kept_at = self._checked_at = 0.0
        self._unlinking: list[Path] = []
        self.over = False
        self.over_at = 0.0
        self.trouble: str | None = None

    # ------------------------------------------------------------ as a feed

    def fileno(self) -> int:
        """Readable when a process has reported, or more can be read."""
        return self._poll.fileno()

    @property
    def get(self) -> Callable[[int], tuple[int, bytes]]:
        """Gives the head segment's messages."""
        return self._reader.get

    def read_available(self) -> int:
        """Supervise the segments, and bring more of the head; how many bytes.

        :raises SourceUnavailable: if the server can't be reached.
        """
        heard = [run.take_reports() for run in self.runs]
        now = time.monotonic()
        if self._ending:
            return int(any(heard))
        if any(heard) or now - self._checked_at >= _CHECK_INTERVAL:
            self._checked_at = now
            self._supervise()
        taken = self._read()
        os.eventfd_write(self._more, 1) if self._has_more() else self._calm()
        if now - self._kept_at >= self._options.keep_interval and not self._ending:
            self._keep()
        return max(taken, int(any(heard)))

    def read_ahead(self) -> int:
        """Nothing: what the segments decode waits in their spools."""
        return 0

    def confirm(self, position: int, *, reply: bool = False) -> None:
        """Record that the store is durable up to ``position``; spools of earlier changes may go."""
        del reply
        self.durable = position

    def end(self) -> SourceError:
        """Never asked for: this feed has no end that is an error."""
        return SourceUnavailable("the segments' release ended")

    def close(self) -> None:
        """End every process; what is in spools stays for the next session, if the plan does."""
        for run in self.runs:
            run.kill()
        self._reader.close()
        self._poll.close()
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
        """Up to where nothing that was decoded isn't durable; 0 where that isn't known."""
        run = self.runs[self.head]
        level = self._reader.at_end and self.durable >= run.position
        return run.reached if self.only_tail and level else 0

    @property
    def decoded(self) -> int:
        """Position that the decoding of the last segment has reached."""
        return self.runs[-1].reached

    @property
    def waits_for_tail(self) -> bool:
        """True if only the last segment is left, and its spool has little that is unread."""
        unread = self._reader.unread_bytes
        heard = self.runs[-1].heard
        return self.only_tail and heard and unread < self._options.min_segment_bytes

    @property
    def is_kept(self) -> bool:
        """True if a power loss would lose nothing that the segments have reported."""
        kept = {segment.number: segment for segment in self._plan.segments}
        return all(kept.get(run.number) == run.segment for run in self.runs[self.head :])

    @property
    def restarts(self) -> int:
        """Number of processes that ended before their segments."""
        return sum(run.restarts for run in self.runs)

    def status(self) -> tuple[SegmentStatus, ...]:
        """The segments; from any thread."""
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
        """Have the ingest take a turn; from any thread, before it is closed."""
        os.eventfd_write(self._more, 1)

    def end_early(self) -> None:
        """End it: what comes next begins with what is durable."""
        if not self._ending:
            self._end()

    def give_up(self, why: str) -> None:
        """End it: the slot's own stream goes on from what is durable."""
        if not self._ending:
            self.trouble = why
            self._end()

    def _supervise(self) -> None:
        self.runs[self.head].held_back = False
        for run in self.runs[self.head :]:
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
                run.failures = min(run.failures, _MOST_FAILURES - 1)
            case Failure.NO_SPACE:
                self.give_up(f"its spool can't be written: {run.error}")
            case Failure.NO_ROOM if not is_head:
                # Its turn comes: the segments before it give their slots back.
                run.failures = min(run.failures, _MOST_FAILURES - 1)
            case Failure.NO_ROOM:
                self.give_up(run.error)
            case _ if run.failures >= _MOST_FAILURES:
                self.give_up(f"segment {run.number} can't be decoded: {run.error or 'killed'}")

    def _make_room(self) -> bool:
        """Free disk space for a spool that can't be written; False if there is none to free.

        Remove what was released, or have the last segment give up its spool.
        """
        released = any(run.pieces for run in self.runs[: self.head])
        read = any(piece.number < self._reader.piece for piece in self.runs[self.head].pieces)
        if self._unlinking or released or read:
            self._keep()
            return True
        return segment_run.give_back(self.runs[self.head + 1 :], self._directory)

    # ------------------------------------------------------------ release

    def _reader_of(self, run: SegmentRun) -> SegmentReader:
        """A reader of what wasn't released of the segment that is the head now."""
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
            self.give_up(f"its spool can't be read: {failed}")
            return 0
        return taken

    def _has_more(self) -> bool:
        return not self._reader.at_end or self.runs[self.head].done

    def _calm(self) -> None:
        try:
            os.eventfd_read(self._more)
        except BlockingIOError:
            return

    # ------------------------------------------------------------ the plan in the store

    def _keep(self) -> None:
        """Write the plan as it is into the store's transaction; then remove what was released."""
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
        """Forget the plan in the very commit that has all that was taken of it."""
        self._ending = True
        for run in self.runs:
            run.kill()
        if self.trouble is not None:
            _log.error(
                "split backlog given up; no change lost",
                reason=self.trouble,
            )
        self._batch.transaction.set_catchup_plan(None)
        self._batch.when_durable(self._ended)

    def _ended(self) -> None:
        self.over_at = time.monotonic()
        self.over = True
        shutil.rmtree(self._directory, ignore_errors=True)
        _log.info("segments released", position=position_.text(self.durable))
