"""The ingest's loop. Each turn: wait, copy rows, read the socket, decode, apply, commit, confirm.

A batch is committed at once when the stream is idle, about once a second under load, and less
often in a backlog.
"""

from __future__ import annotations

import select
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from laredo_fanout.decode.stream_decoder import DrainEnd
from laredo_fanout.errors import SpoolFull
from laredo_fanout.postgres.connections import SourceUnavailable
from laredo_fanout.postgres.replication_stream import BackgroundReading

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from laredo_fanout.batch.write_batch import WriteBatch
    from laredo_fanout.decode.stream_decoder import StreamDecoder
    from laredo_fanout.ingest.change_source import MessageFeed
    from laredo_fanout.ingest.session_tables import SessionTables
    from laredo_fanout.store.writer import Store

_MESSAGES_A_TURN = 20_000
_APPLY_FROM_CHANGES = 10_000
_APPLY_FROM_BYTES = 16 << 20
_BUSY_BYTES = 64 << 10
_SWOLLEN_BYTES = 64 << 20
_NAP_S, _SHORT_NAP_S = 0.002, 0.001
_COPY_SHARE_S = 0.03
_POSITION_INTERVAL_S = 0.2
_LONGEST_WAIT_S = 1.0
_COPIES_WAIT_S = 0.1
_RECLAIM = 5_000
_SILENCE_S = 0.05
"""Shorter pauses don't mean that the stream is idle: the walsender may sleep, or read WAL."""
_STATUS_INTERVAL_S = 10.0
_STATUS_WITHIN_S = 1.0


class StopRequested(Exception):
    """The server must stop while a giant transaction is applied, or a re-copy compared, in part."""


class IngestLoop:
    """Loop over one session's changes. The descriptor ``mail`` is readable when there are reports.

    The stream may be silent for ``patience`` seconds. ``busy`` is True if the last turn left
    messages.
    """

    def __init__(
        self,
        feed: MessageFeed,
        decoder: StreamDecoder,
        *,
        batch: WriteBatch,
        tables: SessionTables,
        store: Store,
        prune: Callable[[], None],
        mail: int,
        patience: float,
        stopping: threading.Event,
        confirmable: Callable[[], int] | None = None,
    ) -> None:
        """``confirmable`` returns the position that may be confirmed to a shared slot; without it
        the durable position is confirmed."""
        self._feed = feed
        self._decoder = decoder
        self._batch = batch
        self._tables = tables
        self._copies = tables.copies
        self._copier = tables.copier
        self._store = store
        self._prune = prune
        self._mail = mail
        self._patience = patience
        self._stopping = stopping
        self._confirmable = confirmable
        self._heard_at = self._confirmed_at = time.monotonic()
        self._gathered = 0
        """About the number of bytes since the last commit."""
        self._more = False
        """True if the decoder may have left messages in libpq's buffer."""
        self._unused = 0
        """About the number of bytes that were read since libpq's buffer was last empty."""
        self._swollen_at = 0
        self.busy = False
        self._background_reading = BackgroundReading(self._read_ahead)

    def turn(self) -> None:
        """Wait for messages or reports, take some of them, commit if that is due.

        :raises SourceError: if the stream was cut, has ended, or is silent for too long.
        :raises StoreError: if the store can't be written.
        """
        ready = self._wait()
        self._tables.take_reports()
        self._copy(ready)
        reached = self._decoder.wal_end
        taken = self._read()
        drained = self._decode(taken)
        self._apply_if_due(drained)
        if drained is DrainEnd.EVENT:
            self._tables.transaction_ended(self._decoder, self._keep_alive)
        self._pace(taken, drained, reached)
        self._commit_if_due()
        self._answer()
        self._reclaim_if_idle(drained)

    def close(self) -> None:
        """End the reading thread; no turn may follow."""
        self._background_reading.close()

    def commit_rest(self) -> None:
        """Commit the pending whole transactions; no turn may follow."""
        decoder = self._decoder
        has_changes = decoder.pending.routes or self._batch.is_open
        if has_changes or decoder.position > self._store.position:
            self._commit()
        else:
            self._confirm_again()

    @property
    def wal_end(self) -> int:
        """End of the server's WAL, as the stream last reported it."""
        return self._decoder.wal_end

    @property
    def oversized_at(self) -> int:
        """Position of a large message or a long step for which libpq's buffer grew for good."""
        return max(self._decoder.oversized_at, self._swollen_at)

    @property
    def caught_up_to(self) -> int:
        """Position up to which nothing is missing in the store."""
        decoder = self._decoder
        is_behind = decoder.pending.routes or decoder.position > self._store.position
        if decoder.in_transaction or is_behind:
            return self._store.position
        return max(self._store.position, decoder.wal_end)

    # ------------------------------------------------------------ wait

    def _wait(self) -> set[int]:
        """Wait for a descriptor; returns those that are readable."""
        poll = select.poll()
        descriptors = [self._feed.fileno(), self._mail]
        descriptors += [reader.fileno() for reader in self._copier.reading]
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll(1000 * self._longest_wait())}

    def _longest_wait(self) -> float:
        batch = self._batch
        if self.busy:
            return 0
        if self._holds_some:
            return max(0.0, self._due_in())
        if self._decoder.position > self._store.position:
            return max(0.0, _POSITION_INTERVAL_S - batch.age)
        return _COPIES_WAIT_S if self._copies.under_way else _LONGEST_WAIT_S

    # ------------------------------------------------------------ read and decode

    def _read(self) -> int:
        """Read the stream, unless libpq's buffer still has messages; returns the bytes."""
        if self._more:
            return 0
        if self._unused > _SWOLLEN_BYTES:
            self._swollen_at = self._decoder.position
        self._unused = 0
        return self._heard(self._feed.read_available())

    def _decode(self, taken: int) -> DrainEnd:
        """Decode a bounded number of messages, and apply a giant transaction's pieces."""
        pending = self._decoder.pending.bytes
        while (drained := self._drain()) is DrainEnd.PIECE:
            self._apply()
            self._keep_alive()
        if drained is DrainEnd.ENDED:
            raise self._feed.end()
        self._more = drained in (DrainEnd.MORE, DrainEnd.EVENT)
        # Bytes that were read before the last commit, and are decoded only now, count too.
        self._gathered += max(0, self._decoder.pending.bytes - pending - taken)
        return drained

    def _drain(self) -> DrainEnd:
        try:
            return self._decoder.drain(self._feed.get, _MESSAGES_A_TURN)
        except OSError as failed:
            raise SpoolFull(
                f"a giant transaction can't be spooled in {self._store.path}: {failed};"
                " free some space there, and the server goes on by itself"
            ) from failed

    def _pace(self, taken: int, drained: DrainEnd, reached: int) -> None:
        """Set ``busy``. In a backlog, apply changes or sleep for a moment while the buffer fills.

        Reading each message as it arrives wakes the walsender each time, and costs
        both sides half as much again.
        """
        decoder = self._decoder
        if decoder.wal_end > reached:
            # The stream wasn't silent: this loop didn't read it until now.
            self._heard_at = time.monotonic()
        self.busy = drained in (DrainEnd.MORE, DrainEnd.EVENT) or taken > _BUSY_BYTES
        if drained is not DrainEnd.EMPTY:
            return
        if not taken and not decoder.pending.routes and not self._batch.is_open:
            # A transaction that was spooled, or of other tables, has ended: don't wait to commit.
            self._gathered = 0
        if self._gathered <= _BUSY_BYTES:
            return
        if decoder.pending.bytes > _BUSY_BYTES and self._feed.local:
            self._apply()
        else:
            # A unix socket's buffer is full, and the walsender asleep, much sooner.
            time.sleep(_SHORT_NAP_S if self._feed.local else _NAP_S)

    # ------------------------------------------------------------ read ahead

    def _read_ahead(self) -> None:
        """Empty the socket, within a bound: if it is full, the walsender sleeps."""
        self._heard(self._feed.read_ahead())

    def _heard(self, taken: int) -> int:
        self._gathered += taken
        self._unused += taken
        if taken:
            self._heard_at = time.monotonic()
        return taken

    # ------------------------------------------------------------ apply and copy

    def _apply_if_due(self, drained: DrainEnd) -> None:
        pending = self._decoder.pending
        is_much = pending.count >= _APPLY_FROM_CHANGES or pending.bytes >= _APPLY_FROM_BYTES
        if is_much or drained is DrainEnd.EVENT:
            self._apply()

    def _apply(self) -> None:
        """Write the pending changes to the batch, and read ahead between its pieces."""
        pending = self._decoder.pending
        pieces = self._batch.apply(pending.take(), pending.to_come)
        next(pieces, None)  # half a millisecond; few changes are a single piece
        for _ in pieces:
            self._read_ahead()

    def _copy(self, ready: set[int]) -> None:
        """Take copied rows, during a backlog for a share of the time.

        A chunk that is read slowly keeps its lock and its snapshot for long.
        """
        copier = self._copier
        if not copier.connections and not self._copies.under_way:
            return
        until = time.monotonic() + (_COPY_SHARE_S if self.busy else 0)
        while True:
            copier.pump([reader for reader in copier.reading if reader.fileno() in ready])
            copier.assign()
            if time.monotonic() >= until or not copier.reading:
                return
            poll = select.poll()
            for reader in copier.reading:
                poll.register(reader.fileno(), select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(1)}

    # ------------------------------------------------------------ commit

    @property
    def _holds_some(self) -> bool:
        """True if there is more to commit than the position."""
        return bool(self._decoder.pending.routes) or self._batch.is_open or self._batch.awaited

    def _due_in(self) -> float:
        """Seconds until the next commit; 0 if little has arrived.

        While a backlog arrives piece by piece, a single piece isn't worth a sync: the commit waits
        until the stream was silent for as long as a sync takes, and at least for _SILENCE_S.
        """
        is_idle = not self.busy and not self._copier.reading
        if is_idle and self._gathered < _BUSY_BYTES:
            return 0
        batch = self._batch
        waiting = bool(self._decoder.pending.routes)
        due = batch.interval(self._behind, waiting=waiting) - batch.age
        if not is_idle:
            return due
        silence = time.monotonic() - self._heard_at
        return min(due, max(batch.cost, _SILENCE_S) - silence)

    @property
    def _behind(self) -> float:
        """Seconds since PostgreSQL committed the newest transaction that has arrived."""
        newest = self._decoder.time_us
        return time.time() - newest / 1e6 if newest else 0.0

    def _commit_if_due(self) -> None:
        if self._holds_some:
            if self._due_in() <= 0:
                self._commit()
        elif (
            self._decoder.position > self._store.position
            and self._batch.age >= _POSITION_INTERVAL_S
        ):
            self._commit()

    def _commit(self) -> None:
        self._apply()
        # Bytes that arrive while the commit waits for the disk count for the next one.
        gathered, self._gathered = self._gathered, 0
        is_much = gathered > _BUSY_BYTES
        with self._background_reading.meanwhile() if is_much else nullcontext():
            self._batch.commit(self._decoder.position, self._decoder.time_us)
        self._confirm()
        if not self._batch.is_open:  # the end of a copy, now durable, may have opened the next
            self._prune()

    def _reclaim_if_idle(self, drained: DrainEnd) -> None:
        if drained is not DrainEnd.MORE and not self._batch.is_open and not self._copier.reading:
            self._store.reclaim(_RECLAIM)

    # ------------------------------------------------------------ confirm

    def _confirm(self, *, reply: bool = False) -> None:
        """Confirm the durable position to PostgreSQL; ``reply`` asks it for a keepalive."""
        may = self._confirmable
        self._feed.confirm(self._store.position if may is None else may(), reply=reply)
        self._confirmed_at = time.monotonic()

    def _confirm_again(self, *, reply: bool = False) -> None:
        """Confirm the position without a commit, so check first that the store still exists.

        :raises StoreRemoved: if a later start wouldn't find the store.
        """
        self._store.check_reachable()
        self._confirm(reply=reply)

    def _answer(self) -> None:
        """Answer PostgreSQL when it asked or some time has passed; end a silent stream.

        :raises SourceUnavailable: if the stream brought nothing for too long.
        :raises StoreRemoved: if a later start wouldn't find the store.
        """
        now = time.monotonic()
        silence = now - self._heard_at
        if silence > self._patience:
            raise SourceUnavailable(
                f"PostgreSQL sent nothing for {silence:.0f} s, not even a keepalive"
            )
        decoder = self._decoder
        if decoder.reply_wanted and self.caught_up_to > self._store.position:
            # A server that shuts down asks until the end of its WAL is confirmed.
            decoder.advance()
            self._commit()
        elif decoder.reply_wanted or now - self._confirmed_at >= _STATUS_INTERVAL_S:
            self._confirm_again(reply=silence > self._patience / 3)
        decoder.reply_wanted = False

    def _keep_alive(self) -> None:
        """Confirm and read now and then within a long step: PostgreSQL keeps the connection.

        Long steps are a giant transaction's pieces, and a re-copy's comparison.

        :raises StopRequested: if the server must stop.
        """
        if self._stopping.is_set():
            raise StopRequested
        if time.monotonic() - self._confirmed_at >= _STATUS_WITHIN_S:
            self._confirm_again()
        self._read_ahead()
        self._heard_at = time.monotonic()
