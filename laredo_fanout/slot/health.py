"""Warnings about the slot's health, before PostgreSQL invalidates it, or its WAL fills the disk.

PostgreSQL invalidates a slot for which it would have to keep more WAL than
max_slot_wal_keep_size, or (18) that was unused for idle_replication_slot_timeout.
Without these limits the WAL of a slot that isn't read fills the disk.
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
"""Share of max_slot_wal_keep_size below which a slot is in danger."""
IDLE_SHARE = 0.5
"""Share of idle_replication_slot_timeout above which an unused slot is in danger."""
LOST = frozenset({"lost", "dropped"})
"""Kinds of warnings about a slot that must be created again."""
OLD_TRANSACTION_S = 3600.0
XMIN_SHARE = 0.5
"""Share of autovacuum_freeze_max_age, above which PostgreSQL vacuums tables in vain."""


class SlotWarning(NamedTuple):
    """A danger to the slot."""

    #: A word, for the metric's label.
    kind: str
    #: The danger, a sentence.
    text: str
    #: The cure.
    cure: str

    def __str__(self) -> str:
        return f"{self.text}; {self.cure}"


def warnings(slot: Slot) -> list[SlotWarning]:
    """The warnings about the slot; none if it is healthy."""
    if slot.wal_status == "lost":
        # A lost slot keeps no WAL, so no other warning applies.
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
            f"slot {slot.name} will be invalidated after {size(slot.safe_wal_size or 0)} more WAL,"
            f" of {size(slot.keep_bytes)} that it may keep",
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
    """The slot's last known state, and the warnings that were logged."""

    def __init__(self) -> None:
        self.slot: Slot | None = None
        self.warnings: tuple[SlotWarning, ...] = ()
        self.seen_at: float | None = None
        """Unix time of ``slot``."""
        self._name = ""
        self._logged: set[str] = set()
        """Kinds of warnings that were logged, and whose end wasn't logged yet."""

    def unknown(self) -> None:
        """Forget the state, because PostgreSQL can't be queried."""
        self.slot, self.warnings = None, ()

    def update(self, slot: Slot | None) -> None:
        """Set the state (None if there is no such slot), and log new warnings."""
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
