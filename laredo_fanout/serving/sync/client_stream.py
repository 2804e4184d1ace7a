"""A client's stream, shared by the phases of its session: table, wire form, cursor, position."""

from __future__ import annotations

from collections.abc import Sequence

from laredo_fanout.serving.calls.call import StallGuard
from laredo_fanout.serving.calls.exchange import Exchange
from laredo_fanout.serving.calls.request import CheckedSyncRequest
from laredo_fanout.serving.filters.conditions import Conditions
from laredo_fanout.serving.filters.row_filter import RowFilter
from laredo_fanout.serving.forms.base import BaseForm
from laredo_fanout.serving.forms.batch import BatchForm
from laredo_fanout.serving.forms.form import Form, Messages
from laredo_fanout.serving.ports import Lease
from laredo_fanout.serving.shared import ServingResources
from laredo_fanout.serving.sync.heartbeats import Heartbeats
from laredo_fanout.serving.sync.pin import Pin
from laredo_fanout.serving.sync.verified_position import SessionVerifiedPosition
from laredo_fanout.store.meta import SourceIdentity
from laredo_fanout.store.view import TableView
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.position import History


class ClientStream:
    """The state of a client's stream, and its sending. Call `enter` before all else."""

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
        self.cursor = 0
        """The newest journal entry that was sent."""
        self.position = 0
        """Every transaction up to here was sent."""
        self.owes_end = False
        """True if it resumes, in the base form, and wasn't sent the entry at the cursor: without a
        message that has that sequence it doesn't know that it is caught up."""
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
        """Go on behind the entry `after`; the client may already have those up to
        `repeated_through`."""
        self.cursor, self.position = after, position
        self.owes_end = not self.asked.batch
        self._repeated_through = repeated_through
        if repeated_through:
            self.form = self.form_with(self.filter, repeated_through=repeated_through)

    def moved_to(self, sequence: int) -> None:
        """Put the cursor behind this entry."""
        self.cursor = sequence
        if self._repeated_through and sequence >= self._repeated_through:
            self._repeated_through = 0
            self.form = self.form_with(self.filter)

    def form_with(self, chosen: RowFilter | None, *, repeated_through: int = 0) -> Form:
        """The client's wire form with this filter, for entries of which it may already have those
        up to `repeated_through`."""
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
        """Send the handshake: the stream goes on behind the cursor, the server is at `sequence`
        and `position`."""
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
            )
        )
        self.verified.sent(self.position)

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
