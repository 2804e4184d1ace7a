"""Sending one snapshot: begin, rows, end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from laredo_fanout.serving import slices
from laredo_fanout.serving.ahead import Ahead
from laredo_fanout.serving.boundary import Boundary
from laredo_fanout.serving.filters import RowFilter
from laredo_fanout.serving.forms import Form, Messages
from laredo_fanout.serving.resume import streamed_snapshot_id
from laredo_fanout.serving.slices import Sliced
from laredo_fanout.serving.snapshot_rows import SnapshotRows
from laredo_fanout.store.view import TableView
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.checksum import StateChecksum
from laredo_model.history import History


class SnapshotSender:
    """Sends a table's rows in a session's form, through its filter."""

    def __init__(
        self,
        messages: Messages,
        form: Form,
        row_filter: RowFilter | None,
        boundary: Boundary,
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._messages = messages
        self._form = form
        self._filter = row_filter
        self._boundary = boundary
        self._send = send

    async def handshake(self, rows: SnapshotRows, view: TableView, history: History) -> None:
        """Say that a snapshot follows, and where the stream goes on after it."""
        self._boundary.begin(rows.position)
        await self._send(
            self._messages.handshake(
                mode=wire.SYNC_MODE_FULL_SNAPSHOT,
                sequence=rows.sequence,
                oldest_sequence=view.oldest_sequence,
                resume_from=rows.sequence + 1,
                columns=view.columns,
                snapshot_id=streamed_snapshot_id(view.id, rows.sequence),
                position=rows.position,
                history=str(history),
                boundary=self._boundary.tell(rows.position),
            )
        )

    async def rows(self, rows: SnapshotRows, table_id: int, because: str) -> None:
        """Begin, all rows that pass the filter, end. The sum is of all rows, sent or not.

        `because`: why it is sent to a client that would have gone on.
        """
        self._boundary.begin(rows.position)
        # The look that its end waits for is made while the rows are sent.
        self._boundary.sent(rows.position)
        await self._send(
            self._messages.snapshot_begin(
                snapshot_id=streamed_snapshot_id(table_id, rows.sequence),
                sequence=rows.sequence,
                rows=rows.rows,
                position=rows.position,
                reason=because,
            )
        )
        checksum = StateChecksum()
        sent = 0
        async with Ahead(self._send) as ahead:
            # While a send waits for its client only the encoded rows are held.
            while (batch := await rows.next()) is not None:
                count, messages = await slices.run(self._encode(*batch, checksum))
                del batch
                sent += count
                for message in messages:
                    await ahead.send(message)
                if not messages:
                    await asyncio.sleep(0)
        await self._send(
            self._messages.snapshot_end(
                sequence=rows.sequence,
                rows_sent=sent,
                rows=checksum.rows,
                position=rows.position,
                checksum=checksum.hex(),
                boundary=self._boundary.tell(rows.position),
            )
        )

    def _encode(
        self, keys: list[bytes], lines: list[bytes], checksum: StateChecksum
    ) -> Sliced[tuple[int, list[bytes]]]:
        """How many rows pass, and their messages."""
        if self._form.extended:
            checksum.add(lines)
        if self._filter is not None:
            yield
            keys, lines = yield from self._filter.select(keys, lines)
        return len(keys), (yield from self._form.rows(keys, lines))
