"""Rules of slot ownership: the slot name that a server uses, and the slots that it may drop.

Slot names are unique in the whole cluster, and a slot has only a name, a database and positions.
A slot is ours if the store has its name and database, and its confirmed position is within the
positions that the store has had: only this server advances it, and never beyond the store's
position. If a crash prevented the store from recording a new slot, the message at the beginning of
the slot's stream identifies it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import structlog

from laredo_fanout.errors import SlotForeign
from laredo_fanout.postgres import connections, pgoutput
from laredo_fanout.slot import slot, timeline

if TYPE_CHECKING:
    import threading

    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.slot.slot import Slot
    from laredo_fanout.source_options import SourceOptions
    from laredo_fanout.store.environment import SourceIdentity

_log = structlog.get_logger()

_DATABASE = "SELECT oid::int8 FROM pg_database WHERE datname = current_database()"
_FIRST_BYTES = 256 << 20
"""Bytes of WAL after a slot's start within which the message of its creation must be."""


def with_slot_name(options: SourceOptions, known: SourceIdentity | None) -> SourceOptions:
    """The options with the name of the slot to use.

    If no name is configured, it is the name in the store, or else the default. If a slot of that
    name can't be ours, it is the default with the database's oid.

    :raises SourceError: if PostgreSQL can't be queried.
    """
    if options.slot_name_given:
        return options
    with (
        connections.connect(options, role="check") as connection,
        connections.TimeLimit(connection, options.receive_timeout),
        connections.translated("read the slots"),
    ):
        name = name_for(connection, options.slot_name, known)
    if name != options.slot_name and (known is None or known.slot != name):
        _log.warning(
            "default slot_name taken by another database",
            taken=options.slot_name,
            slot=name,
        )
    return replace(options, slot_name=name)


def name_for(connection: Connection, default: str, known: SourceIdentity | None = None) -> str:
    """The first name whose slot, if there is one, may be ours.

    :raises psycopg.Error: if PostgreSQL can't be queried.
    """
    of_database = f"{default}_{database(connection)}"
    # A relay's store never had a slot.
    known_name = default if known is None else known.slot or default
    names = dict.fromkeys([known_name, default, of_database])
    for name in names:
        found = slot.read(connection, name)
        if found is None or found.is_of_this_database or _is_recorded(known, found):
            return name
    return of_database


def database(connection: Connection) -> int:
    """The oid of the connection's database."""
    row = connection.execute(_DATABASE).fetchone()
    return int(row[0]) if row else 0


class FollowedSource(Protocol):
    """The part of a store that identifies the slot that it has used."""

    @property
    def source(self) -> SourceIdentity | None:
        """Source of the store's changes."""

    @property
    def position(self) -> int:
        """Position up to which the store has the changes."""


def is_used_by(store: FollowedSource, system_identifier: int, found: Slot) -> bool:
    """True if the store has used this slot of this cluster, and no other program moved it."""
    known = store.source
    return (
        known is not None
        and known.history.system_identifier == system_identifier
        and _is_recorded(known, found)
        and found.confirmed is not None
        and known.since <= found.confirmed <= store.position
    )


def is_made_for(
    known: SourceIdentity,
    found: Slot,
    options: SourceOptions,
    connection: Connection,
    stopping: threading.Event,
) -> bool:
    """True if the slot was created for a store that a crash kept from recording it.

    :raises SourceUnavailable: if the slot's stream was cut, or the server is ``stopping``.
    """
    if (
        known.since
        or not found.is_of_this_database
        or not _is_recorded(known, found)
        or found.confirmed is None
        or found.wal_position is None
        or found.wal_status == "lost"
    ):
        return False
    content = pgoutput.made_payload(found.name, known.token, found.confirmed)
    until = min(found.wal_position - 1, found.confirmed + _FIRST_BYTES)
    return timeline.has_message(content, until, options, connection, stopping)


def foreign(found: Slot) -> SlotForeign:
    """The error for a slot that isn't provably ours, and so isn't dropped."""
    return SlotForeign(
        f"{found} exists, but this store has never used it, or another program has advanced it, so"
        " it isn't dropped. If nothing else uses it, run SELECT"
        f" pg_drop_replication_slot('{found.name}'); otherwise give this server another slot_name"
    )


def _is_recorded(known: SourceIdentity | None, found: Slot) -> bool:
    return (
        known is not None
        and found.plugin == "pgoutput"
        and found.name == known.slot
        and found.database_oid == known.history.database_oid
    )
