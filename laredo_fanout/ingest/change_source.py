"""A source of changes for a session, and changes of its tables and options between sessions.

backlog.

It gives the same messages in the same order, so decoding, tables, copies, catalog checks and
barriers know nothing of it: each session takes either the slot's stream or such a source.
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
        """True if waiting for more messages at once only costs time."""

    @property
    def get(self) -> Get:
        """Function that returns the next message of a read; get it again after each read."""

    def fileno(self) -> int:
        """Readable when there is something."""

    def read_available(self) -> int:
        """Bring what has come; how many bytes, 0 only where there was no message at all.

        :raises SourceError: if it was cut.
        """

    def read_ahead(self) -> int:
        """Bring more while what was brought before is written, if that helps; how many bytes.

        :raises SourceError: if it was cut.
        """

    def confirm(self, position: int, *, reply: bool = False) -> None:
        """Everything up to ``position`` is durable here."""

    def end(self) -> SourceError:
        """The error behind a feed that ended (``get`` gave -1)."""

    def close(self) -> None:
        """Let everything go."""


class ChangeSource(Protocol):
    """Decides whether the next session takes its messages from the slot's own stream."""

    @property
    def interval(self) -> float:
        """Seconds between two calls of :meth:`measure`."""

    def measure(self, connection: Connection) -> None:
        """Measure how far the server is, in the side connection's thread.

        :raises psycopg.Error: if it can't be asked.
        """

    def open(self, connection: Connection, batch: WriteBatch) -> MessageFeed | None:
        """The feed of the session that begins now; None: the slot's own stream.

        What it keeps in the store it writes into ``batch``, which isn't open now.

        :raises SourceError: if the server isn't as it must be.
        :raises psycopg.Error: if it can't be asked.
        """

    def is_over(self, level: int) -> bool:
        """True if this session must end, for one with another source of changes.

        ``level`` is the position up to which nothing is missing in the store.
        """


# Other tables, or other options of the source, for the sessions to come.

Options = TypeVar("Options")
"""The options of the source: PostgreSQL's or those of a relay."""


@dataclass(frozen=True)
class SourceChange(Generic[Options]):
    """Tables and options for the next session."""

    options: Options
    tables: tuple[SourceTableOptions, ...]


class PendingSourceChange(Generic[Options]):
    """The change that no session has begun with yet; its methods are called from any thread."""

    def __init__(self) -> None:
        self._change: SourceChange[Options] | None = None
        self._asked: list[Future[None]] = []
        self._lock = threading.Lock()

    @property
    def waits(self) -> bool:
        """True if a change is pending."""
        return self._change is not None

    def put(self, options: Options, tables: Sequence[SourceTableOptions]) -> Future[None]:
        """Ask for this change, in place of any that waits; done when it is followed, or a later."""
        asked = Future[None]()
        with self._lock:
            self._change = SourceChange(options, tuple(tables))
            self._asked.append(asked)
        return asked

    def take(self) -> SourceChange[Options] | None:
        """The change that waits, if there is one: the session that begins now is the first."""
        with self._lock:
            change, self._change = self._change, None
        return change

    def followed(self) -> None:
        """A session has connected: whoever asked for what it follows is answered."""
        with self._lock:
            asked, self._asked = ([], self._asked) if self.waits else (self._asked, [])
        for each in asked:
            if each.set_running_or_notify_cancel():
                each.set_result(None)
