"""The session of a Sync call: handshake, catch-up, then every change as it becomes durable.

A session is a cursor into its table's journal. It owns no queue: what it sends next it reads from
the store (or from the records that all sessions share), and while its client doesn't take a
message it simply stands still. So its memory is one message, however far behind the client is.

It runs its phases in turn: a snapshot (`SnapshotSender`) or what the archive has (`Replay`), if the
journal doesn't reach back to the client, and then the journal (`JournalSender`). A new incarnation
of the table, or a journal that was pruned too far, begins with a snapshot again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from laredo_fanout.serving.calls.call import Call, StallGuard
from laredo_fanout.serving.calls.exchange import Exchange
from laredo_fanout.serving.calls.request import CheckedSyncRequest
from laredo_fanout.serving.errors import BufferDropped, HistoryChanged, NotServed
from laredo_fanout.serving.filters.conditions import Conditions
from laredo_fanout.serving.journal.tail import Tail
from laredo_fanout.serving.options import ServingTableOptions
from laredo_fanout.serving.ports import Lease
from laredo_fanout.serving.shared import ServingResources
from laredo_fanout.serving.sync import replay, resume
from laredo_fanout.serving.sync.client_stream import ClientStream
from laredo_fanout.serving.sync.heartbeats import Heartbeats
from laredo_fanout.serving.sync.journal_sender import JournalSender
from laredo_fanout.serving.sync.live_group import LiveGroups
from laredo_fanout.serving.sync.replay import Replay
from laredo_fanout.serving.sync.snapshot_sender import SnapshotNeeded, SnapshotSender
from laredo_fanout.serving.sync.verified_position import SessionVerifiedPosition
from laredo_fanout.serving.sync.visible_table import caught_up_view
from laredo_fanout.serving.sync.wake_up import WakeUp
from laredo_fanout.store.meta import SourceIdentity
from laredo_fanout.store.view import TableView
from laredo_fanout.wire import replication_pb2 as wire


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
        """Wake the session: there may be something to send."""
        self._wake_up.notify()

    def position_moved(self) -> None:
        """Note that the store's position moved, with or without changes of this table."""
        if self._asked.batch:
            self._client.heartbeats.position_moved()

    def verified_position_moved(self) -> None:
        """Note that the table's verified position moved."""
        if self._client.verified.due(self._client.position):
            self._wake_up.notify()

    def judge_backlog(self, before: TableView, now: TableView) -> None:
        """Check the backlog that this session already had at `before`."""
        try:
            self._journal.check_backlog(before, now)
        except BufferDropped as dropped:
            self._call.end(dropped)

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
            # It may apply what is still sent here beside what its next stream sends: each twice.
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
            await self._client.send(self._client.messages.go_away(drain.reason, drain.deadline_ms))

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
        """True if the client may take nothing: only a live one, since others hold rows and pins."""
        return self._journal.live
