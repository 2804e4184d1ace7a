"""A client's stream, shared by the phases of its session: wake-up, and pin on the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import orjson
import structlog

from laredo_fanout.serving.call import CheckedSyncRequest, Exchange, StallGuard
from laredo_fanout.serving.filters import Conditions, RowFilter
from laredo_fanout.serving.forms import BaseForm, BatchForm, Form, Messages
from laredo_fanout.serving.ports import Lease
from laredo_fanout.serving.session.verified_position import Heartbeats, SessionVerifiedPosition
from laredo_fanout.serving.shared import ServingResources
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.reader import TableView
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.position import History

# The wake-up of one session: an event that is set when the session may have something to send.


class WakeUp:
    """An event with one waiter and any number of notifiers, all in one event loop.

    The waiter clears it *before* it checks what there is to do: a notification that comes during
    the check makes the next wait return at once. Ten times cheaper than asyncio.Event with a
    time-out, which counts with hundreds of sessions and tens of commits a second.
    """

    __slots__ = ("_future", "_notified")

    def __init__(self) -> None:
        self._notified = False
        self._future: asyncio.Future[None] | None = None

    @property
    def notified(self) -> bool:
        """True if the next wait returns at once."""
        return self._notified

    def notify(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._notified = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def clear(self) -> None:
        """Forget the notifications so far: the caller now checks what there is to do."""
        self._notified = False

    async def wait(self) -> None:
        """Return once notified after the last clear."""
        if self._notified:
            return
        self._future = asyncio.get_running_loop().create_future()
        try:
            await self._future
        finally:
            self._future = None


# The journal pin of a session: keeps entries while its client is sent a snapshot, for a time.

log = structlog.get_logger(__name__)


class Pin:
    """A session's pin, held from the snapshot's sequence until the session is live."""

    def __init__(self, lease: Lease, client_id: str, limit_s: float) -> None:
        self._lease = lease
        self._client_id = client_id
        self._limit_s = limit_s
        self._timer: asyncio.TimerHandle | None = None

    async def hold(self, table_id: int, after_sequence: int) -> None:
        """Keep the entries after this sequence."""
        self.release()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limit_s, self._expire)
        await self._lease.pin(table_id, after_sequence)

    def release(self) -> None:
        """Release the pin: the journal may be pruned again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._lease.unpin()

    def _expire(self) -> None:
        # If its entries are pruned before it is live, the client gets a new snapshot.
        log.warning(
            "journal no longer kept for a slow client",
            client=self._client_id,
            after_s=self._limit_s,
        )
        self.release()


class ClientStream:
    """The state of a client's stream, and the sending of messages. Call `enter` first."""

    view: TableView
    """The incarnation of the table that is sent, as it was when the session took it."""
    form: Form
    filter: RowFilter | None
    source: SourceIdentity
    """The source as it was when the session began."""

    def __init__(
        self,
        shared: ServingResources,
        asked: CheckedSyncRequest,
        lease: Lease,
        verified: SessionVerifiedPosition,
        heartbeats: Heartbeats,
        *,
        conditions: Conditions | None,
        exchange: Exchange,
    ) -> None:
        self.shared = shared
        self.asked = asked
        self.verified = verified
        self.heartbeats = heartbeats
        self.messages = Messages(extended=asked.batch, boundaries=asked.boundaries)
        self.pin = Pin(lease, asked.client_id, shared.listener.pin_limit_s)
        self.guard: StallGuard | None = None
        self.awaits_rows = False
        """True while the session waits for rows, which may be being spooled, not for the client."""
        self.cursor = 0
        """The newest journal entry that was sent."""
        self.position = 0
        """Every transaction up to here was sent."""
        self.owes_end = False
        """True if a base client resumes and wasn't sent the entry at the cursor: it needs a message
        with that sequence to know that it is caught up."""
        self._repeated_through = 0
        self._lease = lease
        self._conditions = conditions
        self.exchange = exchange

    def enter(self, view: TableView) -> None:
        """Send this incarnation of the table from here on."""
        self.view = view
        self.verified.enter(view)
        chosen = self._conditions
        self.filter = None if chosen is None else RowFilter(chosen, view.columns)
        self.form = self.form_with(self.filter)

    def resume(self, after: int, position: int, repeated_through: int = 0) -> None:
        """Continue after the entry `after`; the client may already have entries up to
        `repeated_through`."""
        self.cursor, self.position = after, position
        self.owes_end = not self.asked.batch
        self._repeated_through = repeated_through
        if repeated_through:
            self.form = self.form_with(self.filter, repeated_through=repeated_through)

    def moved_to(self, sequence: int) -> None:
        """Put the cursor after this entry."""
        self.cursor = sequence
        if self._repeated_through and sequence >= self._repeated_through:
            self._repeated_through = 0
            self.form = self.form_with(self.filter)

    def form_with(self, chosen: RowFilter | None, *, repeated_through: int = 0) -> Form:
        """The client's wire form with this filter; the client may already have entries up to
        `repeated_through`."""
        if self.asked.batch:
            return BatchForm(want_old=self.asked.want_old, row_filter=chosen)
        return BaseForm(chosen, self.shared.structs, repeated_through=repeated_through)

    def show(self, state: str, depth: int = 0) -> None:
        """Update the registry's entry of the client: its phase, and how many changes it lacks."""
        self._lease.update(sequence=self.cursor, depth=depth, state=state)

    @property
    def history(self) -> History:
        """The history of all positions of this stream."""
        return self.source.history

    def moved(self) -> None:
        """Note progress, so that the client doesn't count as stalled."""
        if self.guard is not None:
            self.guard.moved()

    def close(self) -> None:
        """End the stream."""
        self.heartbeats.stop()
        self.pin.release()
        if self.guard is not None:
            self.guard.stop()

    async def send(self, message: bytes) -> None:
        """Send a message; returns when the client's side has taken it."""
        await self.send_all((message,))

    async def send_all(self, messages: Sequence[bytes]) -> None:
        """Send the messages; returns when the client's side has taken them."""
        size = 0
        for packed in self.exchange.packed(messages):
            await self.exchange.send(packed)
            size += len(packed)
            self.moved()
        self.shared.sent.add(size, len(messages))

    async def send_handshake(
        self, mode: wire.SyncMode, sequence: int, position: int, snapshot_id: str = ""
    ) -> None:
        """Send the handshake: the stream continues after the cursor.

        ``sequence`` and ``position`` are the server's.
        """
        self.verified.begin(self.position)
        await self.send(
            self.messages.handshake(
                mode=mode,
                sequence=sequence,
                oldest_sequence=self.view.oldest_sequence,
                resume_from=self.cursor + 1,
                columns=self.view.columns,
                snapshot_id=snapshot_id,
                position=position,
                history=str(self.history),
                boundary=self.verified.take(self.position),
                source=self.source if self.asked.relay else None,
                holder=self.holder_state(self.view),
            )
        )
        self.verified.sent(self.position)

    def holder_state(self, view: TableView) -> wire.HolderState | None:
        """State that a standby needs to go on from the slot with the rows of ``view``."""
        ownership = self.shared.reader.ownership() if self.asked.standby else None
        if ownership is None:
            return None
        record = view.record
        return wire.HolderState(
            incarnation=record.id,
            definition=orjson.dumps(
                {"oid": record.oid, "identity": record.identity, "copy": dict(record.copy)}
            ),
            source=orjson.dumps({**self.source.to_json(), "doubts": ownership.doubts}),
        )

    async def send_end(self) -> None:
        """Send a resumed base client the sequence that it has reached."""
        self.owes_end = False
        await self.send(self.messages.caught_up(self.cursor))

    @property
    def heartbeat_wanted(self) -> bool:
        """True if the client should get its position now."""
        return self.verified.due(self.position) or self.heartbeats.wanted(self.position)

    async def send_heartbeat(self) -> None:
        """Send the client its position."""
        self.heartbeats.sent(self.position)
        await self.send(
            self.messages.heartbeat(
                sequence=self.cursor,
                position=self.position,
                boundary=self.verified.take(self.position),
            )
        )
