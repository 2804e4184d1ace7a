"""A session's snapshot phase: one message is sent while the next is encoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType

from laredo_fanout.serving import slices
from laredo_fanout.serving.session.client_stream import ClientStream
from laredo_fanout.serving.session.resume import streamed_snapshot_id
from laredo_fanout.serving.slices import Sliced
from laredo_fanout.serving.snapshot_rows import SnapshotRowStream
from laredo_fanout.store.reader import Batch
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.checksum import StateChecksum

_WORTHWHILE = 64 << 10


class SendAhead:
    """Keeps at most one large message on its way while its maker works on the next.

    gRPC's own threads send without the interpreter's lock, so a snapshot gains a fifth. Small
    messages aren't worth a task; they are sent at once. The next send, or the block's end, raises
    the error of a send.
    """

    def __init__(self, send: Callable[[list[bytes]], Coroutine[None, None, None]]) -> None:
        self._send = send
        self._sending: asyncio.Task[None] | None = None

    async def send(self, messages: list[bytes]) -> None:
        """Send the messages; returns when they are sent, or a large one is on its way."""
        small = max(map(len, messages)) < _WORTHWHILE
        for some in [messages] if small else ([message] for message in messages):
            await self.drain()
            if len(some[0]) < _WORTHWHILE:
                await self._send(some)
                continue
            self._sending = asyncio.create_task(self._send(some))
            # One turn of the loop starts the write.
            await asyncio.sleep(0)

    async def drain(self) -> None:
        """Wait until nothing is on its way."""
        if self._sending is not None:
            sending, self._sending = self._sending, None
            try:
                await sending
            except asyncio.CancelledError:
                sending.cancel()
                raise

    async def __aenter__(self) -> SendAhead:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.drain()
        elif self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


class SnapshotNeeded(Exception):
    """Only a snapshot catches the client up; the message has the reason."""


class SnapshotSender:
    """Sends the rows of the client's table that pass its filter; the checksum covers all rows."""

    def __init__(self, client: ClientStream) -> None:
        self._client = client
        self._checksum = StateChecksum()
        self._sent = 0

    async def run(self, *, handshake: bool, because: str) -> None:
        """Send the snapshot; the journal is pinned from its sequence on.

        `handshake`: it is the stream's beginning; `because`: why it is sent to a client that asked
        to resume.
        """
        client = self._client
        async with SnapshotRowStream(
            client.shared.reader,
            client.view.id,
            client.shared.spool,
            batch_rows=client.form.snapshot_rows,
        ) as rows:
            await client.pin.hold(client.view.id, rows.sequence)
            client.cursor, client.position = rows.sequence, rows.position
            if handshake:
                await client.send_handshake(
                    wire.SYNC_MODE_FULL_SNAPSHOT,
                    rows.sequence,
                    rows.position,
                    self._id(rows),
                )
            client.show("snapshot")
            await self._begin(rows, because)
            await self._send_rows(rows)
            await self._end(rows)
        client.owes_end = False
        client.heartbeats.has_position(rows.position)
        client.show("catching_up")

    async def _begin(self, rows: SnapshotRowStream, because: str) -> None:
        client = self._client
        client.verified.begin(rows.position)
        # The catalog check that its end waits for runs while the rows are sent.
        client.verified.sent(rows.position)
        await client.send(
            client.messages.snapshot_begin(
                snapshot_id=self._id(rows),
                sequence=rows.sequence,
                rows=rows.rows,
                position=rows.position,
                reason=because,
                holder=client.holder_state(rows.view),
            )
        )

    async def _send_rows(self, rows: SnapshotRowStream) -> None:
        async with SendAhead(self._client.send_all) as ahead:
            # While a send waits for its client only the encoded rows are held.
            while (batch := await self._next(rows)) is not None:
                messages = await slices.run(self._encode(*batch))
                del batch
                if messages:
                    await ahead.send(messages)
                else:
                    await asyncio.sleep(0)

    async def _next(self, rows: SnapshotRowStream) -> Batch | None:
        """The next rows; the client doesn't count as stalled while the server spools them."""
        client = self._client
        client.awaits_rows = True
        try:
            return await rows.next()
        finally:
            client.awaits_rows = False
            client.moved()

    async def _end(self, rows: SnapshotRowStream) -> None:
        client = self._client
        await client.send(
            client.messages.snapshot_end(
                sequence=rows.sequence,
                rows_sent=self._sent,
                rows=self._checksum.rows,
                position=rows.position,
                checksum=self._checksum.hex(),
                boundary=client.verified.take(rows.position),
            )
        )

    def _id(self, rows: SnapshotRowStream) -> str:
        return streamed_snapshot_id(self._client.view.id, rows.sequence, self._client.asked)

    def _encode(self, keys: list[bytes], lines: list[bytes]) -> Sliced[list[bytes]]:
        """The messages of the rows that pass."""
        form, row_filter = self._client.form, self._client.filter
        if form.extended:
            self._checksum.add(lines)
        if row_filter is not None:
            yield
            keys, lines = yield from row_filter.select(keys, lines)
        self._sent += len(keys)
        return (yield from form.rows(keys, lines))
