"""The journal pin of a session: keeps entries while its client is sent a snapshot, for a time."""

from __future__ import annotations

import asyncio

import structlog

from laredo_fanout.serving.ports import Lease

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
        # The client goes on; if its entries are pruned before it is live, it gets a new snapshot.
        log.warning(
            "journal no longer kept for a slow client",
            client=self._client_id,
            after_s=self._limit_s,
        )
        self.release()
