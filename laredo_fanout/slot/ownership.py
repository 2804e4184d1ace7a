"""Rules of slot ownership: which slot name a server uses, and which slot it may drop.

Names of slots are the whole cluster's, and a slot carries nothing but its name, its database and
its positions. Ours is the one whose name and database the store has, and whose confirmed position
is within what the store knows: only we move it, and only to where the store is. One that
was made for the store just before it died is known by the message that its stream begins with.
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
"""Bytes of WAL after a slot's beginning, within which the message written with it is."""


def with_slot_name(options: SourceOptions, known: SourceIdentity | None) -> SourceOptions:
    """The options with the name of the slot that is to be used.

    Where none is configured it is the one that the store has used, or else the default, or else
    the default with the database's oid, if a slot of that name can't be ours.

    :raises SourceError: if PostgreSQL can't be asked.
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
    """The first name that isn't certainly another server's.

    :raises psycopg.Error: if PostgreSQL can't be asked.
    """
    of_database = f"{default}_{database(connection)}"
    # The store of a relay has had no slot.
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
    """The part of a store that shows which slot it has used."""

    @property
    def source(self) -> SourceIdentity | None:
        """Source of its changes."""

    @property
    def position(self) -> int:
        """Position up to which it has them."""


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
    """True if the slot was made for a store that died before it began with it.

    :raises SourceUnavailable: if the slot's stream was cut, or we are ``stopping``.
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
    """The error that leaves a slot untouched because it isn't provably ours."""
    return SlotForeign(
        f"{found} exists and this store has never used it, or another program has moved it: it"
        f" isn't touched. If it isn't needed: SELECT pg_drop_replication_slot('{found.name}');"
        " otherwise give this server another slot_name"
    )


def _is_recorded(known: SourceIdentity | None, found: Slot) -> bool:
    return (
        known is not None
        and found.plugin == "pgoutput"
        and found.name == known.slot
        and found.database_oid == known.history.database_oid
    )
