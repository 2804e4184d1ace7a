"""Keepalives: the server's and the side connection's to us, and ours to the server."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from laredo_fanout.postgres.errors import SourceUnavailable

if TYPE_CHECKING:
    from laredo_fanout.catalog.side_connection import SideConnection
    from laredo_fanout.decode.stream_decoder import StreamDecoder
    from laredo_fanout.ingest.change_source import MessageFeed
    from laredo_fanout.source_options import SourceOptions
    from laredo_fanout.store.writer import Store

_STATUS_INTERVAL_S = 10.0
_STATUS_WITHIN_S = 1.0


class StoppedWithin(Exception):
    """We are to stop, and a giant transaction is applied, or a re-copy compared, in part."""


class Keepalive:
    """Times of the last message of stream and side connection, and of our last confirmation.

    Used by the ingest's thread, from :meth:`begin` on.
    """

    def __init__(
        self,
        store: Store,
        options: SourceOptions,
        side_connection: SideConnection,
        stopping: threading.Event,
    ) -> None:
        self._store = store
        self._side_connection = side_connection
        self._stopping = stopping
        self._patience = options.receive_timeout
        self._side_patience = options.heartbeat_interval + options.receive_timeout
        self._feed: MessageFeed | None = None
        self._heard_at = self._confirmed_at = self._checked_at = time.monotonic()

    def begin(self, feed: MessageFeed) -> None:
        """The stream comes by ``feed`` from here on."""
        self._feed = feed
        self._heard_at = self._checked_at = time.monotonic()

    def heard(self) -> None:
        """The stream brought something."""
        self._heard_at = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since the stream brought something."""
        return time.monotonic() - self._heard_at

    def catalog_checked(self) -> None:
        """The side connection reported a catalog snapshot."""
        self._checked_at = time.monotonic()

    def confirm(self, *, reply: bool = False) -> None:
        """Confirm to the server what is durable; ``reply`` asks it for a keepalive.

        :raises StoreRemoved: if a later start wouldn't find it.
        """
        assert self._feed is not None
        self._store.check_reachable()
        self._feed.confirm(self._store.position, reply=reply)
        self._confirmed_at = time.monotonic()

    def answer(self, decoder: StreamDecoder) -> None:
        """Answer the server when it asked or some time has passed; break off what is silent.

        :raises SourceUnavailable: if the stream brought nothing for too long.
        :raises StoreRemoved: if what is to be confirmed is gone.
        """
        now = time.monotonic()
        if now - self._checked_at > self._side_patience:
            self._side_connection.sever()
            self._checked_at = now
        silence = self.silence
        if silence > self._patience:
            raise SourceUnavailable(f"the stream brought nothing for {silence:.0f} s")
        if decoder.reply_wanted or now - self._confirmed_at >= _STATUS_INTERVAL_S:
            decoder.reply_wanted = False
            self.confirm(reply=silence > self._patience / 3)

    def keep_alive(self) -> None:
        """Within one long step of the loop (a giant transaction's pieces, a re-copy's comparison):
        confirm now and then, so that PostgreSQL doesn't end a silent connection.

        :raises StoppedWithin: if we are to stop.
        """
        if self._stopping.is_set():
            raise StoppedWithin
        if time.monotonic() - self._confirmed_at >= _STATUS_WITHIN_S:
            self.confirm()
        self._heard_at = self._checked_at = time.monotonic()
