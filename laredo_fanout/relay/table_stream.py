"""The stream of one table from the upstream, across its ends: each goes on where the store is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.client.errors import StreamBroken, StreamError
from laredo_fanout.client.events import GoAway, Handshake
from laredo_fanout.client.stream.stream import SyncOptions, open_stream
from laredo_fanout.relay.errors import BatchAbandoned, UpstreamUnavailable
from laredo_fanout.relay.received_table import StartOver
from laredo_fanout.relay.tls_cure import with_cure
from laredo_model import position as position_
from laredo_service.retry import Backoff

if TYPE_CHECKING:
    from laredo_fanout.client.events import Event
    from laredo_fanout.relay.options import RelayOptions
    from laredo_fanout.relay.received_table import ReceivedTable
    from laredo_fanout.relay.status import RelayCounters
    from laredo_fanout.store.writer import Store
    from laredo_fanout.tables.status import Counters

_log = structlog.get_logger()

_RETRY = Backoff(initial=0.1, maximum=5.0)
_LEAVING = Backoff(initial=0.1, maximum=0.1)


class TableStream:
    """Follows one table until it is cancelled. ``turn`` is awaited before each event, ``wrote``
    called after it; ``check_history`` is given each handshake."""

    def __init__(
        self,
        options: RelayOptions,
        writer: ReceivedTable,
        store: Store,
        counters: Counters,
        relay_counters: RelayCounters,
        *,
        turn: Callable[[ReceivedTable], Awaitable[None]],
        wrote: Callable[[], None],
        check_history: Callable[[Handshake], None],
    ) -> None:
        self.writer = writer
        self._options = options
        self._store = store
        self._counters = counters
        self._relay_counters = relay_counters
        self._turn = turn
        self._wrote = wrote
        self._check_history = check_history
        self.connected = self.was_connected = False
        self.error: str | None = None

    async def run(self) -> None:
        """Follow the table; a stream that ends is opened again.

        :raises BatchAbandoned: if it ended within a transaction that is written in part.
        :raises HistoryMoved: from ``check_history``.
        :raises StoreError: if the store can't be written.
        """
        failures = 0
        while True:
            delay = _LEAVING.delay(1)
            try:
                async with aclosing(self._one_stream()) as events:
                    async for event in events:
                        if not isinstance(event, Handshake):
                            failures = 0
            except StartOver:
                self.writer.forgets = True
            except (StreamError, UpstreamUnavailable) as error:
                failures += 1
                delay = _RETRY.delay(failures)
                self._disconnected(error, delay, failures)
            finally:
                self.connected = False
            if self.writer.is_open:
                raise BatchAbandoned
            self.writer.drop_copy()
            self._wrote()
            await asyncio.sleep(delay)

    def start_over(self) -> None:
        """Have the next stream begin with a snapshot."""
        self.writer.forgets = True

    async def _one_stream(self) -> AsyncGenerator[Event, None]:
        """Take one stream's events; ends when the upstream asked to go, else raises."""
        writer = self.writer
        snapshot_asked = writer.forgets
        deadline: datetime | None = None
        leaving = False
        async with open_stream(self._options.endpoint(), self._request()) as events:
            async for event in events:
                if isinstance(event, Handshake):
                    self._check_history(event)
                    self.connected = self.was_connected = True
                    self.error = None
                elif isinstance(event, GoAway):
                    self._relay_counters.goaways += 1
                    leaving, deadline = True, event.deadline
                    _log.info(
                        "GoAway received",
                        table=writer.options.qualified,
                        reason=event.reason,
                    )
                await self._take(event)
                yield event
                if leaving and (writer.between_transactions or _passed(deadline)):
                    return
                if writer.forgets and not snapshot_asked and writer.between_transactions:
                    return
        if not leaving:
            raise StreamBroken(self._options.server, "the server ended the stream")

    async def _take(self, event: Event) -> None:
        await self._turn(self.writer)
        for _ in self.writer.take(event):
            self._wrote()
            # Other tables' changes are written and committed meanwhile.
            await asyncio.sleep(0)
            await self._turn(self.writer)
        self._wrote()

    def _request(self) -> SyncOptions:
        position, source = self.writer.position, self._store.source
        return SyncOptions(
            self.writer.options.qualified,
            self._options.client_id,
            position=None if position is None else position_.Position(position),
            history=None if position is None or source is None else source.history,
            boundaries=True,
            relay=True,
        )

    def _disconnected(self, error: Exception, delay: float, failures: int) -> None:
        self._counters.reconnects += 1
        text = with_cure(str(error), self._options)
        level = _log.info if text == self.error else _log.warning
        self.error = text
        level(
            "a table's stream from the upstream ended; it is opened again",
            table=self.writer.options.qualified,
            error=text,
            attempt=failures,
            retry_in_s=round(delay, 2),
        )


def _passed(deadline: datetime | None) -> bool:
    return deadline is not None and datetime.now(UTC) >= deadline
