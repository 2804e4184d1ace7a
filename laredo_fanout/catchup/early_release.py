"""Segments behind the head, released as they are decoded (``ordering = relaxed``).

Each segment's transactions go into the store in their order, as soon as they are in its spool,
beside the head's; the store lets the last position win. How far each is released is written in
the same commit as the rows. Where a transaction must wait for its turn (``source/early.py``) its
segment stops until it is the head, and what is left of it is released as it always is. Where rows
lack columns and there are none to borrow them from, it is tried again now and then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.catchup.spool import SegmentReader
from laredo_fanout.source import message as message_
from laredo_fanout.source.early import RoutesOfPart
from laredo_fanout.source.route import IGNORED
from laredo_fanout.source.stream_decoder import Drained, StreamDecoder
from laredo_model import position as position_

if TYPE_CHECKING:
    from collections.abc import Hashable

    from laredo_fanout.catchup.segment_run import SegmentRun
    from laredo_fanout.source.early import EarlyTables
    from laredo_fanout.source.write_batch import WriteBatch

_log = structlog.get_logger()

_MESSAGES_A_STEP = 5_000
_MOST_BYTES = 16 << 20
"""Of one transaction; a larger one is applied in pieces, in its turn."""
_TRY_AGAIN_S = 0.25
_ROWS = (message_.INSERT, message_.UPDATE, message_.DELETE, message_.RELATION)


class EarlyRelease:
    """The segments behind the head, one after the other, some transactions of each at a time."""

    def __init__(
        self,
        directory: Path,
        runs: Sequence[SegmentRun],
        batch: WriteBatch,
        tables: EarlyTables,
    ) -> None:
        self._segments = {run.number: _EarlySegment(directory, run, batch, tables) for run in runs}

    def step(self) -> int:
        """Release some of each; how many bytes were read."""
        return sum(segment.step() for segment in list(self._segments.values()))

    @property
    def has_more(self) -> bool:
        """Whether something is there that needn't wait."""
        return any(segment.has_more for segment in self._segments.values())

    def waits(self, run: SegmentRun) -> bool:
        """Whether the next of it must wait for its turn."""
        segment = self._segments.get(run.number)
        return segment is not None and segment.waits

    def piece(self, run: SegmentRun) -> int | None:
        """The number of the piece that is being read."""
        segment = self._segments.get(run.number)
        return None if segment is None else segment.piece

    def leave(self, run: SegmentRun) -> None:
        """It is the head now."""
        segment = self._segments.pop(run.number, None)
        if segment is not None:
            segment.close()

    def close(self) -> None:
        """Close all files."""
        for segment in self._segments.values():
            segment.close()


class _EarlySegment:
    """One of them. What was read and not released is kept in memory: part of a transaction."""

    def __init__(
        self, directory: Path, run: SegmentRun, batch: WriteBatch, tables: EarlyTables
    ) -> None:
        self._directory = directory
        self._run = run
        self._batch = batch
        self._tables = tables
        self._version: Hashable = None
        self.waits = False
        self._begin()

    def _begin(self) -> None:
        """Read on behind what was released, by routes that are right now."""
        run = self._run
        self._version = self._tables.version()
        self._reader = SegmentReader(self._directory, run.number, run.segment.released)
        self._routes = RoutesOfPart(self._tables, IGNORED)
        spools = self._directory / f"early-{run.number}"
        self._decoder = StreamDecoder(self._routes, lambda _: False, spools, run.segment.released)
        self._messages: list[bytes] = []
        self._ends: list[int] = []
        self._open_bytes = 0
        self._held: deque[list[bytes]] = deque()
        """Transactions of which the first lacks columns."""
        self._try_at = 0.0

    @property
    def has_more(self) -> bool:
        """Whether something is there that needn't wait."""
        return not self.waits and not self._held and not self._reader.at_end

    @property
    def piece(self) -> int:
        """The number of the piece that is being read."""
        return self._reader.piece

    def step(self) -> int:
        """Release some; how many bytes were read."""
        if self.waits:
            return 0
        if self._version != self._tables.version():
            self._reader.close()
            self._begin()
        if self._held:
            return self._release_held() if time.monotonic() >= self._try_at else 0
        self._reader.know(self._run.pieces)
        try:
            read = self._reader.read()
        except OSError as failed:
            # In its turn that ends the plan.
            self._wait(f"its spool can't be read: {failed}")
            return 0
        before = len(self._messages)
        why = self._gather()
        gathered = sum(map(len, self._messages[before:]))
        if self._ends:
            why = self._release() or why
        if why is not None:
            self._wait(why)
        return max(read, gathered)

    def close(self) -> None:
        """Close its file."""
        self._reader.close()
        self._decoder.close()

    def _wait(self, why: str) -> None:
        self.waits = True
        self._messages, self._ends = [], []
        _log.info(
            "a segment waits for its turn",
            segment=self._run.number,
            released=position_.text(self._run.segment.released),
            reason=why,
        )

    def _gather(self) -> str | None:
        """Take messages, to the end of a transaction if there is one; why what comes must wait."""
        messages, get = self._messages, self._reader.get
        for _ in range(_MESSAGES_A_STEP):
            size, message = get(1)
            if size <= 0:
                break
            kind = message[message_.ENVELOPE]
            if kind not in _ROWS and self._tables.waits(message):
                return "a TRUNCATE or a barrier"
            messages.append(message)
            self._open_bytes += size
            if kind == message_.COMMIT:
                self._ends.append(len(messages))
                self._open_bytes = 0
            elif self._open_bytes > _MOST_BYTES:
                return "a giant transaction"
            get = self._reader.get
        return None

    def _release(self) -> str | None:
        """Release the whole transactions; why the first that isn't must wait."""
        ends, self._ends = self._ends, []
        whole, self._messages = self._messages[: ends[-1]], self._messages[ends[-1] :]
        if self._put(whole):
            return None
        if self._routes.must_wait:
            return "a table's form or copy"
        starts = [0, *ends[:-1]]
        self._held.extend(whole[start:end] for start, end in zip(starts, ends, strict=True))
        self._release_held()
        return None

    def _release_held(self) -> int:
        """Try again what lacked columns: the rows to borrow them from may be there now."""
        released = 0
        while self._held and self._put(self._held[0]):
            released += sum(map(len, self._held.popleft()))
        self._try_at = time.monotonic() + _TRY_AGAIN_S
        return released

    def _put(self, messages: list[bytes]) -> bool:
        """Write these whole transactions if they may be written now."""
        decoder, coming = self._decoder, iter(messages)

        def get(_: int) -> tuple[int, bytes]:
            message = next(coming, b"")
            return len(message), message

        while decoder.drain(get, len(messages) + 1) is not Drained.EMPTY:
            continue
        routes = decoder.pending
        fit = not self._routes.must_wait and self._batch.fits_early(routes)
        if fit:
            self._batch.apply_early(routes)
            self._run.released_to(decoder.position)
        decoder.applied()
        return fit
