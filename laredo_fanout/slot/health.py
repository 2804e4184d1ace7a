"""Warnings about the slot's health: how near it is to being invalidated, or to filling the disk.

PostgreSQL invalidates a slot for which it would have to keep more WAL than
max_slot_wal_keep_size, or (18) that is unused for idle_replication_slot_timeout; and
without such limits the WAL that it keeps fills the disk.
https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import structlog

from laredo_service.figures import size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from laredo_fanout.slot.slot import Slot

_log = structlog.get_logger()

SAFE_SHARE = 0.25
"""The part of max_slot_wal_keep_size: with less left the slot is in danger."""
IDLE_SHARE = 0.5
"""Of idle_replication_slot_timeout."""
LOST = frozenset({"lost", "dropped"})
"""Kinds that a slot doesn't recover from: it must be made again."""
OLD_TRANSACTION_S = 3600.0
XMIN_SHARE = 0.5
"""Of autovacuum_freeze_max_age: from there on PostgreSQL vacuums tables for nothing."""


class SlotWarning(NamedTuple):
    """A danger to the slot."""

    #: A word, for the metric's label.
    kind: str
    #: A sentence.
    text: str
    #: What to do.
    cure: str

    def __str__(self) -> str:
        return f"{self.text}; {self.cure}"


def warnings(slot: Slot) -> list[SlotWarning]:
    """The warnings about the slot as it is now; none if it is well."""
    if slot.wal_status == "lost":
        # It keeps nothing any more, and nothing more can become of it.
        return list(_wal(slot))
    return [*_wal(slot), *_idle(slot), *_transactions(slot)]


def _wal(slot: Slot) -> Iterator[SlotWarning]:
    retained = f"{size(slot.retained or 0)} of WAL"
    if slot.wal_status == "lost":
        yield SlotWarning(
            "lost",
            f"slot {slot.name} was invalidated ({slot.invalidated or 'wal_removed'})",
            "on_slot_lost decides: with recreate every table is copied again",
        )
    elif slot.wal_status == "unreserved":
        yield SlotWarning(
            "unreserved",
            f"slot {slot.name} keeps {retained}, more than max_slot_wal_keep_size: the next"
            " checkpoint may invalidate it",
            "raise max_slot_wal_keep_size now (no restart is needed), and find out why the slot"
            " lags",
        )
    elif slot.keep_bytes and (slot.safe_wal_size or 0) < SAFE_SHARE * slot.keep_bytes:
        yield SlotWarning(
            "safe_wal_size",
            f"slot {slot.name} will be invalidated after {size(slot.safe_wal_size or 0)}"
            f" more of WAL, of {size(slot.keep_bytes)} that it may keep",
            "raise max_slot_wal_keep_size (no restart is needed), or find out why the slot lags",
        )
    elif slot.wal_status == "extended":
        yield SlotWarning(
            "extended",
            f"slot {slot.name} keeps {retained}, more than max_wal_size",
            "watch the disk of the database, and find out why the slot lags",
        )


def _idle(slot: Slot) -> Iterator[SlotWarning]:
    timeout, idle = slot.idle_timeout_s, slot.idle_s
    if timeout is not None and idle is not None and idle > IDLE_SHARE * timeout:
        yield SlotWarning(
            "idle",
            f"slot {slot.name} hasn't been streamed from for {idle:,.0f} s; after {timeout:,} s"
            " it is invalidated (idle_replication_slot_timeout)",
            "start the server, or raise idle_replication_slot_timeout",
        )


def _transactions(slot: Slot) -> Iterator[SlotWarning]:
    oldest = slot.oldest
    if oldest is not None and oldest.age_s is not None and oldest.age_s > OLD_TRANSACTION_S:
        holder = (
            "a prepared transaction" if oldest.pid is None else f"PostgreSQL process {oldest.pid}"
        )
        cure = "end it"
        if oldest.pid is not None:
            cure += f" (SELECT pg_terminate_backend({oldest.pid});)"
        yield SlotWarning(
            "old_transaction",
            f"{holder} has had a transaction open for {oldest.age_s:,.0f} s, and slot {slot.name}"
            " keeps all WAL since its start",
            cure,
        )
    if slot.xmin_age and slot.freeze_age and slot.xmin_age > XMIN_SHARE * slot.freeze_age:
        yield SlotWarning(
            "xmin",
            f"slot {slot.name} keeps catalog rows of {slot.xmin_age:,} transactions from VACUUM",
            "find out why the slot lags",
        )


def _gone(name: str) -> SlotWarning:
    return SlotWarning(
        "dropped",
        f"slot {name} doesn't exist" if name else "the slot doesn't exist",
        "on_slot_lost decides: with recreate every table is copied again",
    )


class SlotWatch:
    """The slot as PostgreSQL showed it last, and the warnings that were logged."""

    def __init__(self) -> None:
        self.slot: Slot | None = None
        self.warnings: tuple[SlotWarning, ...] = ()
        self.seen_at: float | None = None
        """Unix time."""
        self._name = ""
        self._logged: set[str] = set()
        """Kinds of warnings that were logged, and whose end wasn't logged yet."""

    def unknown(self) -> None:
        """PostgreSQL can't be asked: what the slot keeps by now isn't known."""
        self.slot, self.warnings = None, ()

    def update(self, slot: Slot | None) -> None:
        """Take what PostgreSQL shows of the slot (None: there is none); new warnings are logged."""
        self.slot, self.seen_at = slot, time.time()
        self.warnings = (_gone(self._name),) if slot is None else tuple(warnings(slot))
        if slot is not None:
            self._name = slot.name
        kinds = {warning.kind for warning in self.warnings}
        for warning in self.warnings:
            if warning.kind not in self._logged:
                event = "slot lost" if warning.kind in LOST else "slot in danger"
                _log.warning(event, kind=warning.kind, what=str(warning))
        if kinds & LOST:
            # The warnings about a lost slot clear when a new slot is healthy.
            self._logged |= kinds
            return
        for kind in sorted(self._logged - kinds):
            _log.info("slot recovered", kind=kind)
        self._logged = kinds
