"""The ingest thread: runs the ingest, and prunes the journals after its commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import structlog

from laredo_fanout.app import options
from laredo_fanout.app.processes.clients import Clients
from laredo_fanout.batch.status import CommitInfo, IngestStatus
from laredo_fanout.batch.write_batch import OnCommit
from laredo_fanout.config import Config, JournalConfig
from laredo_fanout.errors import SpoolFull
from laredo_fanout.ingest.supervisor import Ingest
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.relay.ingest import RelayIngest
from laredo_fanout.standby import StandbyIngest
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.errors import Damage, JournalDamaged, StoreError, StoreFull
from laredo_fanout.store.journal import Journal
from laredo_fanout.store.writer import Store
from laredo_service.retry import Backoff, Outage

AnyIngest = Ingest | RelayIngest | StandbyIngest
"""The ingest of a slot's server, of a relay, or of a server with standbys, which is either."""

_RETRY = Backoff(initial=1.0, maximum=30.0)

log = structlog.get_logger("laredo_fanout.ingest")


class IngestThread:
    """Runs the ingest in a thread until it is stopped.

    If the ingest gives up (wal_level, a missing right, a lost slot, a full disk, no more file
    descriptors), /status has the reason, and the ingest is restarted after a pause. So a cure needs
    no restart of the server, and clients are served the rows that are stored.

    :ivar crash: the error of a defect that ended the ingest; the server then exits.
    """

    def __init__(
        self,
        make: Callable[[OnCommit], AnyIngest],
        store: Store,
        wake_up: Callable[[], None],
    ) -> None:
        """``wake_up`` is called after each commit."""
        self._store = store
        self._wake_up = wake_up
        self._ingest = make(self._committed)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: str | None = None
        self.crash: BaseException | None = None
        self.given_up = 0
        self._outage = Outage()
        self._full_until: tuple[SourceIdentity | None, int] | None = None
        """The source, and the position up to which its changes found no room."""

    def _committed(self, info: CommitInfo) -> None:
        until = self._full_until
        # Small changes may be committed before those that had no room are sent again.
        if until is None or until[0] != self._store.source or info.position >= until[1]:
            if self.error is not None:
                self._outage.end()
            self.error = self._full_until = None
        self._wake_up()

    def start(self, *, on_end: Callable[[], None]) -> None:
        """Start it; ``on_end`` is called in it if it ends without having been stopped."""
        self._thread = threading.Thread(
            target=self._run, args=(on_end,), name="ingest", daemon=True
        )
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """End it after its current commit; returns whether it did within ``timeout`` seconds."""
        self._stop.set()
        self._ingest.stop()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def status(self) -> IngestStatus:
        """The ingest's status."""
        return self._ingest.status()

    @property
    def relay(self) -> RelayIngest | None:
        """The ingest, if the source is another laredo-fanout."""
        ingest = self._ingest
        current = ingest.current if isinstance(ingest, StandbyIngest) else ingest
        return current if isinstance(current, RelayIngest) else None

    @property
    def standby(self) -> StandbyIngest | None:
        """The ingest, if the server shares its slot with others."""
        return self._ingest if isinstance(self._ingest, StandbyIngest) else None

    def check_catalog_soon(self) -> None:
        """Request a catalog check (see ``Ingest.check_catalog_soon``)."""
        self._ingest.check_catalog_soon()

    def change(self, config: Config) -> Future[None]:
        """Follow the configuration's tables from the next session on (see ``Ingest.change``)."""
        ingest, tables = self._ingest, options.source_tables(config)
        if isinstance(ingest, RelayIngest):
            assert config.upstream is not None
            return ingest.change(options.relay_options(config.upstream, config.source_name), tables)
        return ingest.change(options.source_options(config), tables)

    @property
    def reads_split_backlog(self) -> bool:
        """True while a split backlog is read; a change of tables waits for its end."""
        return self._ingest.reads_split_backlog

    def recopy(self, table: str) -> Future[None]:
        """Request a re-copy of ``table`` (see ``Ingest.recopy``)."""
        return self._ingest.recopy(table)

    def repair(self, found: Damage) -> None:
        """Have damage repaired that was found in the store (see ``Ingest.repair``)."""
        self._ingest.repair(found)

    def _run(self, on_end: Callable[[], None]) -> None:
        try:
            self._run_until_stopped()
        except BaseException as error:
            self.crash = error
            self.error = f"the ingest crashed: {error!r}"
            log.error("ingest crashed", exc_info=error)
        finally:
            if self.standby is not None:
                self.standby.end()
            if not self._stop.is_set():
                on_end()

    def _note_full(self, error: Exception) -> None:
        if not isinstance(error, (StoreFull, SpoolFull)):
            self._full_until = None
            return
        store, before = self._store, self._full_until
        known = before[1] if before is not None and before[0] == store.source else 0
        reached = max(known, self._ingest.brought_to, store.position + 1)
        self._full_until = store.source, reached

    def _log_failure(self, error: str, pause: float) -> None:
        if self._outage.is_news(error):
            log.error("ingest failed; restart scheduled", error=error, after_s=round(pause, 1))

    def _run_until_stopped(self) -> None:
        failures, pause = 0, _RETRY.delay(1)
        while not self._stop.is_set():
            position = self._store.position
            try:
                self._store.check_reachable()
                self._ingest.run()
            # OSError: no more descriptors, memory or disk for it. Others may give some back.
            except (SourceError, StoreError, OSError) as error:
                self.error = " ".join(str(error).split())
                self.given_up += 1
                self._note_full(error)
                failures = 1 if self._store.position > position else failures + 1
                pause = _RETRY.delay(failures)
                self._log_failure(self.error, pause)
            if self._stop.wait(pause):
                return


# Often enough that each step is small.
_PRUNE_EVERY_S = 1.0
_PRUNE_PASS_S, _PRUNE_AGAIN_S = 0.2, 0.3
"""Longest time of a pass, but for its last transaction, and the pause after one that has work
left."""
_PRUNE_RECORDS = 512
"""Most journal records that one transaction drops: each needs room in the store until then."""


@dataclass
class JournalPruning:
    """Prunes the journals to their bounds, between two commits of the ingest thread.

    A journal may exceed its bounds by the changes of a second, and by the entries that a client has
    pinned while it is sent a snapshot. If much is due at once, it is pruned in several passes.
    """

    store: Store
    clients: Clients
    bounds: Mapping[str, JournalConfig]
    pruned: int = 0
    _due: float = field(default_factory=time.monotonic)
    _turn: int = 0
    """Id of the last table that had its turn."""

    @classmethod
    def of(cls, config: Config, store: Store, clients: Clients) -> JournalPruning:
        """Make it with the bounds of the tables' targets."""
        return cls(store, clients, _bounds(config))

    def change(self, config: Config) -> None:
        """Prune to other bounds from now on; from any thread."""
        self.bounds = _bounds(config)

    def prune(self) -> None:
        """Prune if it is due.

        :raises StoreError: if the store can't be written.
        """
        if time.monotonic() < self._due:
            return
        until, pins = time.monotonic() + _PRUNE_PASS_S, self.clients.pinned()
        while (due := self._due_tables(pins)) and self._prune_some(due, pins):
            if time.monotonic() >= until:
                # The slot is read, and a stop is seen, before the rest is pruned.
                self._due = time.monotonic() + _PRUNE_AGAIN_S
                return
        self._due = time.monotonic() + _PRUNE_EVERY_S

    def _due_tables(self, pins: Mapping[int, int]) -> list[tuple[int, JournalConfig]]:
        """Ids and bounds of the tables with entries to prune, beginning after the last turn's."""
        now = time.time()
        found: list[tuple[int, JournalConfig]] = []
        for record in self.store.tables.values():
            bounds = self.bounds.get(record.qualified)
            if bounds is None or not record.shown:
                continue
            older = int((now - bounds.max_age) * 1_000_000)
            if Journal.prunable(record, bounds.max_entries, older, pins.get(record.id)):
                found.append((record.id, bounds))
        return sorted(found, key=lambda each: (each[0] <= self._turn, each[0]))

    def _prune_some(self, due: Sequence[tuple[int, JournalConfig]], pins: Mapping[int, int]) -> int:
        """Prune these tables in one transaction; returns 0 if nothing changed."""
        records = _PRUNE_RECORDS
        while due:
            turn = due[:records]
            self._turn = turn[-1][0]
            try:
                return self._prune_each(turn, pins, records // len(turn))
            except StoreFull:
                # A smaller transaction needs less room.
                if records == 1:
                    raise
                records //= 2
            except JournalDamaged as damaged:
                after = damaged.damage.after
                assert after is not None, "it is the journal's"
                with self.store.transaction() as transaction:
                    transaction.drop_damaged_journal(damaged.damage.table_id, after)
                # The other tables don't wait for its next turn.
                due = [each for each in due if each[0] != damaged.damage.table_id]
        return 0

    def _prune_each(
        self, turn: Sequence[tuple[int, JournalConfig]], pins: Mapping[int, int], records: int
    ) -> int:
        now_us, pruned = time.time_ns() // 1000, 0
        with self.store.transaction() as transaction:
            for table_id, bounds in turn:
                pruned += transaction.prune(
                    table_id,
                    bounds.max_entries,
                    bounds.max_age,
                    now_us,
                    pins.get(table_id),
                    records=records,
                )
        self.pruned += pruned
        return pruned


def _bounds(config: Config) -> Mapping[str, JournalConfig]:
    return {table.name: table.target.journal for table in config.tables}
