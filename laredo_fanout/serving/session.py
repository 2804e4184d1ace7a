"""One client's Sync: handshake, catch-up, then every change as it becomes durable.

A session is a cursor into its table's journal. It owns no queue: what it sends next it reads from
the store (or from the records that all sessions share), and while its client doesn't take a
message it simply stands still. So its memory is one message, however far behind the client is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from laredo_fanout.serving import replaying, resume, slices
from laredo_fanout.serving.archives import TableArchive
from laredo_fanout.serving.base_form import BaseForm
from laredo_fanout.serving.batch_form import BatchForm
from laredo_fanout.serving.bell import Bell
from laredo_fanout.serving.boundary import Boundary
from laredo_fanout.serving.call import Call, StallGuard
from laredo_fanout.serving.conditions import Conditions
from laredo_fanout.serving.doubted import Part, Stretches
from laredo_fanout.serving.errors import BufferDropped, HistoryChanged, NotServed
from laredo_fanout.serving.filters import RowFilter
from laredo_fanout.serving.forms import Form, Messages
from laredo_fanout.serving.level import level_view
from laredo_fanout.serving.options import BufferPolicy, TableOptions
from laredo_fanout.serving.pin import Pin
from laredo_fanout.serving.ports import Lease
from laredo_fanout.serving.replay import NoReplay
from laredo_fanout.serving.replaying import Replay, ReplayBroken
from laredo_fanout.serving.request import SyncAsked
from laredo_fanout.serving.shared import Shared
from laredo_fanout.serving.snapshot_rows import SnapshotRows
from laredo_fanout.serving.snapshot_sender import SnapshotSender
from laredo_fanout.serving.tail import Tail
from laredo_fanout.store.errors import JournalPruned, TableUnknown
from laredo_fanout.store.table import Doubt
from laredo_fanout.store.view import TableView
from laredo_fanout.wire import replication_pb2 as wire

log = structlog.get_logger(__name__)


class Session:
    """Runs in its call's task, until that is ended."""

    def __init__(
        self,
        call: Call,
        shared: Shared,
        asked: SyncAsked,
        tail: Tail,
        lease: Lease,
        *,
        conditions: Conditions | None,
        options: TableOptions,
        send: Callable[[bytes], Awaitable[None]],
        snapshot_sequence: Callable[[str, str, int], Awaitable[int | None]],
    ) -> None:
        self.extended = asked.batch
        self._call = call
        self._conditions = conditions
        self._shared = shared
        self._asked = asked
        self._options = options
        self._tail = tail
        self._lease = lease
        self._write = send
        self._snapshot_sequence = snapshot_sequence
        self._messages = Messages(extended=asked.batch, boundaries=asked.boundaries)
        self._boundary = Boundary(tail, asked=asked.boundaries)
        self._stretches = Stretches(shared.reader)
        self._loop = asyncio.get_running_loop()
        self._bell = Bell()
        self._beat: asyncio.TimerHandle | None = None
        self._guard: StallGuard | None = None
        self._beat_due = self._position_due = self._told_away = False
        self._live = False
        self._replay: Replay | None = None
        self._pin = Pin(lease, asked.client_id, shared.listener.pin_limit_s)
        self._cursor = self._position = self._told_position = 0

    # ---------------------------------------------------------------- from outside

    def ring(self) -> None:
        """There may be something to send."""
        self._bell.ring()

    def position_moved(self) -> None:
        """The store's position moved, with or without changes of this table."""
        if self.extended:
            self._position_due = True
            self._bell.ring()

    def boundary_moved(self) -> None:
        """The source's catalog was looked at."""
        if self._boundary.due(self._position):
            self._bell.ring()

    def look(self, before: TableView, now: TableView) -> None:
        """The table moved: judge the backlog that this session already had `before`."""
        depth = now.sequence - self._cursor
        if not self._live or before.id != self._view.id:
            return
        self._lease.update(sequence=self._cursor, depth=max(depth, 0), state="live")
        limit = self._options.buffer_max_size
        if (
            self._options.buffer_policy is BufferPolicy.DROP_DISCONNECT
            and before.sequence - self._cursor > limit
            and self._backlog.more_than(limit, self._cursor, before.sequence)
        ):
            self._call.end(
                BufferDropped(
                    f"client {self._asked.client_id!r} fell {depth} changes behind on table "
                    f"{self._asked.table}, more than client_buffer.max_size ({limit}) "
                    "transactions: resume by source position"
                )
            )

    # ---------------------------------------------------------------- the session itself

    async def run(self) -> None:
        """Send until the client leaves (CancelledError) or a reason to end it appears.

        :raises Refused: the call ends with this.
        """
        try:
            await self._run()
        finally:
            self._tail.leave(self)
            self._pin.release()
            if self._replay is not None:
                self._replay.close()
            if self._guard is not None:
                self._guard.stop()
            if self._beat is not None:
                self._beat.cancel()

    async def _run(self) -> None:
        view, self._source = await level_view(self._shared, self._asked, self._lease)
        self._enter(view)
        of_snapshot = await self._sequence_of_snapshot(view)
        plan = resume.plan(self._asked, view, self._source, self._shared.reader, of_snapshot)
        replayed = await self._plan_replay() if plan.after is None else None
        self._tail.follow(self)
        self._arm_heartbeat()
        timeout = self._shared.listener.stall_timeout_s
        self._guard = StallGuard(self._call, timeout, self._owes_nothing)
        if replayed is not None:
            await self._begin_replay(*replayed)
        elif plan.after is None:
            await self._send_snapshot(handshake=True, because=plan.because)
        else:
            await self._resume(plan, plan.after)
        while True:
            await self._step()

    async def _sequence_of_snapshot(self, view: TableView) -> int | None:
        """Of the periodic snapshot that the client names, if it does."""
        named = self._asked.snapshot_id
        if not named or resume.is_streamed(named):
            return None
        return await self._snapshot_sequence(named, view.name, view.id)

    def _enter(self, view: TableView) -> None:
        """Take this incarnation of the table for the session's own."""
        self._view = view
        self._boundary.enter(view)
        self._form = self._form_for(view)
        self._backlog = self._tail.backlog(view.id)

    def _form_for(self, view: TableView) -> Form:
        chosen = self._conditions
        self._filter = None if chosen is None else RowFilter(chosen, view.columns)
        return self._form_with(self._filter)

    def _form_with(self, chosen: RowFilter | None) -> Form:
        asked = self._asked
        if asked.batch:
            return BatchForm(want_old=asked.want_old, row_filter=chosen)
        return BaseForm(chosen, self._shared.structs)

    async def _resume(self, plan: resume.Plan, after: int) -> None:
        self._cursor, self._position = after, plan.position
        await self._shake_hands(plan.mode, plan.snapshot_id)
        self._lease.update(sequence=after, depth=self._view.sequence - after, state="catching_up")

    async def _shake_hands(self, mode: wire.SyncMode, snapshot_id: str = "") -> None:
        view = self._view
        self._boundary.begin(self._position)
        await self._send(
            self._messages.handshake(
                mode=mode,
                sequence=view.sequence,
                oldest_sequence=view.oldest_sequence,
                resume_from=self._cursor + 1,
                columns=view.columns,
                snapshot_id=snapshot_id,
                position=view.position,
                history=str(self._source.history),
                boundary=self._boundary.tell(self._position),
            )
        )
        self._boundary.sent(self._position)

    async def _plan_replay(self) -> tuple[TableArchive, replaying.Plan] | None:
        """What brings the client level instead of a snapshot; None if nothing does."""
        asked = self._asked
        archive = self._shared.archives.get(asked.table)
        if archive is None or asked.position is None:
            return None
        if not resume.same_history(asked, self._source):
            return None
        try:
            planned = await replaying.plan(archive, asked, self._shared, self._pin)
        except NoReplay as because:
            self._pin.release()
            archive.count(because.outcome)
            log.info(
                "no replay from the archive, the client gets a snapshot",
                table=asked.table,
                client=asked.client_id,
                outcome=because.outcome.value,
                reason=str(because),
            )
            return None
        self._enter(planned.view)
        return archive, planned

    async def _begin_replay(self, archive: TableArchive, planned: replaying.Plan) -> None:
        inside = None if self._filter is None else self._filter.of_unknown()
        forms = self._form, self._form_with(inside)
        self._replay = Replay(archive, planned, *forms, self._send)
        self._cursor, self._position = self._replay.cursor, self._replay.position
        if not planned.chain.entries:
            self._cursor = planned.after
        await self._shake_hands(wire.SYNC_MODE_REPLAY_ARCHIVE)

    async def _step_replay(self, replay: Replay, view: TableView) -> None:
        """The next piece of what the archive has; at its end the journal takes over."""
        try:
            sent = await replay.step()
        except ReplayBroken:
            self._end_replay(replay)
            await self._send_snapshot(handshake=False, because="the archive's replay broke off")
            return
        self._cursor, self._position = replay.cursor, replay.position
        if replay.through:
            self._end_replay(replay)
            # At once, so that the client knows where it is although nothing may follow.
            self._beat_due = True
            return
        depth = replay.left(view)
        self._lease.update(sequence=self._cursor, depth=depth, state="replaying")
        if not sent:
            # The archive keeps us waiting, not the client.
            self._moved()
        if self._beat_due:
            await self._send_heartbeat()

    def _end_replay(self, replay: Replay) -> None:
        replay.close()
        self._replay = None

    async def _step(self) -> None:
        """Send what there is, or wait until there is something."""
        # Cleared before looking: what happens while we look rings again.
        self._bell.clear()
        if self._shared.drain.deadline_ms and not self._told_away:
            self._told_away = True
            await self._send(
                self._messages.go_away(self._shared.drain.reason, self._shared.drain.deadline_ms)
            )
        view = self._current_view()
        if view.id != self._view.id:
            # Ids only grow; with a lower one the tail hasn't seen yet what this session began with.
            if view.id > self._view.id and view.live:
                await self._change_incarnation(view)
                return
        elif await self._send_doubted(view):
            return
        elif self._replay is not None or self._cursor < view.sequence:
            if await self._send_changes(view):
                return
        else:
            self._reach_end(view)
        if self._heartbeat_wanted():
            await self._send_heartbeat()
        else:
            await self._bell.wait()

    def _current_view(self) -> TableView:
        """The table as it is now.

        :raises Refused: the call can't go on with it.
        """
        view, ours = self._tail.view, self._source.history
        if self._tail.history != ours:
            raise HistoryChanged(
                f"the server now follows history {self._tail.history}, not {ours}: connect again"
            )
        if view is None:
            raise NotServed(f"table {self._asked.table} is no longer in the store")
        if view.id == self._view.id and not view.shown:
            raise resume.not_ready(view)
        return view

    async def _send_changes(self, view: TableView) -> bool:
        """The next records; False if there are none after all."""
        if self._replay is not None:
            await self._step_replay(self._replay, view)
            return True
        try:
            records = await self._shared.recent.after(view.id, self._cursor, self._form)
        except (JournalPruned, TableUnknown) as gone:
            log.info(
                "journal no longer reaches back to a client, it gets a new snapshot",
                table=view.name,
                client=self._asked.client_id,
                reason=str(gone),
            )
            await self._send_snapshot(handshake=False, because=str(gone))
            return True
        if not any(record.messages for record in records):
            # Nothing is sent, which else is when others have their turn.
            await asyncio.sleep(0)
        doubt = self._doubt_ahead(view)
        for record in records:
            if doubt is not None and record.last_sequence >= doubt.first:
                break
            for message in record.messages:
                await self._send(message)
            self._cursor = record.last_sequence
            if record.complete is not None:
                self._position = record.complete
                if record.messages:
                    self._told_position = record.complete
        self._boundary.sent(self._position)
        if self._boundary.due(self._position):
            # Now, although more changes follow: while they never end, it would never come.
            await self._send_heartbeat()
        state = "live" if self._live else "catching_up"
        depth = max(view.sequence - self._cursor, 0)
        self._lease.update(sequence=self._cursor, depth=depth, state=state)
        return bool(records)

    def _doubt_ahead(self, view: TableView) -> Doubt | None:
        """The next stretch that the client must be sent as one, if it must."""
        if not self._asked.boundaries or self._replay is not None:
            return None
        return self._stretches.ahead(view, self._cursor, self._position)

    async def _send_doubted(self, view: TableView) -> bool:
        """Some of a stretch whose rows were put right at its end; False if none comes next.

        :raises Doubted: the client was sent some of it as ordinary changes.
        """
        if self._replay is None:
            self._boundary.check(view)
        doubt = self._doubt_ahead(view)
        if doubt is None:
            return False
        try:
            parts = await slices.run(self._stretches.parts(doubt, view, self._cursor, self._form))
        except (JournalPruned, TableUnknown) as gone:
            await self._send_snapshot(handshake=False, because=str(gone))
            return True
        await self._send_parts(parts)
        if self._position == doubt.end:
            self._boundary.took(doubt.end)
        self._boundary.sent(self._position)
        return bool(parts)

    async def _send_parts(self, parts: list[Part]) -> None:
        for part in parts:
            for message in part.messages:
                await self._send(message)
            self._cursor = part.last_sequence
            if part.ends_at is not None:
                self._position = part.ends_at
                if part.messages:
                    self._told_position = part.ends_at

    def _reach_end(self, view: TableView) -> None:
        """Everything that the view holds was sent."""
        self._position = max(self._position, view.position)
        if not self._live:
            self._live = True
            self._lease.update(sequence=self._cursor, depth=0, state="live")
            self._pin.release()

    async def _change_incarnation(self, view: TableView) -> None:
        """The table was copied anew: what is left of the old journal, then the new rows."""
        old = self._view
        if self._replay is not None:
            self._end_replay(self._replay)
        try:
            while records := await self._shared.recent.after(old.id, self._cursor, self._form):
                await asyncio.sleep(0)
                for record in records:
                    for message in record.messages:
                        await self._send(message)
                    self._cursor = record.last_sequence
        except (JournalPruned, TableUnknown) as gone:
            log.info("old journal is gone", table=view.name, reason=str(gone))
        await self._send(self._messages.schema_change(self._cursor, old.columns, view.columns))
        self._enter(view)
        await self._send_snapshot(handshake=False, because=self._why_copied(old))

    def _why_copied(self, old: TableView) -> str:
        source = self._shared.reader.source()
        if source is not None and source.because and old.position < source.since:
            return source.because
        return "the table was copied anew"

    async def _send_snapshot(self, *, handshake: bool, because: str = "") -> None:
        view = self._view
        self._live = False
        sender = SnapshotSender(
            self._messages, self._form, self._filter, self._boundary, self._send
        )
        async with SnapshotRows(
            self._shared.reader,
            view.id,
            self._shared.spool,
            batch_rows=self._form.snapshot_rows,
        ) as rows:
            await self._pin.hold(view.id, rows.sequence)
            if handshake:
                await sender.handshake(rows, view, self._source.history)
            self._lease.update(sequence=rows.sequence, depth=0, state="snapshot")
            await sender.rows(rows, view.id, because)
        self._cursor = rows.sequence
        self._position = self._told_position = rows.position
        self._lease.update(sequence=rows.sequence, depth=0, state="catching_up")

    async def _send(self, message: bytes) -> None:
        await self._write(message)
        self._moved()

    def _moved(self) -> None:
        if self._guard is not None:
            self._guard.moved()

    # ---------------------------------------------------------------- timers

    def _owes_nothing(self) -> bool:
        """A client that isn't live holds rows and pins the journal: it must take some."""
        return self._live

    def _arm_heartbeat(self) -> None:
        self._beat = self._loop.call_later(self._options.heartbeat_interval_s, self._on_beat)

    def _on_beat(self) -> None:
        self._beat_due = True
        self._arm_heartbeat()
        self._bell.ring()

    def _heartbeat_wanted(self) -> bool:
        if self._beat_due or self._boundary.due(self._position):
            return True
        return self._position_due and self._position > self._told_position

    async def _send_heartbeat(self) -> None:
        self._beat_due = self._position_due = False
        self._told_position = self._position
        await self._send(
            self._messages.heartbeat(
                sequence=self._cursor,
                position=self._position,
                boundary=self._boundary.tell(self._position),
            )
        )
