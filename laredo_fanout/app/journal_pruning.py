"""Journal pruning: keeps the journals within their bounds, in the ingest thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from laredo_fanout.app.processes.clients import Clients
from laredo_fanout.config import Config, JournalConfig
from laredo_fanout.store.writer import Store

# Often enough that each step is small.
_INTERVAL = 1.0


@dataclass
class JournalPruning:
    """Prunes the journals to their bounds, between two commits of the ingest thread.

    A journal may be over its bounds by what comes in a second, and by what a
    client that is being sent a snapshot has pinned.
    """

    store: Store
    clients: Clients
    bounds: Mapping[str, JournalConfig]
    pruned: int = 0
    _due: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, config: Config, store: Store, clients: Clients) -> JournalPruning:
        """Make it with the bounds of the tables' targets."""
        return cls(store, clients, _bounds(config))

    def change(self, config: Config) -> None:
        """Prune to other bounds from now on; from any thread."""
        self.bounds = _bounds(config)

    def after_commit(self) -> None:
        """Prune if it is due.

        :raises StoreError: if the store can't be written.
        """
        if time.monotonic() < self._due:
            return
        for record in list(self.store.tables.values()):
            bounds = self.bounds.get(record.qualified)
            if bounds is not None and record.shown:
                self.pruned += self.store.prune(
                    record.id,
                    bounds.max_entries,
                    bounds.max_age,
                    time.time(),
                    self.clients.pinned(record.id),
                )
        self._due = time.monotonic() + _INTERVAL


def _bounds(config: Config) -> Mapping[str, JournalConfig]:
    return {table.name: table.target.journal for table in config.tables}
