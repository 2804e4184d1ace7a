"""Takes over the upstream's history: what becomes of this store's rows when that changes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.client.events import Handshake
from laredo_fanout.relay.errors import UpstreamTooOld
from laredo_fanout.store.meta import SourceIdentity
from laredo_fanout.store.table import Status
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()


def of_upstream(handshake: Handshake, server: str, known: SourceIdentity | None) -> SourceIdentity:
    """The identity that this store has while it follows the history of the handshake.

    :raises UpstreamTooOld: if the handshake doesn't name the history's origin.
    """
    origin, history = handshake.origin, handshake.history
    if origin is None or history is None:
        raise UpstreamTooOld(server)
    return SourceIdentity(
        history=history,
        slot="",
        publication="",
        ancestors=origin.ancestors,
        because=origin.because,
        since=origin.since,
        former_reach=0 if known is None else known.former_reach,
        former_sequences=0 if known is None else known.former_sequences,
    )


def adopt(store: Store, now: SourceIdentity) -> None:
    """Have the store follow this history from now on, durably.

    What it has of a table stays where the new history holds the table's position. Else nobody may
    resume within it: the table is forgotten, and copied again.
    """
    known, position, time_us = store.source, store.position, store.time_us
    reach = 0
    with store.transaction() as transaction:
        for record in list(transaction.tables.values()):
            at = record.position or position
            if record.live and known is not None and now.lineage.holds(known.history, at):
                transaction.set_table_position(record.id, at)
                continue
            if record.status is not Status.COPYING:
                reach = max(reach, at)
            transaction.drop_table(record.id)
        if reach:
            # Tables begin again with it, and their sequences with the time in microseconds.
            now = replace(
                now,
                former_reach=max(reach, now.former_reach),
                former_sequences=time.time_ns() // 1000,
            )
        transaction.set_source(now)
        if not reach and position:
            transaction.set_position(position, time_us)
    if known is not None and known.history != now.history:
        _log.warning(
            "upstream history changed",
            history=str(now.history),
            before=str(known.history),
            position=position_.text(position),
            reason=now.because or "it goes on from the one before",
        )
