"""Errors of the fan-out server.

FanoutError                the server itself: its port, its state directory, its processes
SourceError                (postgres/connections.py, which has those of connection, slot and stream)
├── SourceUnfit            wal_level, version, free slots or senders
├── SlotLost
│   └── SlotForeign        a slot with the configured name isn't provably this server's
├── SpoolFull              no room for a giant transaction
└── TableRefused           one table can't be replicated; the others go on
    ├── TableMissing       no such table
    ├── TableUnfit         not a plain table, unlogged, partitioned, ...
    ├── IdentityMissing    no usable replica identity; names the statement that cures it
    ├── TableNotPublished  not in the publication, and the role may not add it
    ├── TableLocked        another session's lock hides a part of its definition
    ├── SelectDenied       the role may not read it
    ├── CopyFailed         reading its rows failed
    └── RecopyRefused      it can't be copied again at the moment
"""

from __future__ import annotations

from laredo_fanout.postgres.connections import SlotLost, SourceError


class FanoutError(Exception):
    """Root of the fan-out server's errors."""


class SourceUnfit(SourceError):
    """A setting of the server keeps logical replication from working."""


class SlotForeign(SlotLost):
    """A slot with the configured name isn't provably this server's: it isn't touched.

    Retried with growing pauses, until the slot is dropped or another name is configured.
    """


class SpoolFull(SourceError):
    """The disk has no room to spool a giant transaction."""


class TableRefused(SourceError):
    """One table can't be replicated as things are; the others go on.

    ``table`` is its name (``public.users``), ``cure`` a statement or a sentence.
    """

    def __init__(self, table: str, problem: str, cure: str) -> None:
        super().__init__(f"table {table}: {problem}; {cure}")
        self.table = table
        self.problem = problem
        self.cure = cure


class TableMissing(TableRefused):
    """The database has no table of this name."""


class TableUnfit(TableRefused):
    """The table is of a kind that has no logical stream, or none that is supported."""


class IdentityMissing(TableRefused):
    """The table has no usable replica identity: published, its UPDATE and DELETE would fail."""


class TableNotPublished(TableRefused):
    """The table isn't (fully) in the publication, which the server may not change."""


class TableLocked(TableRefused):
    """Another session's lock hides a part of the table's definition; its incarnation goes on."""


class SelectDenied(TableRefused):
    """The role may not read all of the table's rows."""


class CopyFailed(TableRefused):
    """Reading the table's rows for a copy failed."""


class RecopyRefused(TableRefused):
    """The table can't be copied again at the moment."""
