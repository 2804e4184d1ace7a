"""One life of the stream: connections opened, everything followed until one breaks or we stop.

The loop takes the stream first, then copied chunks, and commits both together:
at once when idle, about once a second under load. Whatever isn't committed when
it ends is forgotten; the next life goes on from the store.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.errors import CopyFailed, SourceUnavailable, SpoolFull, TableRefused
from laredo_fanout.source import append_only, session, watermark
from laredo_fanout.source.attendant import (
    LOCK_TIMEOUT,
    Attendant,
    ConnectionReady,
    Crashed,
    Look,
    LookRequest,
    Prepared,
    PrepareFailed,
    Report,
    SoonRequest,
    Trouble,
    Waiting,
)
from laredo_fanout.source.copying import Copying
from laredo_fanout.source.decode_pipeline import DecodePipeline, Decoding
from laredo_fanout.source.early import Early
from laredo_fanout.source.mailbox import Mailbox
from laredo_fanout.source.recopy import RecopyAsked
from laredo_fanout.source.replication import ReplicationStream
from laredo_fanout.source.start import Preparation
from laredo_fanout.source.stream_decoder import Drained, MustClose, StreamDecoder
from laredo_fanout.source.tracking import Tracking
from laredo_fanout.source.write_batch import OnCommit, WriteBatch
from laredo_fanout.store.errors import StoreFull
from laredo_fanout.store.meta import Marker
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.errors import SourceError
    from laredo_fanout.source.detour import Detour, Feed
    from laredo_fanout.source.options import SourceOptions, TableOptions
    from laredo_fanout.source.status import Counters
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()

_MESSAGES_A_TURN = 20_000
_APPLY_FROM_CHANGES = 10_000
_APPLY_FROM_BYTES = 16 << 20
_BUSY_BYTES = 64 << 10
_NAP, _SHORT_NAP = 0.002, 0.001
_COPY_SHARE = 0.03
_POSITION_INTERVAL = 0.2
_STATUS_INTERVAL = 10.0
_STATUS_WITHIN = 1.0
_LONGEST_WAIT = 1.0
_RECLAIM = 5_000
_STREAMS_KEPT = 20


class _StoppedWithin(Exception):
    """We are to stop, and a giant transaction is applied, or a re-copy compared, in part."""


class Streaming:
    """One life. ``run`` returns when :meth:`stop` was called, and raises when something broke."""

    def __init__(
        self,
        options: SourceOptions,
        tables: Sequence[TableOptions],
        store: Store,
        *,
        on_commit: OnCommit,
        counters: Counters,
        stopping: threading.Event,
        detour: Detour | None = None,
    ) -> None:
        self._run_token = watermark.new_token()
        self._options = options = replace(options, run=self._run_token)
        self._store = store
        self._stopping = stopping
        self._detour = detour
        self._counters = counters
        self._mail: Mailbox[Report | RecopyAsked] = Mailbox()
        self.batch = WriteBatch(store, on_commit, options.busy_commit_interval, counters)
        self._attendant = Attendant(options, tables, self._run_token, self._mail.put)
        self.tracking = Tracking(tables, self.batch, self._look_now, counters)
        self.copying = Copying(
            options,
            self.batch,
            self._attendant.request,
            look_now=self._look_now,
            failed=self._copy_failed,
            counters=counters,
        )
        self._preparation = Preparation(
            options, tables, store, counters=counters, tell=self._waits, stopping=stopping
        )
        self._looks: dict[int, Look] = {}
        self._look_requests = 0
        self._stream: Feed | None = None
        self._decoder: StreamDecoder | None = None
        self._decoding: Decoding | None = None
        self._side: session.Connection | None = None
        self._heard_at = time.monotonic()
        self._told_at = time.monotonic()
        self._looked_at = time.monotonic()
        self._gathered = 0
        self.busy = False
        self.connected = False
        self.was_connected = False
        self.phase = "connecting"
        self.trouble: SourceError | None = None

    def stop(self) -> None:
        """Have ``run`` end soon; from any thread, after ``stopping`` was set."""
        self._mail.ring()
        side = self._side
        if side is not None and not self.connected:
            session.cancel(side)

    def look_soon(self) -> None:
        """Have the catalog looked at; from any thread."""
        self._attendant.request(SoonRequest())

    def recopy(self, asked: RecopyAsked) -> None:
        """Have a table copied again beside its readers; from any thread."""
        self._mail.put(asked)

    @property
    def wal_end(self) -> int:
        """How far the server's WAL is known to reach."""
        decoded = self._decoder.wal_end if self._decoder is not None else 0
        slot = self._counters.slot.slot
        return max(decoded, (slot and slot.wal_position) or 0)

    @property
    def decode_workers(self) -> int:
        """How many processes are there to decode a backlog."""
        return 0 if self._decoding is None else self._decoding.workers

    @property
    def decode_blocks(self) -> int:
        """How many blocks of messages they have."""
        return 0 if self._decoding is None else self._decoding.blocks

    def _waits(self, why: str) -> None:
        """What the preparation waits for, as /status shows it."""
        self.phase = why

    def run(self) -> None:
        """Connect, and follow the stream.

        :raises SourceError: if PostgreSQL isn't there or not fit, or the stream was cut.
        :raises StoreError: if the store can't be written.
        """
        try:
            self._live()
        except StoreFull as full:
            self.tracking.give_up_recopies(self._store, str(full))
            raise
        finally:
            self.connected = False
            self._close()

    def _live(self) -> None:
        try:
            self._open()
            while not self._stopping.is_set() and not self._is_over():
                self._turn()
            self._commit_rest()
        except _StoppedWithin:
            # What is applied of it is forgotten; it comes again.
            self.batch.abandon()
        except MustClose as found:
            self.batch.abandon()
            self.tracking.close_durably(found, self._store)
        except Exception as error:
            self.batch.abandon(error)
            raise

    # ------------------------------------------------------------ begin and end

    def _open(self) -> None:
        self._side = side = session.connect(self._options, role="attendant")
        name = session.application_name(self._options, "stream")
        with self._store.transaction() as transaction:
            transaction.set_streams((*self._store.streams, name)[-_STREAMS_KEPT:])
        self._stream = stream = ReplicationStream.open(self._options)
        self.phase = "preparing slot and publication"
        with session.translated("prepare slot and publication"):
            side.execute(LOCK_TIMEOUT)
            look = self._preparation.run(side, stream)
        position = self._store.position
        tracking = self.tracking
        tracking.resume(self._store.tables, look, self.batch.transaction, position)
        self.batch.commit(position, 0)
        prefix = watermark.PREFIX.encode()
        self._decoder = StreamDecoder(
            tracking,
            prefix,
            self._store.path,
            position,
            between_pieces=self._within_giant_step,
        )
        tracking.follow(self._decoder)
        appends = append_only.streamed(self._options, self._store.tables.values())
        early = Early(tracking, self._decoder, self._options.slot_name)
        detour = None if self._detour is None else self._detour.open(side, self.batch, early)
        tracking.carries_appends = appends is not None
        tracking.may_begin_anew = detour is None
        if detour is not None:
            stream.close()
            self._stream = detour
            self._decoding = Decoding(detour, self._decoder)
        else:
            stream.start(
                self._options.slot_name,
                self._options.publication.name,
                position,
                appends=appends,
                stream_transactions=self._options.stream_transactions,
            )
            # Whoever held the slot before us doesn't any more.
            self.batch.transaction.set_streams((name,))
            self._decoding = self._decode(stream, self._decoder)
        self.batch.meanwhile = self._gulp_ahead
        if self._detour is not None:
            self._attendant.every(self._detour.interval, self._detour.measure)
        self._counters.slot.look(look.slot)
        self._side = None
        self._attendant.start(side)
        self._heard_at = self._looked_at = time.monotonic()
        self.connected = self.was_connected = True
        self.phase = "streaming" if detour is None else "catching up"
        _log.info(self.phase, slot=self._options.slot_name, position=position_.text(position))

    def _decode(self, stream: ReplicationStream, decoder: StreamDecoder) -> Decoding:
        if not self._options.decode_workers:
            return Decoding(stream, decoder)
        return DecodePipeline(
            stream,
            decoder,
            self._options.decode_workers,
            counters=self._counters,
            wake=self._mail.ring,
            patience=self._options.receive_timeout,
        )

    def _close(self) -> None:
        self.batch.abandon()
        if self._decoding is not None:
            self._decoding.close()
        self._attendant.stop()
        self.copying.close()
        if self._side is not None:
            self._side.close()
        if self._stream is not None:
            self._stream.close()
        if self._decoder is not None:
            self._decoder.close()
        for report in self._mail.take():
            if isinstance(report, ConnectionReady):
                report.connection.close()
            elif isinstance(report, RecopyAsked) and report.is_awaited():
                report.answer.set_exception(SourceUnavailable("the stream has just ended"))
        self._mail.close()

    def _commit_rest(self) -> None:
        decoder = self._decoder
        assert decoder is not None and self._stream is not None
        if decoder.pending or self.batch.is_open or decoder.position > self._store.position:
            self._commit()
        self._stream.confirm(self._store.position)

    def _is_over(self) -> bool:
        """Whether another life must follow, which takes its messages another way."""
        if self.tracking.must_begin_anew and not self.batch.is_open:
            return True
        return self._detour is not None and self._detour.is_over(self._level())

    def _level(self) -> int:
        """Up to where nothing is missing in the store."""
        decoder = self._decoder
        assert decoder is not None
        if decoder.in_transaction or decoder.pending or decoder.position > self._store.position:
            return self._store.position
        return max(self._store.position, decoder.wal_end)

    # ------------------------------------------------------------ one turn of the loop

    def _turn(self) -> None:
        ready = self._wait()
        self._take_reports()
        drained = self._take_stream()
        self._copy(ready)
        self._commit_if_due()
        self._stay_in_touch()
        if drained is not Drained.MORE and not self.batch.is_open and not self.copying.active:
            self._store.reclaim(_RECLAIM)

    def _copy(self, ready: set[int]) -> None:
        """Take copied rows. Beside a backlog of the stream they have a share of the time: a chunk
        that is read slowly keeps its lock and its snapshot for long."""
        until = time.monotonic() + (_COPY_SHARE if self.busy else 0)
        while True:
            readers = [reader for reader in self.copying.readers() if reader.fileno() in ready]
            self.copying.pump(readers)
            self.copying.assign()
            if time.monotonic() >= until or not self.copying.active:
                return
            poll = select.poll()
            for reader in self.copying.readers():
                poll.register(reader.fileno(), select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(1)}

    def _wait(self) -> set[int]:
        """Wait for a socket; the ones that have something."""
        poll = select.poll()
        assert self._decoding is not None
        descriptors = [*self._decoding.descriptors, self._mail.fileno()]
        descriptors += [reader.fileno() for reader in self.copying.readers()]
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll(1000 * self._patience())}

    def _patience(self) -> float:
        if self.busy:
            return 0
        decoder = self._decoder
        if decoder is not None and decoder.pending:
            return max(0.0, self.batch.stream_interval - self.batch.age)
        if self.batch.is_open or self.batch.awaited:
            return max(0.0, self.batch.interval - self.batch.age)
        if decoder is not None and decoder.position > self._store.position:
            return max(0.0, _POSITION_INTERVAL - self.batch.age)
        return _LONGEST_WAIT if not list(self.copying.copies) else 0.1

    def _take_stream(self) -> Drained:
        """Take what the stream has brought, a bounded part of it."""
        stream, decoder, decoding = self._stream, self._decoder, self._decoding
        assert stream is not None and decoder is not None and decoding is not None
        taken = self._heard(decoding.gulp())
        try:
            result = decoding.drain(_MESSAGES_A_TURN)
        except OSError as failed:
            raise SpoolFull(
                f"a giant transaction can't be put aside in {self._store.path}: {failed};"
                " free some space there, the server then goes on where it stopped"
            ) from failed
        if result is Drained.ENDED:
            raise stream.end()
        if result is Drained.EVENT:
            self._handle_events()
        elif decoder.pending_changes >= _APPLY_FROM_CHANGES or (
            decoder.pending_bytes >= _APPLY_FROM_BYTES
        ):
            self._apply_pending()
        self.busy = result in (Drained.MORE, Drained.EVENT)
        if taken > _BUSY_BYTES:
            self.busy = True
        if not taken and result is Drained.EMPTY and not decoder.pending and not self.batch.is_open:
            # What was put aside, or isn't ours, is over: the next commit needn't wait.
            self._gathered = 0
        if self._gathered > _BUSY_BYTES and result is Drained.EMPTY:
            self._let_it_fill()
        return result

    def _gulp_ahead(self) -> None:
        assert self._decoding is not None
        self._heard(self._decoding.gulp_ahead())

    def _heard(self, taken: int) -> int:
        self._gathered += taken
        if taken:
            self._heard_at = time.monotonic()
        return taken

    def _let_it_fill(self) -> None:
        """In a backlog: do something else for a moment, so that the buffer fills.

        Reading each message as it comes wakes the server's sender for each, and
        costs both sides half as much again.
        """
        decoder, stream = self._decoder, self._stream
        assert decoder is not None and stream is not None
        if decoder.pending_bytes > _BUSY_BYTES and stream.local:
            self._apply_pending()
        else:
            # A unix socket's buffer is full, and its sender asleep, much sooner.
            time.sleep(_SHORT_NAP if stream.local else _NAP)

    def _apply_pending(self) -> None:
        decoder = self._decoder
        assert decoder is not None
        self.batch.apply(decoder.pending)
        decoder.applied()

    def _commit_if_due(self) -> None:
        decoder, batch = self._decoder, self.batch
        assert decoder is not None
        if decoder.pending or batch.is_open or batch.awaited:
            # While a backlog comes piece by piece, each piece alone isn't worth a sync.
            quiet = not self.busy and not self.copying.active and self._gathered < _BUSY_BYTES
            interval = batch.stream_interval if decoder.pending else batch.interval
            if quiet or batch.age >= interval:
                self._commit()
        elif decoder.position > self._store.position and batch.age >= _POSITION_INTERVAL:
            self._commit()

    def _commit(self) -> None:
        decoder, stream = self._decoder, self._stream
        assert decoder is not None and stream is not None
        self._apply_pending()
        self.batch.commit(decoder.position, decoder.time_us)
        self._gathered = 0
        stream.confirm(self._store.position)
        self._told_at = time.monotonic()

    def _stay_in_touch(self) -> None:
        """Answer the server, and find out whether it still lives."""
        decoder, stream = self._decoder, self._stream
        assert decoder is not None and stream is not None
        now = time.monotonic()
        if now - self._looked_at > self._options.heartbeat_interval + self._options.receive_timeout:
            self._attendant.sever()
            self._looked_at = now
        silence = now - self._heard_at
        if silence > self._options.receive_timeout:
            raise SourceUnavailable(f"the stream brought nothing for {silence:.0f} s")
        if decoder.reply_wanted or now - self._told_at >= _STATUS_INTERVAL:
            decoder.reply_wanted = False
            stream.confirm(self._store.position, reply=silence > self._options.receive_timeout / 3)
            self._told_at = now

    def _within_giant_step(self) -> None:
        """A piece of a giant transaction was applied, or some of a re-copy's rows compared: nothing
        else is heard or said before its end, but this."""
        if self._stopping.is_set():
            raise _StoppedWithin
        assert self._stream is not None
        now = time.monotonic()
        if now - self._told_at >= _STATUS_WITHIN:
            self._stream.confirm(self._store.position)
            self._told_at = now
        self._heard_at = self._looked_at = now

    # ------------------------------------------------------------ events and reports

    def _handle_events(self) -> None:
        """A transaction ended that holds one of our messages, or closes a table."""
        decoder = self._decoder
        assert decoder is not None
        self._apply_pending()
        self.tracking.close_marked(self.batch.transaction, decoder.position_before, self.copying)
        for content in decoder.take_events():
            match watermark.parse(content, self._options.slot_name, self._run_token):
                case watermark.Look(number):
                    self._passed(number)
                case watermark.Barrier(payload):
                    done = self.copying.barrier_arrived(
                        payload, decoder.position, decoder.time_us, self._within_giant_step
                    )
                    if done is not None:
                        self.tracking.copied(*done)
                case None:
                    continue

    def _passed(self, number: int) -> None:
        decoder = self._decoder
        assert decoder is not None
        look = self._looks.pop(number, None)
        for older in [known for known in self._looks if known < number]:
            del self._looks[older]
        if look is not None:
            payload = watermark.look_payload(self._options.slot_name, self._run_token, number)
            self.batch.transaction.set_marker(Marker(decoder.position, payload))
            # What the look shows was so before its message: a closed table was right before it.
            self.tracking.reconcile(
                look, self.batch.transaction, decoder.position_before, self.copying
            )
            self.tracking.verify(look)

    def _take_reports(self) -> None:
        for report in self._mail.take():
            match report:
                case Look():
                    self._looks[report.number] = report
                    self._counters.slot.look(report.slot)
                    self.tracking.verify(report)
                    self.trouble = None
                    self._looked_at = time.monotonic()
                case Prepared():
                    self.copying.prepared(report)
                case PrepareFailed(table_id, problem):
                    copy = self.copying.get(table_id)
                    if copy is not None:
                        name = copy.table.qualified
                        self._copy_failed(
                            table_id, CopyFailed(name, problem, "see the server's log")
                        )
                case Waiting():
                    self.copying.waiting(report)
                case RecopyAsked():
                    self.tracking.recopy(report, self.batch.transaction, self.copying)
                case ConnectionReady(connection):
                    self.copying.connected(connection)
                case Crashed(error):
                    raise error
                case Trouble(error):
                    if self.trouble is None:
                        _log.warning("side connection failed; it is tried again", error=str(error))
                    self.trouble = error

    def _look_now(self, after_s: float = 0.0) -> int:
        """Ask for a look; the number that it will answer."""
        self._look_requests += 1
        self._attendant.request(LookRequest(self._look_requests, after_s))
        return self._look_requests

    def _copy_failed(self, table_id: int, failed: TableRefused) -> None:
        self.tracking.copy_failed(table_id, failed, self.batch.transaction, self.copying)
