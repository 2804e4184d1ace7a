"""A segment in the ingest: its process, its reports, its share of the disk."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.catchup import plan, spool
from laredo_fanout.catchup.plan import Failure, Order, Report, Segment, SpoolPiece
from laredo_fanout.watchdog import SEGMENT, Watchdog, Watched
from laredo_service.log import native_stderr
from laredo_service.retry import Backoff

if TYPE_CHECKING:
    from laredo_fanout.catchup.plan import CatchupOptions

_log = structlog.get_logger()

_RETRY = Backoff(initial=0.2, maximum=5.0)
_NO_ROOM_RETRY = Backoff(initial=5.0, maximum=5.0)
_SLOT_NAME_BYTES = 63
_END_PATIENCE_S = 5.0


def temporary_name(slot: str, segment: int) -> str:
    """A unique name for a copy of the slot."""
    ending = f"_segment_{segment}_{secrets.token_hex(4)}"
    return slot[: _SLOT_NAME_BYTES - len(ending)] + ending


class SegmentRun:
    """A segment that is being decoded, or has been.

    ``segment`` is its part that survives a power loss, ``pieces`` everything that its
    processes have reported. ``heard`` is True once a process has reported. ``failures``
    counts successive processes that ended without progress.
    """

    def __init__(self, segment: Segment, source: Order, watchdog: Watchdog) -> None:
        self.segment = segment
        self.plan_start = segment.start
        self.pieces: list[SpoolPiece] = list(segment.pieces)
        self._order = source
        self._watchdog = watchdog
        self._watched: Watched | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self.heard = False
        self._next_piece = segment.next_piece
        self._start_at = 0.0
        self.position = segment.position
        self.reached = segment.position
        self.changes = 0
        """Number of rows that its process has decoded."""
        self.restarts = 0
        self.failures = 0
        self.failure: Failure | None = None
        self.error = ""
        self.paused = False
        self.held_back = False
        """True if the segment must wait until it is the head."""
        self.done = segment.done

    @property
    def number(self) -> int:
        """Number of the segment, from 0."""
        return self.segment.number

    @property
    def pid(self) -> int | None:
        """Pid of the segment's process, or None."""
        return None if self._process is None else self._process.pid

    @property
    def spooled_bytes(self) -> int:
        """Size of the segment's pieces, in bytes."""
        return sum(piece.size for piece in self.pieces)

    @property
    def due(self) -> bool:
        """True if a process must be started now."""
        waits = self.held_back or time.monotonic() < self._start_at
        return not self.done and self._process is None and not waits

    def start(self, after: int) -> int:
        """Start a process that continues the last one's work, but not before ``after``.

        Returns the descriptor to wait for.
        """
        start = max(self.position, after)
        order = replace(
            self._order,
            temporary=temporary_name(self._order.slot, self.number),
            segment=self.number,
            start=start,
            stop=self.segment.stop,
            piece=self._next_piece,
        )
        watched = self._watchdog.watch(SEGMENT, f"segment-{self.number}")
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "laredo_fanout.catchup.segment_process", str(watched.end)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=native_stderr(),
                bufsize=0,
                pass_fds=[watched.end],
                # A terminal's Ctrl-C is for the main process, which ends the others.
                process_group=0,
            )
        except OSError:
            watched.close()
            raise
        watched.started(process)
        self._process, self._watched = process, watched
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._unread = b""
        self.error = ""
        self.paused = False
        with suppress(BrokenPipeError):  # the process has ended already, and so does its stdout
            process.stdin.write(order.to_bytes())
        return process.stdout.fileno()

    def take_reports(self) -> bool:
        """Take the reports of the segment's process; False if there were none."""
        process = self._process
        if process is None or process.stdout is None:
            return False
        reported = False
        while (read := process.stdout.read(65536)) is not None:
            if not read:
                self._ended(process)
                return True
            *lines, self._unread = (self._unread + read).split(b"\n")
            for line in lines:
                self._take(plan.report_from_bytes(line))
                reported = True
        return reported

    def pause(self, *, paused: bool) -> None:
        """Make the process read nothing more from PostgreSQL for a while, or continue."""
        if paused != self.paused:
            self.paused = paused
            self._say(plan.PAUSE if paused else plan.GO_ON)

    def finish(self) -> None:
        """Make the process stop at the end of its present transaction."""
        self._say(plan.FINISH)

    def forget(self, pieces: Sequence[SpoolPiece]) -> None:
        """Forget pieces that were released and removed."""
        gone = {piece.number for piece in pieces}
        self.pieces = [piece for piece in self.pieces if piece.number not in gone]
        kept = tuple(piece for piece in self.segment.pieces if piece.number not in gone)
        start = max((piece.position for piece in pieces), default=0)
        self.segment = replace(self.segment, start=max(self.segment.start, start), pieces=kept)

    def give_way(self) -> None:
        """End the process, forget the pieces, and begin again when the segment is the head."""
        self.kill()
        self.pieces = []
        self.segment = replace(self.segment, pieces=(), done=False)
        self.position = self.reached = self.segment.position
        self.done = self.paused = False
        self.failure, self.failures = None, 0
        self.held_back = True

    def kill(self) -> None:
        """Kill the process; PostgreSQL drops its copy of the slot."""
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait()
        self._close(process)

    def _say(self, byte: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # the process has ended, as its stdout will show
                self._process.stdin.write(byte)

    def _take(self, report: Report) -> None:
        if report.failure is not None:
            self.failure, self.error = report.failure, report.error
            return
        self.heard = True
        self._next_piece = report.piece + 1
        if report.size:
            piece = SpoolPiece(report.piece, report.size, report.position)
            if self.pieces and self.pieces[-1].number == report.piece:
                self.pieces[-1] = piece
            else:
                self.pieces.append(piece)
        if report.position > self.position or report.done:
            self.failures = 0
        self.position = max(self.position, report.position)
        self.reached = max(self.reached, report.reached)
        self.changes = report.changes
        self.done = self.done or report.done
        if report.synced:
            self.segment = replace(self.segment, pieces=tuple(self.pieces), done=self.done)

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        code = _exit_code(process)
        if self._watched is not None and self._watched.verdict is not None:
            self.error = f"it was {self._watched.verdict}"
        self._close(process)
        # Bytes that weren't reported are of no use: the next process begins another piece.
        newest = self._next_piece - 1
        known = self.pieces[-1].size if self.pieces and self.pieces[-1].number == newest else 0
        spool.drop_unreported(self._order.path, self.number, newest, known)
        self._next_piece += 1
        if self.done:
            return
        self.failures += 1
        self.restarts += 1
        no_room = self.failure is Failure.NO_ROOM
        pause = (_NO_ROOM_RETRY if no_room else _RETRY).delay(self.failures)
        self._start_at = time.monotonic() + pause
        _log.warning(
            "segment process died; restart scheduled",
            segment=self.number,
            pid=process.pid,
            exit_code=code,
            error=self.error or None,
            failures=self.failures,
        )

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        if self._watched is not None:
            self._watched.close()
        self._process = self._watched = None


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Exit code of a process that has closed its stdout, and so is about to end."""
    try:
        return process.wait(_END_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


_PAUSE_FROM, _GO_ON_BELOW = 0.9, 0.7


def bound(runs: Sequence[SegmentRun], unread_bytes: int, options: CatchupOptions) -> None:
    """Pause segments if the spools are too large, the last one first.

    ``runs`` begin with the head, of which ``unread_bytes`` aren't read yet. The head is paused only
    if these are enough for a while.
    """
    head = runs[0]
    most, spooled = options.spool_max_bytes, sum(run.spooled_bytes for run in runs)
    active = [run for run in runs if run.pid is not None]
    if spooled > _PAUSE_FROM * most:
        enough = unread_bytes > 2 * options.piece_bytes
        running = [run for run in active if not run.paused and (run is not head or enough)]
        if running:
            running[-1].pause(paused=True)
    elif spooled < _GO_ON_BELOW * most:
        stopped = [run for run in active if run.paused]
        if stopped:
            stopped[0].pause(paused=False)
    if head.paused and unread_bytes <= options.piece_bytes:
        head.pause(paused=False)


def give_back(later: Sequence[SegmentRun], directory: Path) -> bool:
    """Remove the spool of the last of these segments that has one; False if none has.

    The segment waits until it is the head.
    """
    spooling = [run for run in later if run.pieces or run.pid is not None]
    if not spooling:
        return False
    run = spooling[-1]
    _log.warning(
        "segment delayed: no disk space for its spool",
        segment=run.number,
        bytes=run.spooled_bytes,
        error=run.error or None,
    )
    run.give_way()
    for path in spool.paths(directory, run.number):
        path.unlink(missing_ok=True)
    return True
