"""Standbys' reports to the holder, and the position that it may confirm by them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from laredo_fanout.slot import rules
from laredo_fanout.slot.rules import Reported
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.store.writer import Store

_FRESH_S = 5.0
"""Time for which a report counts."""

_log = structlog.get_logger()


class StandbyOptions(NamedTuple):
    """The rules of confirmation and takeover, as configured."""

    #: Number of standbys that must have a position before it is confirmed.
    synchronous: int
    #: Seconds to wait for them.
    patience: float
    #: True if the holder goes on waiting after that.
    waits: bool
    #: Seconds for which a standby must see the slot free before it takes over; 0: it never does.
    takeover_after: float


class _Report(NamedTuple):
    tables: Mapping[str, tuple[int, int]]
    at: float


class StandbyReports:
    """The newest report of each standby. ``take`` and ``shown`` may be called in any thread."""

    def __init__(self, options: StandbyOptions, store: Store) -> None:
        self.options = options
        self._store = store
        self._reports: dict[str, _Report] = {}
        self._lock = threading.Lock()
        self._complete_at = time.monotonic()
        self.alone = False
        """True if positions are confirmed that too few standbys have."""

    def take(self, server_id: str, tables: Mapping[str, tuple[int, int]]) -> None:
        """Take a standby's report of what it has durably: each table's incarnation and position."""
        with self._lock:
            self._reports[server_id] = _Report(tables, time.monotonic())

    def begin(self) -> None:
        """Begin a session with the slot: patience counts from here."""
        self._complete_at = time.monotonic()

    def confirmable(self) -> int:
        """Position that may be confirmed; 0: none yet."""
        options, own = self.options, self._store.position
        reported = list(self._fresh().values())
        now = time.monotonic()
        if sum(each.complete for each in reported) >= options.synchronous:
            self._complete_at = now
        alone = not options.waits and now - self._complete_at > options.patience
        if alone != self.alone:
            self.alone = alone
            if alone:
                _log.error(
                    "slot confirmed without a standby",
                    patience_s=options.patience,
                    synchronous=options.synchronous,
                )
            else:
                _log.info("standbys complete")
        synchronous = options.synchronous
        return rules.confirmable(own, reported, synchronous=synchronous, alone=alone) or 0

    def _fresh(self) -> dict[str, Reported]:
        """The standbys whose reports still count, by server id."""
        since = time.monotonic() - _FRESH_S
        with self._lock:
            self._reports = {name: each for name, each in self._reports.items() if each.at > since}
            reports = dict(self._reports)
        live = {each.qualified: each.id for each in self._store.tables.values() if each.live}
        return {name: self._judged(each, live) for name, each in reports.items()}

    def _judged(self, report: _Report, live: Mapping[str, int]) -> Reported:
        had = [
            report.tables[name][1]
            for name, incarnation in live.items()
            if name in report.tables and report.tables[name][0] == incarnation
        ]
        position = min(had, default=self._store.position)
        return Reported(position, complete=len(had) == len(live))

    def most_advanced(self) -> list[str]:
        """The complete standbys, the one with the highest position first."""
        found = [(each.position, name) for name, each in self._fresh().items() if each.complete]
        return [name for _, name in sorted(found, reverse=True)]

    @property
    def complete(self) -> int:
        """Number of standbys that have every table, and whose report still counts."""
        return len(self.most_advanced())

    def shown(self) -> list[dict[str, Any]]:
        """The connected standbys, as JSON values."""
        return [
            {
                "server_id": name,
                "position": position_.text(each.position),
                "complete": each.complete,
            }
            for name, each in sorted(self._fresh().items())
        ]
