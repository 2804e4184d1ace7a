"""Live clients at the same place of a journal: one task writes the same bytes to all of them.

A live session only waits for the next record, which is the same bytes for every client of the same
table, wire form and filter. So a session that has sent everything joins a group and sleeps. The
group encodes and frames a record once and gives it to each client's transport, which costs no more
than the write itself. Anything else wakes the session, which leaves the group at the group's
position: a client that takes nothing, its heartbeat, a drain, its call's end. Events that concern
all members (another incarnation or history, a suspect range, a large record, an error) end the
group, and each session handles them by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import structlog

from laredo_fanout.serving.call import DirectOutput
from laredo_fanout.serving.journal import EncodedRecord, Tail
from laredo_fanout.serving.session.client_stream import ClientStream, WakeUp
from laredo_fanout.serving.session.verified_position import Heartbeats, SessionVerifiedPosition
from laredo_fanout.store.errors import StoreError
from laredo_fanout.store.reader import TableView

log = structlog.get_logger(__name__)

MOST_MEMBERS = 500
"""Number of clients to which a record is written in one turn of the event loop: about 4 ms."""
MOST_BYTES = 64 << 10
"""Most bytes of a write, and so the memory for each client that takes nothing."""
SHOW_EVERY_S = 1.0


class Member(NamedTuple):
    """A session's stream while its group writes for it."""

    client: ClientStream
    output: DirectOutput
    #: Wakes the session.
    notify: Callable[[], None]


class LiveGroup:
    """Clients with the same cursor in the same incarnation, to whom the same bytes are sent.

    Between two turns of the event loop all members have been sent everything up to `cursor`.
    """

    def __init__(
        self,
        tail: Tail,
        first: ClientStream,
        output: DirectOutput,
        on_end: Callable[[LiveGroup], None],
    ) -> None:
        self._ended = False
        self._on_end = on_end
        self._tail = tail
        self._shared = first.shared
        self._table_id = first.view.id
        self._history = first.history
        self._form = first.form
        self._messages = first.messages
        self._frame = output.frame
        self._batch = first.asked.batch
        self._cursor = first.cursor
        self._position = first.position
        self._members: dict[ClientStream, Member] = {}
        self._wake_up = WakeUp()
        self._verified = SessionVerifiedPosition(tail, asked=first.asked.boundaries)
        self._verified.enter(first.view)
        self._verified.adopt(first.verified)
        self._heartbeats = Heartbeats(0, self._wake_up.notify)
        self._heartbeats.adopt(first.heartbeats)
        self._showing: asyncio.TimerHandle | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._stopped)
        tail.follow(self)

    def __len__(self) -> int:
        return len(self._members)

    # ---------------------------------------------------------------- sessions

    def takes(self, client: ClientStream) -> bool:
        """True if the client has the group's position, and there is room."""
        return (
            len(self._members) < MOST_MEMBERS
            and client.view.id == self._table_id
            and client.history == self._history
            and client.cursor == self._cursor
        )

    def join(self, member: Member) -> None:
        """Write for this client from now on."""
        self._members[member.client] = member
        member.output.when_full(member.notify)

    def leave(self, member: Member) -> None:
        """Stop writing for this client: its session goes on from the group's position."""
        client = member.client
        del self._members[client]
        member.output.when_full(None)
        client.cursor = self._cursor
        client.position = max(client.position, self._position)
        client.verified.adopt(self._verified)
        client.heartbeats.adopt(self._heartbeats)
        if not self._members:
            self._end()

    # ---------------------------------------------------------------- as the table's tail calls it

    def notify(self) -> None:
        self._wake_up.notify()

    def position_moved(self) -> None:
        if self._batch:
            self._heartbeats.position_moved()

    def verified_position_moved(self) -> None:
        if self._verified.due(self._position):
            self._wake_up.notify()

    def judge_backlog(self, before: TableView, now: TableView) -> None:
        """A group waits for no client: it has no backlog."""

    # ---------------------------------------------------------------- the group itself

    async def _run(self) -> None:
        while not self._ended:
            self._wake_up.clear()
            if not await self._step():
                await self._wake_up.wait()

    async def _step(self) -> bool:
        """Send what there is; False if there was nothing."""
        view = self._usual_view()
        if view is None:
            self._end()
            return False
        if self._cursor < view.sequence:
            return await self._send_changes(view)
        self._position = max(self._position, view.position)
        self._send_heartbeat_if_due()
        return False

    def _usual_view(self) -> TableView | None:
        """The table as it is now; None if a journal entry isn't what comes next."""
        view = self._tail.view
        if view is None or not view.shown or view.id != self._table_id:
            return None
        if view.record.suspect_ranges or self._tail.history != self._history:
            return None
        return None if self._shared.drain.deadline_ms else view

    async def _send_changes(self, view: TableView) -> bool:
        records = await self._shared.recent.after(view.id, self._cursor, self._form)
        for together in _packed(records):
            if sum(record.size for record in together) > MOST_BYTES:
                self._end()
            if self._ended:
                return False
            self._send_records(together)
            # A client that is full leaves before the next ones are written.
            await asyncio.sleep(0)
        self._verified.sent(self._position)
        self._send_heartbeat_if_due()
        return bool(records)

    def _send_records(self, records: Sequence[EncodedRecord]) -> None:
        messages = [message for record in records for message in record.messages]
        if messages:
            self._write(messages)
        self._cursor = records[-1].last_sequence
        for record in records:
            if record.complete is not None:
                self._position = record.complete
                if record.messages:
                    self._heartbeats.has_position(record.complete)
        if self._showing is None:
            loop = asyncio.get_running_loop()
            self._showing = loop.call_later(SHOW_EVERY_S, self._show)

    def _send_heartbeat_if_due(self) -> None:
        position = self._position
        if self._verified.due(position) or self._heartbeats.wanted(position):
            self._heartbeats.sent(position)
            boundary = self._verified.take(position)
            heartbeat = self._messages.heartbeat(
                sequence=self._cursor, position=position, boundary=boundary
            )
            self._write([heartbeat])

    def _write(self, messages: Sequence[bytes]) -> None:
        frame, clients = self._frame(messages), len(self._members)
        self._shared.sent.add(clients * len(frame), clients * len(messages))
        for member in self._members.values():
            member.output.write(frame)

    def _show(self) -> None:
        self._showing = None
        for member in self._members.values():
            member.client.cursor = self._cursor
            member.client.show("live")

    def _end(self) -> None:
        """Let every session go on by itself."""
        if self._ended:
            return
        self._ended = True
        self._on_end(self)
        self._tail.leave(self)
        if self._showing is not None:
            self._showing.cancel()
        for member in self._members.values():
            member.notify()
        self._wake_up.notify()

    def _stopped(self, task: asyncio.Task[None]) -> None:
        # Here the error only ends the group; a session that meets it ends with it.
        if not task.cancelled() and (error := task.exception()) is not None:
            failure = None if isinstance(error, StoreError) else error
            log.warning("live group dissolved", error=str(error), exc_info=failure)
        self._end()


def _packed(records: Iterable[EncodedRecord]) -> Iterator[list[EncodedRecord]]:
    """The records in order, as many together as MOST_BYTES allow, but one at least."""
    together: list[EncodedRecord] = []
    size = 0
    for record in records:
        if together and size + record.size > MOST_BYTES:
            yield together
            together, size = [], 0
        together.append(record)
        size += record.size
    if together:
        yield together


class LiveGroups:
    """The groups of one table's clients."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._groups: dict[tuple[bytes, str, bool], set[LiveGroup]] = {}

    def join(self, client: ClientStream, notify: Callable[[], None]) -> Callable[[], None] | None:
        """Have a group write for a live client that was sent everything.

        `notify` wakes the client's session, which must then leave by calling what is returned;
        None: nothing is written for this client.
        """
        output, view = client.exchange.direct, self._tail.view
        if output is None or output.full or view is None or view.record.suspect_ranges:
            return None
        if client.shared.drain.deadline_ms:
            return None
        group = self._group_for(client, output)
        member = Member(client, output, notify)
        group.join(member)
        return lambda: group.leave(member)

    def _group_for(self, client: ClientStream, output: DirectOutput) -> LiveGroup:
        key = client.form.signature, output.framing, client.asked.boundaries
        groups = self._groups.setdefault(key, set())
        for group in groups:
            if group.takes(client):
                return group

        def forget(ended: LiveGroup) -> None:
            groups.discard(ended)
            if not groups:
                self._groups.pop(key, None)

        group = LiveGroup(self._tail, client, output, forget)
        groups.add(group)
        return group
