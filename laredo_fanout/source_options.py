"""What a source and its tables are told; the server's configuration maps onto these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class OnSlotLost(StrEnum):
    """What to do when changes between the stored position and the slot are gone."""

    RECREATE = "recreate"
    """Make a new slot and copy every table anew."""
    FAIL = "fail"
    """Stop, and say so."""


@dataclass(frozen=True)
class PublicationOptions:
    """The publication; with ``create`` it is made, and tables are added to it, when missing."""

    name: str = "laredo"
    create: bool = True
    append_only_name: str = ""
    """The one for append-only tables; by default the name with ``_append`` behind it."""
    append_only: bool = False
    """Whether it is that one: it publishes inserts and truncates alone."""

    @property
    def appends(self) -> PublicationOptions:
        """The publication of the tables that are configured as append-only."""
        # An identifier has 63 bytes at most; PostgreSQL would cut the end off.
        name = self.append_only_name or f"{self.name[:56]}_append"
        return replace(self, name=name, append_only=True)


@dataclass(frozen=True)
class CopyOptions:
    """How tables are copied: at most ``workers`` connections read ranges of about ``range_bytes``
    of one table.

    Over all tables there are at most ``max_connections`` of them (None: as many as ``workers``),
    they begin ranges no faster than ``max_rows_per_second`` allows (None: no limit), and about
    ``max_memory`` bytes of rows are read and not yet written.
    """

    workers: int = 2
    range_bytes: int = 64 << 20
    max_rows_per_second: int | None = None
    max_memory: int = 64 << 20
    max_connections: int | None = None

    @property
    def connections(self) -> int:
        """How many there are at most."""
        return self.workers if self.max_connections is None else self.max_connections

    @property
    def range_rows(self) -> int | None:
        """A range takes no more than about a second of what the throttle allows: it is read at
        full speed, so that its lock and its snapshot don't live long, and then there is a pause."""
        return self.max_rows_per_second


@dataclass(frozen=True)
class CommitIntervals:
    """The longest times between two commits of the store, in seconds: under load, and where
    nobody notices, as the stream is far behind or rows are only copied."""

    busy: float = 1.0
    backlog: float = 4.0


@dataclass(frozen=True)
class TableOptions:
    """One table to replicate."""

    schema: str
    name: str
    append_only: bool = False
    """Rows are only ever added: it needs no key."""

    @property
    def qualified(self) -> str:
        """``schema.name``, as the configuration, the wire and messages write it."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class SourceOptions:
    """One PostgreSQL database, reached by ``connection`` (a libpq string or URI).

    Times are in seconds. ``heartbeat_interval`` is how often a message is written
    to the WAL, so that an idle slot advances, and how often the catalog is looked
    at. The stream is taken for dead when nothing came for ``receive_timeout``.
    """

    connection: str
    slot_name: str = "laredo"
    slot_name_given: bool = True
    """Whether an operator chose it; else another one is taken where it is another database's."""
    publication: PublicationOptions = field(default_factory=PublicationOptions)
    copy: CopyOptions = field(default_factory=CopyOptions)
    heartbeat_interval: float = 10.0
    on_slot_lost: OnSlotLost = OnSlotLost.RECREATE
    connect_timeout: float = 10.0
    receive_timeout: float = 60.0
    commits: CommitIntervals = field(default_factory=CommitIntervals)
    run: str = ""
    """Random, part of every connection's name: of which session of which server it is."""
