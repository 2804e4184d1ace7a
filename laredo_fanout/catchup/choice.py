"""How many segments there should be now: by what there is room for and, unless somebody asked for
a split, by what binds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog

from laredo_fanout.catchup import room
from laredo_fanout.catchup.binding import Binding, Clock
from laredo_fanout.catchup.decision import decide

if TYPE_CHECKING:
    from laredo_fanout.catchup.options import CatchupOptions
    from laredo_fanout.postgres.connections import Connection

_log = structlog.get_logger()

CHECKS = 3
"""A backlog must be above the threshold so many times in a row; meanwhile it is measured."""


class Choice(NamedTuple):
    """So many segments; with fewer than two the backlog isn't split, for the reason ``why``."""

    segments: int
    why: str


class Chooser:
    """Measures and chooses in the side connection's thread; ``choice`` is read by the ingest's."""

    def __init__(self, options: CatchupOptions) -> None:
        self._options = options
        self._binding: Binding | None = None
        self.most: int | None = None
        """How many segments pay; None: as many as there is room for."""
        self.clock: Clock | None = None
        """The ingest's, noted by its thread."""
        self.choice: Choice | None = None
        """None: not known yet."""

    def forget(self) -> None:
        """The backlog is over, or comes from another source."""
        self._binding = self.choice = self.clock = None

    def by_room(self, connection: Connection, slot: str, behind: int) -> None:
        """Somebody asked for a split: as many segments as there is room for.

        :raises psycopg.Error: if the server can't be asked.
        """
        self.most = None
        self.choice = self.fitting(connection, slot, behind)

    def by_binding(self, connection: Connection, slot: str, behind: int, checks: int) -> None:
        """Measure; choose after the last of :data:`CHECKS`. ``checks`` counts them from 1.

        :raises psycopg.Error: if the server can't be asked.
        """
        clock = self.clock
        if clock is None:
            return
        if self._binding is None:
            self._binding = Binding(slot, clock, self._options.proc)
        self._binding.sample(connection)
        measured = self._binding.measured(clock)
        if checks < CHECKS or measured is None:
            return
        self.most = None
        fitting = self.fitting(connection, slot, behind)
        if fitting.segments < 2:
            self.choice = fitting
            return
        decision = decide(measured, fitting.segments)
        if decision.segments > 1:
            _log.info("a backlog is worth splitting", segments=decision.segments, why=decision.why)
        self.most = decision.segments
        self.choice = Choice(decision.segments, decision.why)

    def fitting(self, connection: Connection, slot: str, behind: int) -> Choice:
        """As many as there is room for, and pay by what was chosen last.

        :raises psycopg.Error: if the server can't be asked.
        """
        free, options = room.free(connection, slot), self._options
        number = min(
            options.max_segments,
            free.slots - options.reserve,
            free.walsenders - options.reserve,
            behind // options.min_segment_bytes,
        )
        if self.most is not None:
            number = min(number, self.most)
        return Choice(
            number,
            f"there is room for {max(0, number)} segments of {options.min_segment_bytes} bytes and"
            " more; see catchup { min_segment_bytes, reserve_slots }, max_replication_slots,"
            " max_wal_senders",
        )
