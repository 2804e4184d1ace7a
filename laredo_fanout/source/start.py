"""From nothing, or from the store, to a stream that goes on without a gap.

The order is publication, slot, START_REPLICATION, copy: a publication that is
missing where the stream is decoded fails it up to PostgreSQL 16 and is skipped
in silence by 18.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.errors import SlotInUse, SlotLost
from laredo_fanout.source import attendant, checks, publication, slot, watermark
from laredo_fanout.source.options import OnSlotLost
from laredo_fanout.store.meta import SourceIdentity
from laredo_fanout.store.table import Status
from laredo_model import position as position_
from laredo_model.history import History

if TYPE_CHECKING:
    from laredo_fanout.source.attendant import Look
    from laredo_fanout.source.options import SourceOptions, TableOptions
    from laredo_fanout.source.replication import ReplicationStream
    from laredo_fanout.source.session import Connection
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()

_DATABASE = "SELECT oid::int8 FROM pg_database WHERE datname = current_database()"


def prepare(
    options: SourceOptions,
    tables: Sequence[TableOptions],
    store: Store,
    connection: Connection,
    stream: ReplicationStream,
) -> Look:
    """Make everything ready for ``stream.start`` at the store's position; a first look.

    :raises ServerUnfit: if a setting or the publication is in the way.
    :raises RightsMissing: if the role lacks a right.
    :raises SlotLost: if changes are gone and ``on_slot_lost`` is fail.
    :raises SlotInUse: if somebody else streams from the slot.
    """
    for problem in checks.server_problems(connection):
        raise problem
    published = publication.ensure(connection, options.publication)
    look = attendant.look(connection, options, tables, 0)
    server = stream.identify()
    row = connection.execute(_DATABASE).fetchone()
    history = History(server.system_identifier, server.timeline, row[0] if row else 0)
    known = store.source
    if known is None or store.position == 0:
        _begin_anew(options, store, connection, history, published.identity)
        return look
    switch = stream.switch_from(known.history.timeline, server.timeline)
    found = slot.read(connection, options.slot_name)
    gap = slot.gap(
        slot.Stored(known.history, known.slot, known.publication, store.position),
        history=history,
        switch=switch,
        slot=found,
        slot_name=options.slot_name,
        publication=published.identity,
    )
    if gap is not None:
        _lost(
            options,
            store,
            connection,
            gap=gap,
            history=history,
            switch=switch,
            published=published.identity,
        )
    elif known.history != history:
        _log.warning("failover: the stream goes on", timeline=server.timeline)
        position, time_us = store.position, store.time_us
        with store.transaction() as transaction:
            transaction.set_source(replace(known, history=history))
            transaction.set_position(position, time_us)
    return look


def _begin_anew(
    options: SourceOptions,
    store: Store,
    connection: Connection,
    history: History,
    published: str,
) -> None:
    """A new slot for a store that has no position yet.

    The intention is stored first: a slot that is there although the store has
    an identity without a position is one that a crash left behind.
    """
    found = slot.read(connection, options.slot_name)
    if found is not None:
        if found.active_pid is not None:
            raise SlotInUse(
                f"slot {options.slot_name} is in use by pid {found.active_pid}; stop the other"
                " server, or give this one its own slot_name"
            )
        if store.source is None and options.on_slot_lost is OnSlotLost.FAIL:
            raise SlotLost(
                f"slot {options.slot_name} exists and this store has never seen it: drop it"
                f" (SELECT pg_drop_replication_slot('{options.slot_name}')), choose another"
                " slot_name, or set on_slot_lost = recreate"
            )
    identity = SourceIdentity(history, options.slot_name, published, watermark.new_token())
    with store.transaction() as transaction:
        transaction.set_source(identity)
    slot.drop(connection, options.slot_name)
    start = slot.create(connection, options.slot_name)
    with store.transaction() as transaction:
        transaction.set_position(start, 0)


def _lost(
    options: SourceOptions,
    store: Store,
    connection: Connection,
    *,
    gap: SlotLost,
    history: History,
    switch: int | None,
    published: str,
) -> None:
    """Changes are gone: begin anew if we may.

    What clients were shown stays shown, as it was, until the tables are copied
    anew; but not when positions of the new history mean something else.
    """
    if options.on_slot_lost is OnSlotLost.FAIL:
        raise SlotLost(
            f"{gap}; changes since {position_.text(store.position)} can't be had any more."
            " Set on_slot_lost = recreate to copy every table anew"
        ) from gap
    _log.error("changes are gone; every table is copied anew", reason=str(gap))
    known, position = store.source, store.position
    assert known is not None
    comparable = (
        known.history[::2] == history[::2]
        and known.history.timeline <= history.timeline
        and (known.history.timeline == history.timeline or (switch or 0) >= position)
    )
    with store.transaction() as transaction:
        for record in list(transaction.tables.values()):
            if record.status is Status.LIVE and comparable:
                closed = replace(record, status=Status.CLOSED, closed_at=position)
                transaction.put_table(closed)
            elif record.status is not Status.CLOSED or not comparable:
                transaction.drop_table(record.id)
        transaction.set_source(
            SourceIdentity(history, options.slot_name, published, watermark.new_token())
        )
    if known.slot != options.slot_name:
        _drop_former(connection, known.slot)
    _begin_anew(options, store, connection, history, published)


def _drop_former(connection: Connection, name: str) -> None:
    """The slot that we no longer use would keep WAL for ever."""
    found = slot.read(connection, name)
    if found is not None and found.plugin == "pgoutput" and found.database == found.here:
        slot.drop(connection, name)
