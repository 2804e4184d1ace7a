"""The way of a change through the ingest, turn by turn: wait, copy rows, read the socket, decode,
apply to the batch, commit, confirm.

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
    """We are to stop, and a giant transaction is applied, or a re-copy compared, in part."""


class IngestLoop:
    """Takes one session's changes, turn by turn. ``mail`` is readable when there are reports.

    ``patience``: seconds for which the stream may be silent. ``busy``: the stream brought more
    than a turn takes.
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
        """``confirmable``: position that may be confirmed, of a slot that is shared; else all that
        is durable may."""
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
        """Bytes since the last commit, about."""
        self._more = False
        """True if the decoder left messages in libpq's buffer."""
        self.busy = False
        self._background_reading = BackgroundReading(self._read_ahead)

    def turn(self) -> None:
        """Wait until there is something, take some of it, commit if that is due.

        :raises SourceError: if the stream was cut, ended, or is silent for too long.
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
        """No turn follows."""
        self._background_reading.close()

    def commit_rest(self) -> None:
        """Commit what whole transactions there are: no turn follows."""
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
        """Position of another program's large message, for which libpq's buffer grew for good."""
        return self._decoder.oversized_at

    @property
    def caught_up_to(self) -> int:
        """Up to where nothing is missing in the store."""
        decoder = self._decoder
        is_behind = decoder.pending.routes or decoder.position > self._store.position
        if decoder.in_transaction or is_behind:
            return self._store.position
        return max(self._store.position, decoder.wal_end)

    # ------------------------------------------------------------ wait

    def _wait(self) -> set[int]:
        """Wait for a socket; the ones that have something."""
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
        """Take what the stream has brought into libpq's buffer, unless that holds some still; how
        many bytes."""
        return 0 if self._more else self._heard(self._feed.read_available())

    def _decode(self, taken: int) -> DrainEnd:
        """Decode a bounded part of what was read. A giant transaction's pieces are applied."""
        pending = self._decoder.pending.bytes
        while (drained := self._drain()) is DrainEnd.PIECE:
            self._apply()
            self._keep_alive()
        if drained is DrainEnd.ENDED:
            raise self._feed.end()
        self._more = drained is DrainEnd.MORE
        # What came before the last commit, and is used only now, counts too.
        self._gathered += max(0, self._decoder.pending.bytes - pending - taken)
        return drained

    def _drain(self) -> DrainEnd:
        try:
            return self._decoder.drain(self._feed.get, _MESSAGES_A_TURN)
        except OSError as failed:
            raise SpoolFull(
                f"a giant transaction can't be spooled in {self._store.path}: {failed};"
                " free some space there, the server then goes on where it stopped"
            ) from failed

    def _pace(self, taken: int, drained: DrainEnd, reached: int) -> None:
        """Judge how busy the stream is. In a backlog: do something else for a moment, so that the
        buffer fills.

        Reading each message as it comes wakes the server's sender for each, and
        costs both sides half as much again.
        """
        decoder = self._decoder
        if decoder.wal_end > reached:
            # Until here the stream wasn't silent: nobody listened.
            self._heard_at = time.monotonic()
        self.busy = drained in (DrainEnd.MORE, DrainEnd.EVENT) or taken > _BUSY_BYTES
        if drained is not DrainEnd.EMPTY:
            return
        if not taken and not decoder.pending.routes and not self._batch.is_open:
            # What was spooled, or isn't ours, is over: the next commit needn't wait.
            self._gathered = 0
        if self._gathered <= _BUSY_BYTES:
            return
        if decoder.pending.bytes > _BUSY_BYTES and self._feed.local:
            self._apply()
        else:
            # A unix socket's buffer is full, and its sender asleep, much sooner.
            time.sleep(_SHORT_NAP_S if self._feed.local else _NAP_S)

    # ------------------------------------------------------------ read ahead

    def _read_ahead(self) -> None:
        """Empty the socket, within a bound: with a full one the server's sender would sleep."""
        self._heard(self._feed.read_ahead())

    def _heard(self, taken: int) -> int:
        self._gathered += taken
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
        """Write what is pending into the batch, and read ahead between its pieces."""
        pending = self._decoder.pending
        pieces = self._batch.apply(pending.take(), pending.to_come)
        next(pieces, None)  # one takes half a millisecond, and little is one
        for _ in pieces:
            self._read_ahead()

    def _copy(self, ready: set[int]) -> None:
        """Take copied rows. While the stream has a backlog they have a share of the time: a chunk
        that is read slowly keeps its lock and its snapshot for long."""
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
        """True if there is more to commit than a position."""
        return bool(self._decoder.pending.routes) or self._batch.is_open or self._batch.awaited

    def _due_in(self) -> float:
        """Seconds until what there is should be committed; at once when little came.

        While a backlog comes piece by piece, each piece alone isn't worth a sync: not before the
        stream was silent for as long as one takes, and PostgreSQL isn't only busy elsewhere.
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
        """Seconds since PostgreSQL committed the newest transaction that has come."""
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
        # What comes while the commit waits for the disk is for the next one.
        gathered, self._gathered = self._gathered, 0
        is_much = gathered > _BUSY_BYTES
        with self._background_reading.meanwhile() if is_much else nullcontext():
            self._batch.commit(self._decoder.position, self._decoder.time_us)
        self._confirm()
        self._prune()

    def _reclaim_if_idle(self, drained: DrainEnd) -> None:
        if drained is not DrainEnd.MORE and not self._batch.is_open and not self._copier.reading:
            self._store.reclaim(_RECLAIM)

    # ------------------------------------------------------------ confirm

    def _confirm(self, *, reply: bool = False) -> None:
        """Confirm to the server what is durable; ``reply`` asks it for a keepalive."""
        may = self._confirmable
        self._feed.confirm(self._store.position if may is None else may(), reply=reply)
        self._confirmed_at = time.monotonic()

    def _confirm_again(self, *, reply: bool = False) -> None:
        """Confirm it without a commit, which sees by itself that the store is there.

        :raises StoreRemoved: if a later start wouldn't find it.
        """
        self._store.check_reachable()
        self._confirm(reply=reply)

    def _answer(self) -> None:
        """Answer the server when it asked or some time has passed; break off what is silent.

        :raises SourceUnavailable: if the stream brought nothing for too long.
        :raises StoreRemoved: if what is to be confirmed is gone.
        """
        now = time.monotonic()
        silence = now - self._heard_at
        if silence > self._patience:
            raise SourceUnavailable(f"the stream brought nothing for {silence:.0f} s")
        decoder = self._decoder
        if decoder.reply_wanted and self.caught_up_to > self._store.position:
            # A server that shuts down asks until the end of its WAL is confirmed, whatever that is.
            decoder.advance()
            self._commit()
        elif decoder.reply_wanted or now - self._confirmed_at >= _STATUS_INTERVAL_S:
            self._confirm_again(reply=silence > self._patience / 3)
        decoder.reply_wanted = False

    def _keep_alive(self) -> None:
        """Within one long step (a giant transaction's pieces, a re-copy's comparison): confirm now
        and then, so that PostgreSQL doesn't end a silent connection.

        :raises StopRequested: if we are to stop.
        """
        if self._stopping.is_set():
            raise StopRequested
        if time.monotonic() - self._confirmed_at >= _STATUS_WITHIN_S:
            self._confirm_again()
        self._heard_at = time.monotonic()
