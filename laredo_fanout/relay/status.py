"""A relay's status and counters in addition to those of every ingest: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from laredo_fanout.relay.path import Hop


@dataclass
class RelayCounters:
    """Counters over all sessions of a relay; only its thread adds to them."""

    #: Notices of the upstream that it is shutting down, one for each table's stream.
    goaways: int = 0
    #: Snapshots that the upstream sent, by table.
    snapshots: dict[str, int] = field(default_factory=dict)

    def count_snapshot(self, table: str) -> None:
        """The upstream sends a snapshot."""
        self.snapshots[table] = self.snapshots.get(table, 0) + 1


@dataclass(frozen=True)
class RelayStatus:
    """The relay's part of /status and /metrics."""

    #: This server, then those between it and PostgreSQL, as they were last asked for.
    path: tuple[Hop, ...]
    #: Notices of the upstream that it is shutting down.
    goaways: int
    #: Snapshots that the upstream sent, by table.
    snapshots: Mapping[str, int]
