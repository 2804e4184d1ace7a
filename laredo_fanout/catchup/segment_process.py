"""Process that decodes a segment: ``python -m laredo_fanout.catchup.segment_process BEAT_FD``.

It streams from its own copy of the slot, and writes the segment's transactions to the
segment's spool. ``plan.py`` has its order and its reports.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable

from laredo_fanout.catchup import plan, spool
from laredo_fanout.catchup.plan import Failure, Order, Report
from laredo_fanout.catchup.segment_stream import SegmentStream
from laredo_fanout.catchup.spool import Announcements, PieceWriter
from laredo_fanout.decode.frames import gather
from laredo_fanout.errors import SourceUnfit
from laredo_fanout.postgres import pgoutput as message_
from laredo_fanout.postgres.connections import (
    ReplicationStreamBroken,
    SlotLost,
    SourceError,
    SourceUnavailable,
)
from laredo_fanout.watchdog import beat
from laredo_model import position

FAILED = 1
MAIN_IS_GONE = 3

_PREFIX = message_.PREFIX.encode()
_MESSAGES_A_TURN = 20_000
_BUSY_BYTES = 64 << 10
_NAP, _SHORT_NAP = 0.002, 0.001
_REPORT_INTERVAL = 1.0
_SYNC_INTERVAL = 2.0
_STATUS_INTERVAL = 5.0
_ATTEMPTS, _ATTEMPT_PAUSE = 4, 0.3
_NEVER = (1 << 64) - 1
_NICE = 10
"""Lower priority of decoding: if there are few cores, the release must go first."""


class SegmentDecoder:
    """Decoding of a segment, from its start or from the end of an earlier process's work."""

    def __init__(self, order: Order, stream: SegmentStream, send: Callable[[Report], None]) -> None:
        self._order = order
        self._stream = stream
        self._send = send
        self._stop = _NEVER if order.stop is None else order.stop
        self._piece = PieceWriter(order.path, order.segment, order.piece)
        self._announced = Announcements()
        self._whole = 0
        self._position = self._reached = order.start
        self._begun = 0
        self._gathered = 0
        self._changes = 0
        self._in_transaction = False
        self._reply_wanted = False
        self._reported: Report | None = None
        self._reported_at = self._synced_at = self._confirmed_at = self._heard_at = time.monotonic()
        self._more = False
        self.paused = False
        self.finishing = False
        self.done = False

    @property
    def busy(self) -> bool:
        """True if libpq's buffer has more messages, which need no wait."""
        return self._more and not self.paused

    def turn(self) -> None:
        """Read messages, write them to the spool, and report that.

        :raises SourceError: if the stream was cut, or sent another segment's transaction.
        :raises OSError: if the spool can't be written.
        """
        if not self.paused:
            taken = 0 if self._more else self._stream.read_available()
            if taken:
                self._heard_at = time.monotonic()
            self._more = self._drain()
            self._piece.flush()
            self._gathered = self._gathered + taken if taken or self._more else 0
            if self._gathered > _BUSY_BYTES and not self._more:
                # The walsender is faster if its reader isn't woken for each message.
                time.sleep(_SHORT_NAP if self._stream.local else _NAP)
        if self.finishing and not self._in_transaction:
            self.done = True
        self._stay_in_touch()

    def end(self) -> None:
        """Make the spool durable, and report that the segment is done."""
        self._piece.sync()
        self._send(self._report(synced=True, done=True))
        self._piece.close()

    def _drain(self) -> bool:
        """Add messages to the piece; False if there are no more."""
        left = _MESSAGES_A_TURN
        of = b""
        while left > 0:
            size, message, taken = gather(self._stream.get, left, of, self._piece.buffer)
            left -= taken
            self._changes += taken - (message is not None)
            if message is None:
                if size < 0:
                    raise self._stream.end()
                return size > 0
            try:
                if message[0] == message_.XLOG_DATA:
                    of = self._put(message)
                else:
                    self._keepalive(message)
            except message_.CUT_SHORT as error:
                raise message_.cut_short(error) from error
            if self.done or (self.finishing and not self._in_transaction):
                return False
        return True

    def _put(self, message: bytes) -> bytes:
        """Add a message that isn't another row of the same relation.

        Returns the oid of the relation whose rows may follow.
        """
        kind = message[message_.ENVELOPE]
        if kind in spool.ROWS:
            self._changes += 1
            self._rare(kind, message)
            return message[spool.OID]
        if kind == message_.BEGIN:
            if not self._begin(spool.final_position(message), self._stop):
                self._piece.add(message)
        elif kind == message_.COMMIT:
            self._piece.add(message)
            self._commit(message)
        elif kind == message_.MESSAGE and not message_.is_emitted_with(_PREFIX, message):
            pass  # another slot's
        elif self._in_transaction:
            self._rare(kind, message)
        # Messages outside of a transaction belong to none.
        return b""

    def _begin(self, final: int, stop: int) -> bool:
        """Begin a transaction; True if it is the next segment's, and this one is done."""
        if final >= stop:
            self._reached = stop
            self.done = True
            return True
        if final < max(self._order.start, self._begun):
            raise ReplicationStreamBroken(
                f"segment {self._order.segment} begins at {position.text(self._order.start)}, but"
                f" PostgreSQL sent a transaction that committed at {position.text(final)}"
            )
        self._begun = final
        self._in_transaction = True
        return False

    def _rare(self, kind: int, message: bytes) -> None:
        if kind in (message_.RELATION, message_.TYPE):
            self._announced.add(message)
        else:
            for repeated in self._announced.missing_before(message):
                self._piece.add(repeated)
        self._piece.add(message)

    def _commit(self, message: bytes) -> None:
        self._in_transaction = False
        self._position = message_.commit(message).position
        self._reached = max(self._reached, self._position)
        self._whole = self._piece.size
        if self._piece.size >= self._order.piece_bytes:
            self._next_piece()

    def _next_piece(self) -> None:
        self._piece.sync()
        self._report_now(synced=True)
        number = self._piece.number + 1
        self._piece.close()
        self._piece = PieceWriter(self._order.path, self._order.segment, number)
        self._whole = 0
        self._announced.forget()

    def _keepalive(self, message: bytes) -> None:
        keepalive = message_.keepalive(message)
        self._reply_wanted = self._reply_wanted or keepalive.wants_reply
        if self._in_transaction:
            return
        # Every transaction that committed before this position has been sent.
        self._reached = max(self._reached, keepalive.wal_end)
        if keepalive.wal_end >= self._stop:
            self.done = True

    def _stay_in_touch(self) -> None:
        now = time.monotonic()
        if self.paused:
            # Nothing is read, so PostgreSQL's silence begins with the end of the pause.
            self._heard_at = now
        if now - self._heard_at > self._order.receive_timeout:
            raise SourceUnavailable(f"PostgreSQL sent nothing for {now - self._heard_at:.0f} s")
        if self._reply_wanted or now - self._confirmed_at >= _STATUS_INTERVAL:
            # This loses nothing: the copy of the slot ends with this process, and the slot stays.
            self._piece.check_reachable()
            self._stream.confirm(
                self._position, reply=now - self._heard_at > self._order.receive_timeout / 3
            )
            self._reply_wanted = False
            self._confirmed_at = now
        if now - self._synced_at >= _SYNC_INTERVAL:
            self._piece.sync()
            self._report_now(synced=True)
            self._synced_at = now
        elif (
            self._reported is None
            or self._reported.size != self._whole
            or (now - self._reported_at >= _REPORT_INTERVAL)
        ):
            self._report_now(synced=False)

    def _report_now(self, *, synced: bool) -> None:
        self._reported = self._report(synced=synced)
        self._reported_at = time.monotonic()
        self._send(self._reported)

    def _report(self, *, synced: bool, done: bool = False) -> Report:
        return Report(
            self._piece.number,
            self._whole,
            self._position,
            self._reached,
            self._changes,
            synced=synced,
            done=done,
        )


def main() -> int:
    beat(int(sys.argv[1]))
    order = plan.order_from_bytes(_first_line())
    # A reload is for the main process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(_NICE)

    def send(report: Report) -> None:
        rest = memoryview(report.to_bytes())
        while rest:
            rest = rest[os.write(1, rest) :]

    try:
        _run(order, send)
    except (SourceError, OSError) as error:
        text = " ".join(str(error).split())
        failed = Report(order.piece, 0, 0, 0, failure=_failure(error), error=text)
        send(failed)
        return FAILED
    return 0


def _connect(order: Order) -> SegmentStream:
    """Connect and copy the slot; several attempts, as others may just be releasing a slot."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _connect_once(order)
        except SourceUnfit as full:
            if attempt == _ATTEMPTS:
                raise SourceUnfit(f"{full} ({attempt} attempts)") from full
        time.sleep(_ATTEMPT_PAUSE * random.uniform(0.5, 1.0))
    raise AssertionError


def _connect_once(order: Order) -> SegmentStream:
    try:
        stream = SegmentStream.connect(order.source, order.segment)
    except SourceUnavailable as refused:
        raise _Unreachable(str(refused)) from refused
    try:
        stream.copy_slot(order.slot, order.temporary, order.start)
    except BaseException:
        stream.close()
        raise
    return stream


def _run(order: Order, send: Callable[[Report], None]) -> None:
    stream = _connect(order)
    try:
        stream.start(order.temporary, order.publication, order.start, appends=order.appends)
        segment = SegmentDecoder(order, stream, send)
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(stream.fileno(), select.POLLIN)
        while not segment.done:
            if segment.paused:
                poll.unregister(stream.fileno())
            ready = dict(poll.poll(0 if segment.busy else 1000 * _REPORT_INTERVAL))
            if segment.paused:
                poll.register(stream.fileno(), select.POLLIN)
            if 0 in ready:
                _obey(segment)
            segment.turn()
        segment.end()
    finally:
        stream.close()


class _Unreachable(SourceUnavailable):
    """No connection could be made."""


def _obey(segment: SegmentDecoder) -> None:
    received = os.read(0, 64)
    if not received:
        os._exit(MAIN_IS_GONE)
    for number in received:
        match bytes((number,)):
            case plan.PAUSE:
                segment.paused = True
            case plan.GO_ON:
                segment.paused = False
            case plan.FINISH:
                segment.finishing = True


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(MAIN_IS_GONE)
        line += byte
    return line


def _failure(error: SourceError | OSError) -> Failure:
    match error:
        case OSError():
            return Failure.NO_SPACE
        case _Unreachable():
            return Failure.UNREACHABLE
        case SourceUnfit():
            return Failure.NO_ROOM
        case SlotLost():
            return Failure.GAP
        case SourceUnavailable():
            return Failure.CUT
        case _:
            return Failure.BROKEN


if __name__ == "__main__":
    sys.exit(main())
