"""Sources of a session's messages other than the slot's own stream, and changes of configuration.

A split backlog is such a source. It has the messages of the slot's stream in the same order, so
decoding, tables, copies, catalog checks and barriers work in the same way with either.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from laredo_fanout.batch.write_batch import WriteBatch
    from laredo_fanout.decode.frames import Get
    from laredo_fanout.postgres.connections import Connection, SourceError
    from laredo_fanout.source_options import SourceTableOptions


class MessageFeed(Protocol):
    """Source of a session's messages: the part of a replication connection that it needs."""

    @property
    def local(self) -> bool:
        """True if it doesn't pay to wait until more messages have arrived."""

    @property
    def get(self) -> Get:
        """Function that returns the next message; it may be another one after each read."""

    def fileno(self) -> int:
        """Descriptor that is readable when messages have arrived."""

    def read_available(self) -> int:
        """Read the messages that have arrived; returns the bytes, 0 only if there were none.

        :raises SourceError: if the feed was cut.
        """

    def read_ahead(self) -> int:
        """Read more messages, if that helps, while earlier ones are written; returns the bytes.

        :raises SourceError: if the feed was cut.
        """

    def confirm(self, position: int, *, reply: bool = False) -> None:
        """Confirm that everything up to ``position`` is durable here."""

    def end(self) -> SourceError:
        """The error of a feed that ended (``get`` returned -1)."""

    def close(self) -> None:
        """Close connections and files."""


class ChangeSource(Protocol):
    """Decision whether the next session takes its messages from the slot's own stream."""

    @property
    def interval(self) -> float:
        """Seconds between two calls of :meth:`measure`."""

    def measure(self, connection: Connection) -> None:
        """Measure the server's backlog, in the side connection's thread.

        :raises psycopg.Error: if PostgreSQL can't be queried.
        """

    def open(self, connection: Connection, batch: WriteBatch) -> MessageFeed | None:
        """Open the feed of the session that begins now; None for the slot's own stream.

        Changes of the store are written to ``batch``, which isn't open now.

        :raises SourceError: if the slot or PostgreSQL can't be used.
        :raises psycopg.Error: if PostgreSQL can't be queried.
        """

    def is_over(self, level: int) -> bool:
        """True if this session must end for one with another source of messages.

        ``level`` is the position up to which nothing is missing in the store.
        """


Options = TypeVar("Options")
"""The options of the source: PostgreSQL's or those of a relay."""


@dataclass(frozen=True)
class SourceChange(Generic[Options]):
    """Tables and options for the next session."""

    options: Options
    tables: tuple[SourceTableOptions, ...]


class PendingSourceChange(Generic[Options]):
    """A change that no session has taken yet; any thread may call its methods."""

    def __init__(self) -> None:
        self._change: SourceChange[Options] | None = None
        self._asked: list[Future[None]] = []
        self._lock = threading.Lock()

    @property
    def waits(self) -> bool:
        """True if a change is pending."""
        return self._change is not None

    def put(self, options: Options, tables: Sequence[SourceTableOptions]) -> Future[None]:
        """Replace the pending change; the future is done once this or a later change is in use."""
        asked = Future[None]()
        with self._lock:
            self._change = SourceChange(options, tuple(tables))
            self._asked.append(asked)
        return asked

    def take(self) -> SourceChange[Options] | None:
        """Take the pending change, or None, for the session that begins now."""
        with self._lock:
            change, self._change = self._change, None
        return change

    def followed(self) -> None:
        """Complete the futures of the changes that the session, which has connected, uses."""
        with self._lock:
            asked, self._asked = ([], self._asked) if self.waits else (self._asked, [])
        for each in asked:
            if each.set_running_or_notify_cancel():
                each.set_result(None)
