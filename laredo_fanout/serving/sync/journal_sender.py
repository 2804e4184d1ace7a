"""A session's journal phase: sends the journal from the client's cursor on, then each change."""

from __future__ import annotations

import asyncio

import structlog

from laredo_fanout.serving import slices
from laredo_fanout.serving.errors import BufferDropped
from laredo_fanout.serving.journal.backlog import Backlog
from laredo_fanout.serving.journal.recent import Encoded
from laredo_fanout.serving.options import BufferPolicy, ServingTableOptions
from laredo_fanout.serving.sync.client_stream import ClientStream
from laredo_fanout.serving.sync.snapshot_sender import SnapshotNeeded
from laredo_fanout.serving.sync.suspect_ranges import Part, SuspectRangeReader
from laredo_fanout.store.errors import JournalPruned, TableUnknown
from laredo_fanout.store.table import SuspectRange
from laredo_fanout.store.view import TableView

log = structlog.get_logger(__name__)


class JournalSender:
    """Sends the journal of one incarnation of the table; live once it was at the journal's end."""

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
                f"client {client.asked.client_id!r} fell {depth} changes behind on table "
                f"{client.asked.table}, more than client_buffer.max_size ({limit}) "
                "transactions: resume by source position"
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
                    await self._send_record(record)
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
            # Nothing is sent, which else gives other tasks their turn.
            await asyncio.sleep(0)
        suspect_range = self._suspect_range_ahead(view)
        for record in records:
            if suspect_range is not None and record.last_sequence >= suspect_range.first:
                break
            await self._send_record(record)
        client.verified.sent(client.position)
        if client.verified.due(client.position):
            # Now, although more changes follow: while they never end, it would never come.
            await client.send_heartbeat()
        client.show("live" if self.live else "catching_up", max(view.sequence - client.cursor, 0))
        return bool(records)

    async def _send_record(self, record: Encoded) -> None:
        client = self._client
        await client.send_all(record.messages)
        client.moved_to(record.last_sequence)
        if record.messages and client.filter is None:
            client.owes_end = False
        if record.complete is not None:
            client.position = record.complete
            if record.messages:
                client.heartbeats.has_position(record.complete)

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
            await self._send_part(part)
        if client.position == suspect_range.end:
            client.verified.took(suspect_range.end)
        client.verified.sent(client.position)
        return bool(parts)

    async def _send_part(self, part: Part) -> None:
        client = self._client
        await client.send_all(part.messages)
        client.cursor = part.last_sequence
        if part.ends_at is not None:
            client.position = part.ends_at
            if part.messages:
                client.heartbeats.has_position(part.ends_at)

    def _reach_end(self, view: TableView) -> None:
        client = self._client
        client.position = max(client.position, view.position)
        if not self.live:
            self.live = True
            client.show("live")
            client.pin.release()
