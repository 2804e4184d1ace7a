"""The options of a source and its tables, made from the server's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum


class OnSlotLost(StrEnum):
    """The policy for changes that are gone between the stored position and the slot."""

    RECREATE = "recreate"
    """Make a new slot and copy every table again."""
    FAIL = "fail"
    """Stop, with an error."""


@dataclass(frozen=True)
class PublicationOptions:
    """The slot's publication; with ``create`` it is made, and missing tables are added to it."""

    name: str = "laredo"
    create: bool = True
    append_only_name: str = ""
    """Name of the append-only tables' publication; by default ``name`` followed by ``_append``."""
    append_only: bool = False
    """True for the append-only tables' publication: it publishes INSERT and TRUNCATE alone."""

    @property
    def appends(self) -> PublicationOptions:
        """The publication of the tables that are configured as append-only."""
        # An identifier has 63 bytes at most; PostgreSQL would cut the end off.
        begun = self.name.encode()[:56].decode(errors="ignore")
        name = self.append_only_name or f"{begun}_append"
        return replace(self, name=name, append_only=True)


@dataclass(frozen=True)
class CopyOptions:
    """Limits of copies."""

    #: The most connections that copy one table.
    workers: int = 2
    #: About the size of a key range.
    range_bytes: int = 64 << 20
    #: Most rows a second, over all tables; None: no limit. A range has about a second's share: it
    #: is read at full speed, so that its lock and its snapshot are held briefly; a pause follows.
    max_rows_per_second: int | None = None
    #: About the most bytes of rows that are read and not yet written.
    max_memory: int = 64 << 20
    #: The most connections over all tables; None: as many as ``workers``.
    max_connections: int | None = None

    @property
    def connections(self) -> int:
        """The most connections over all tables."""
        return self.workers if self.max_connections is None else self.max_connections


@dataclass(frozen=True)
class CommitIntervals:
    """The longest times between two commits of the store, in seconds."""

    #: Under load.
    busy: float = 1.0
    #: While the stream is far behind, or rows are only copied: no client waits for a commit then.
    backlog: float = 4.0


@dataclass(frozen=True)
class SourceTableOptions:
    """One table to replicate."""

    schema: str
    name: str
    append_only: bool = False
    """True if rows are only ever inserted, so that the table needs no key."""
    by_pattern: bool = field(default=False, compare=False)
    """True if a pattern matched it, so that ``tables`` doesn't list it."""

    @property
    def qualified(self) -> str:
        """``schema.name``, as the configuration, the wire and messages write it."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class SourceOptions:
    """A PostgreSQL database, and how it is followed. Times are in seconds."""

    #: A libpq string or URI.
    connection: str
    slot_name: str = "laredo"
    slot_name_given: bool = True
    """True if an operator chose the name. Otherwise another name is used if a slot of another
    database has it."""
    publication: PublicationOptions = field(default_factory=PublicationOptions)
    copy: CopyOptions = field(default_factory=CopyOptions)
    #: Interval of the catalog checks, whose messages in the WAL advance an idle database's slot.
    heartbeat_interval: float = 10.0
    on_slot_lost: OnSlotLost = OnSlotLost.RECREATE
    connect_timeout: float = 10.0
    #: Silence of the stream after which its connection counts as lost.
    receive_timeout: float = 60.0
    commits: CommitIntervals = field(default_factory=CommitIntervals)
    run: str = ""
    """The random id of this server's session, part of every connection's name."""
