"""The time for which a standby has seen its slot without a holder."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg

from laredo_fanout.postgres import connections
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.slot import rules, slot
from laredo_model import position as position_

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laredo_fanout.source_options import SourceOptions, SourceTableOptions
    from laredo_fanout.store.writer import Store


class Vacancy:
    """Looks at the slot while no holder answers; used by one thread at a time.

    ``candidate`` may be read in any thread: True while this standby would take over.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since: float | None = None
        self.refusal: str | None = None
        """Reason why this standby doesn't take over by itself; None: there is none."""

    @property
    def candidate(self) -> bool:
        """True if the slot was free at the last look, and this standby can go on from there."""
        return self._since is not None

    def end(self) -> None:
        """A holder answers, or a takeover has begun: the next look is the first."""
        self._since = self.refusal = None

    def look(self, options: SourceOptions, tables: Sequence[SourceTableOptions]) -> float | None:
        """Ask PostgreSQL; seconds since the first of the looks in a row that saw the slot free.

        None: it isn't free, or this standby can't go on from it; ``refusal`` has the reason.
        """
        began = time.monotonic()
        self.refusal = self._refusal(options, tables)
        if self.refusal is not None:
            self._since = None
            return None
        if self._since is None:
            self._since = began
        return began - self._since

    def _refusal(self, options: SourceOptions, tables: Sequence[SourceTableOptions]) -> str | None:
        store = self._store
        own = store.position
        live = {
            each.qualified: max(each.position, own) for each in store.tables.values() if each.live
        }
        missing = sorted({each.qualified for each in tables} - live.keys())
        if store.source is None or not store.source.slot or missing:
            return f"it has not received {', '.join(missing) or 'the slot'} from the holder"
        options = replace(options, slot_name=store.source.slot)
        try:
            with (
                connections.connect(options, role="slot") as connection,
                connections.TimeLimit(connection, options.connect_timeout),
            ):
                found = slot.read(connection, options.slot_name)
        except (SourceError, psycopg.Error) as failed:
            return f"PostgreSQL can't be asked about the slot: {' '.join(str(failed).split())}"
        if found is None or found.confirmed is None or found.wal_status == "lost":
            return f"slot {options.slot_name} doesn't exist, or was invalidated"
        if found.active_pid is not None:
            return f"slot {options.slot_name} is still read (pid {found.active_pid})"
        late = rules.behind(live, found.confirmed)
        if late:
            return (
                f"slot {options.slot_name} is confirmed up to"
                f" {position_.text(found.confirmed)}, beyond what it has of {', '.join(late)}"
            )
        return None
