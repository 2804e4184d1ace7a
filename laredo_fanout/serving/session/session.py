"""The session of a Sync call: handshake, catch-up, then every change as it becomes durable.

A session is a cursor into its table's journal. It owns no queue: it reads the next message from the
store (or from the records that all sessions share), and waits while its client takes none. So its
memory is one message, however far behind the client is.

If the journal doesn't reach back to the client, the session begins with a snapshot
(`SnapshotSender`) or the archive's diffs (`Replay`). Then it sends the journal (`JournalSender`). A
new incarnation of the table, or a journal that was pruned too far, begins with a snapshot again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from laredo_fanout.serving import slices
from laredo_fanout.serving.call import Call, CheckedSyncRequest, Exchange, StallGuard
from laredo_fanout.serving.errors import BufferDropped, Damaged, HistoryChanged, NotServed
from laredo_fanout.serving.filters import Conditions
from laredo_fanout.serving.journal import Backlog, Tail
from laredo_fanout.serving.options import BufferPolicy, ServingTableOptions
from laredo_fanout.serving.ports import Lease
from laredo_fanout.serving.session import replay, resume
from laredo_fanout.serving.session.client_stream import ClientStream, WakeUp
from laredo_fanout.serving.session.live_group import LiveGroups
from laredo_fanout.serving.session.replay import Replay
from laredo_fanout.serving.session.resume import caught_up_view
from laredo_fanout.serving.session.snapshot_sender import SnapshotNeeded, SnapshotSender
from laredo_fanout.serving.session.verified_position import (
    Heartbeats,
    SessionVerifiedPosition,
    SuspectRangeReader,
)
from laredo_fanout.serving.shared import ServingResources
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.errors import JournalDamaged, JournalPruned, TableUnknown
from laredo_fanout.store.reader import TableView
from laredo_fanout.store.table import SuspectRange
from laredo_fanout.wire import replication_pb2 as wire

log = structlog.get_logger(__name__)


class JournalSender:
    """Sends one incarnation's journal after the client's cursor; live once it reached the end."""

    def __init__(
        self, client: ClientStream, options: ServingTableOptions, backlog: Backlog
    ) -> None:
        self._client = client
        self._options = options
        self._backlog = backlog
        self._suspect_ranges = SuspectRangeReader(client.shared.reader)
        self.live = False

    def check_backlog(self, before: TableView, now: TableView) -> None:
        """Check the backlog that this session already had at `before`.

        :raises BufferDropped: it is longer than a client may be behind.
        :raises JournalDamaged: if a record of it isn't what was written.
        """
        client, limit = self._client, self._options.buffer_max_size
        if not self.live or before.id != client.view.id:
            return
        depth = max(now.sequence - client.cursor, 0)
        client.show("live", depth)
        if (
            self._options.buffer_policy is BufferPolicy.DROP_DISCONNECT
            and before.sequence - client.cursor > limit
            and self._backlog.more_than(limit, client.cursor, before.sequence)
        ):
            raise BufferDropped(
                f"client {client.asked.client_id!r} is {depth} changes behind on table "
                f"{client.asked.table}, which are more transactions than client_buffer.max_size "
                f"({limit}): resume by source position"
            )

    async def step(self, view: TableView) -> bool:
        """Send what comes next; False if there is nothing.

        :raises SnapshotNeeded: the journal doesn't reach back to the client any more.
        :raises PositionSuspect: the client was sent suspect rows that were repaired since.
        """
        self._client.verified.check(view)
        try:
            if await self._send_suspect_range(view):
                return True
            if self._client.cursor < view.sequence:
                return await self._send_changes(view)
        except (JournalPruned, TableUnknown) as gone:
            log.info(
                "journal pruned before the client caught up; snapshot scheduled",
                table=view.name,
                client=self._client.asked.client_id,
                reason=str(gone),
            )
            raise SnapshotNeeded(str(gone)) from gone
        self._reach_end(view)
        if self._client.owes_end:
            await self._client.send_end()
        return False

    async def send_rest(self) -> None:
        """Send the rest of an old incarnation, to which nothing is added any more."""
        client, table = self._client, self._client.view
        try:
            while records := await client.shared.recent.after(table.id, client.cursor, client.form):
                await asyncio.sleep(0)
                for record in records:
                    await self._send_record(record.messages, record.last_sequence, record.complete)
        except (JournalPruned, TableUnknown) as gone:
            log.info(
                "former journal dropped before the client caught up",
                table=table.name,
                reason=str(gone),
            )

    async def _send_changes(self, view: TableView) -> bool:
        client = self._client
        records = await client.shared.recent.after(view.id, client.cursor, client.form)
        if not any(record.messages for record in records):
            # Sending gives other tasks a turn, but nothing is sent.
            await asyncio.sleep(0)
        suspect_range = self._suspect_range_ahead(view)
        for record in records:
            if suspect_range is not None and record.last_sequence >= suspect_range.first:
                break
            await self._send_record(record.messages, record.last_sequence, record.complete)
        client.verified.sent(client.position)
        if client.verified.due(client.position):
            # Now, although more changes follow: under load they may never end.
            await client.send_heartbeat()
        client.show("live" if self.live else "catching_up", max(view.sequence - client.cursor, 0))
        return bool(records)

    async def _send_record(
        self, messages: Sequence[bytes], last_sequence: int, complete: int | None
    ) -> None:
        """Send the messages of some entries, whose transactions are whole up to ``complete``."""
        client = self._client
        await client.send_all(messages)
        client.moved_to(last_sequence)
        if messages and client.filter is None:
            client.owes_end = False
        if complete is not None:
            client.position = complete
            if messages:
                client.heartbeats.has_position(complete)

    def _suspect_range_ahead(self, view: TableView) -> SuspectRange | None:
        """The next suspect range that must be sent as one transaction, if there is one."""
        client = self._client
        if not client.asked.boundaries:
            return None
        return self._suspect_ranges.ahead(view, client.cursor, client.position)

    async def _send_suspect_range(self, view: TableView) -> bool:
        """Send some of a suspect range, repaired at its end; False if none comes next.

        :raises PositionSuspect: the client was sent some of it as ordinary changes.
        """
        client = self._client
        suspect_range = self._suspect_range_ahead(view)
        if suspect_range is None:
            return False
        parts = await slices.run(
            self._suspect_ranges.parts(suspect_range, view, client.cursor, client.form)
        )
        for part in parts:
            await self._send_record(*part)
        if client.position == suspect_range.end:
            client.verified.took(suspect_range.end)
        client.verified.sent(client.position)
        return bool(parts)

    def _reach_end(self, view: TableView) -> None:
        client = self._client
        client.position = max(client.position, view.position)
        if not self.live:
            self.live = True
            client.show("live")
            client.pin.release()


class Session:
    """The state machine of a Sync call: runs in the call's task until that is ended."""

    _journal: JournalSender

    def __init__(
        self,
        call: Call,
        shared: ServingResources,
        asked: CheckedSyncRequest,
        tail: Tail,
        lease: Lease,
        *,
        conditions: Conditions | None,
        options: ServingTableOptions,
        exchange: Exchange,
        groups: LiveGroups,
        snapshot_sequence: Callable[[str, str, int], Awaitable[int | None]],
    ) -> None:
        self._call = call
        self._shared = shared
        self._asked = asked
        self._options = options
        self._tail = tail
        self._lease = lease
        self._snapshot_sequence = snapshot_sequence
        self._groups = groups
        self._wake_up = WakeUp()
        self._client = ClientStream(
            shared,
            asked,
            lease,
            SessionVerifiedPosition(tail, asked=asked.boundaries),
            Heartbeats(options.heartbeat_interval_s, self._wake_up.notify),
            conditions=conditions,
            exchange=exchange,
        )
        self._replay: Replay | None = None
        self._sent_go_away = False

    # ---------------------------------------------------------------- from outside

    def notify(self) -> None:
        self._wake_up.notify()

    def position_moved(self) -> None:
        if self._asked.batch:
            self._client.heartbeats.position_moved()

    def verified_position_moved(self) -> None:
        if self._client.verified.due(self._client.position):
            self._wake_up.notify()

    def judge_backlog(self, before: TableView, now: TableView) -> None:
        try:
            self._journal.check_backlog(before, now)
        except BufferDropped as dropped:
            self._call.end(dropped)
        except JournalDamaged as damaged:
            # The tail's task calls this for all sessions: the damage ends this one alone.
            self._shared.report_damage(damaged.damage)
            self._call.end(Damaged(str(damaged)))

    # ---------------------------------------------------------------- the session itself

    async def run(self) -> None:
        """Send until the client leaves (CancelledError) or a reason to end it appears.

        :raises Refused: the call ends with this.
        """
        try:
            await self._run()
        finally:
            self._tail.leave(self)
            self._end_replay()
            self._client.close()

    async def _run(self) -> None:
        client = self._client
        view, source = await caught_up_view(self._shared, self._asked, self._lease)
        client.source = source
        self._enter(view)
        of_snapshot = await self._sequence_of_snapshot(view)
        plan = resume.plan(self._asked, view, source, self._shared.reader, of_snapshot)
        replayed = await self._plan_replay(source) if plan.after is None else None
        self._tail.follow(self)
        client.heartbeats.start()
        timeout = self._shared.listener.stall_timeout_s
        client.guard = StallGuard(self._call, timeout, self._owes_nothing)
        if replayed is not None:
            await self._begin_replay(replayed)
        elif plan.after is None:
            await self._send_snapshot(handshake=True, because=plan.because)
        else:
            await self._resume(plan, plan.after)
        while True:
            await self._step()

    async def _sequence_of_snapshot(self, view: TableView) -> int | None:
        """The sequence of the periodic snapshot that the client names, if it names one."""
        named = self._asked.snapshot_id
        if not named or resume.is_streamed(named):
            return None
        return await self._snapshot_sequence(named, view.name, view.id)

    def _enter(self, view: TableView) -> None:
        """Send this incarnation of the table from now on."""
        self._client.enter(view)
        self._backlog = self._tail.backlog(view.id)
        self._begin_journal()

    def _begin_journal(self) -> None:
        """Begin a journal phase: the client is behind until that has been at the end."""
        self._journal = JournalSender(self._client, self._options, self._backlog)

    async def _resume(self, plan: resume.ResumePlan, after: int) -> None:
        client = self._client
        client.resume(after, plan.position, plan.repeated_through)
        await client.send_handshake(
            plan.mode, client.view.sequence, client.view.position, plan.snapshot_id
        )
        client.show("catching_up", client.view.sequence - after)

    async def _plan_replay(self, source: SourceIdentity) -> replay.ReplayPlan | None:
        planned = await replay.plan(self._client, source)
        if planned is not None:
            self._enter(planned.view)
        return planned

    async def _begin_replay(self, planned: replay.ReplayPlan) -> None:
        view = planned.view
        self._replay = Replay(self._client, planned)
        await self._client.send_handshake(
            wire.SYNC_MODE_REPLAY_ARCHIVE, view.sequence, view.position
        )

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    async def _send_snapshot(self, *, handshake: bool, because: str) -> None:
        self._begin_journal()
        await SnapshotSender(self._client).run(handshake=handshake, because=because)

    async def _step(self) -> None:
        """Send what there is, or wait until there is something."""
        client = self._client
        # Cleared before the check: what happens during it notifies again.
        self._wake_up.clear()
        await self._send_go_away()
        view = self._current_view()
        if self._sent_go_away and not client.asked.batch:
            # The client may apply changes from here and again from its next stream.
            pass
        elif view.id != client.view.id:
            # Ids only grow; with a lower one the tail hasn't seen yet what this session began with.
            if view.id > client.view.id and view.live:
                await self._change_incarnation(view)
                return
        elif await self._step_phase(view):
            return
        if client.heartbeat_wanted:
            await client.send_heartbeat()
        else:
            await self._wait()

    async def _wait(self) -> None:
        """Wait until there is something to do; a group sends a live client its changes."""
        leave = self._join_group()
        try:
            await self._wake_up.wait()
        finally:
            if leave is not None:
                self._tail.follow(self)
                leave()

    def _join_group(self) -> Callable[[], None] | None:
        if self._replay is not None or not self._journal.live or self._wake_up.notified:
            return None
        leave = self._groups.join(self._client, self._wake_up.notify)
        if leave is not None:
            self._tail.leave(self)
        return leave

    async def _send_go_away(self) -> None:
        """Send GoAway, once, when the server drains; a base client is sent no change after it."""
        drain = self._shared.drain
        if drain.deadline_ms and not self._sent_go_away:
            self._sent_go_away = True
            await self._client.send(self._client.messages.go_away("draining", drain.deadline_ms))

    def _current_view(self) -> TableView:
        """The table as it is now.

        :raises Refused: the call can't go on with it.
        """
        view, ours = self._tail.view, self._client.history
        if self._tail.history != ours:
            raise HistoryChanged(
                f"the server now follows history {self._tail.history}, not {ours}: connect again"
            )
        if view is None:
            raise NotServed(f"table {self._asked.table} is no longer in the store")
        if view.id == self._client.view.id and not view.shown:
            raise resume.not_ready(view)
        return view

    async def _step_phase(self, view: TableView) -> bool:
        """Send what the phase has now; False if there is nothing."""
        try:
            if self._replay is None:
                return await self._journal.step(view)
            if not await self._replay.step(view):
                self._end_replay()
        except SnapshotNeeded as needed:
            self._end_replay()
            await self._send_snapshot(handshake=False, because=str(needed))
        return True

    async def _change_incarnation(self, view: TableView) -> None:
        """Follow a table that was copied again: send the old journal's rest, then the new rows."""
        client, old = self._client, self._client.view
        self._end_replay()
        await self._journal.send_rest()
        await client.send(client.messages.schema_change(client.cursor, old.columns, view.columns))
        self._enter(view)
        await self._send_snapshot(handshake=False, because=self._why_copied(old))

    def _why_copied(self, old: TableView) -> str:
        source = self._shared.reader.source()
        if source is not None and source.because and old.position < source.since:
            return source.because
        return "the table was copied again"

    def _owes_nothing(self) -> bool:
        """True if the client may take nothing: only a live one, since others hold rows and pins,
        and one whose rows are being spooled."""
        return self._journal.live or self._client.awaits_rows
