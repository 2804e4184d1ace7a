"""Decisions of fall-behind mode: when to split a backlog, into how many segments, when to end."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.catchup import plan as plan_
from laredo_fanout.catchup.plan import CatchupMode, CatchupPlan, CatchupStatus, Order
from laredo_fanout.catchup.release import Release
from laredo_fanout.catchup.segment_stream import Anchor
from laredo_fanout.pg_catalog import requirements
from laredo_model import position as position_
from laredo_service.figures import size

if TYPE_CHECKING:
    from laredo_fanout.batch.write_batch import WriteBatch
    from laredo_fanout.catchup.plan import CatchupOptions
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions
    from laredo_fanout.store.writer import Store
    from laredo_fanout.watchdog import Watchdog

_log = structlog.get_logger()

_CHECKS = 3
_SMALL_PART = 4
_PREFIX = "plan-"
_REST_S = 600.0
_TRY_AGAIN_S = 60.0  # slots and walsenders may be free then
_LAST_MOVE_S = 10.0
_MOST_SESSIONS = 5

_INSERTED = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"

# Free replication slots and walsenders. This slot's own stream may be shown for a moment after it
# was closed: it doesn't count.
_FREE = """
SELECT current_setting('max_replication_slots')::int
        - (SELECT count(*) FROM pg_replication_slots),
    current_setting('max_wal_senders')::int
        - (SELECT count(*) FROM pg_stat_replication WHERE NOT
            coalesce(starts_with(application_name, %s) AND right(application_name, 7) = ' stream',
                false))
"""


class FallBehind:
    """The ingest's change source (``ingest.change_source.ChangeSource``) for all of its sessions.

    The ingest's thread and the side connection's call it; only one of them writes each attribute.
    """

    def __init__(
        self, options: CatchupOptions, source: SourceOptions, store: Store, watchdog: Watchdog
    ) -> None:
        self._options = options
        self._source = source
        self._store = store
        self._watchdog = watchdog
        self._release: Release | None = None
        self._inserted = 0
        self._level = 0
        self._above = 0
        self._fitting: int | None = None
        """Number of segments for which there is room; None if not measured."""
        self._is_logged = False
        """True once the log has the reason why this backlog isn't split."""
        self._planned_to = 0
        """End of the WAL when the segments were opened."""
        self._is_wanted = False
        """True if the next session needs a new plan."""
        self._asked = threading.Event()
        self._rest_until = 0.0
        self._sessions = (0, 0)
        self._anchor = Anchor("")
        self._is_moved = False
        """True once the slot was moved after the last release, or couldn't be."""
        self._restarts = 0
        self._plans = 0
        self._given_up = 0
        self._trouble: str | None = None

    # ------------------------------------------------------------ as a change source

    @property
    def interval(self) -> float:
        """Seconds between two measurements."""
        return self._options.check_interval

    def measure(self, connection: Connection) -> None:
        """Measure the backlog; advance the slot while nobody streams from it.

        :raises psycopg.Error: if PostgreSQL can't be queried.
        """
        self._inserted = _inserted(connection)
        release = self._release
        behind = self._lag(self._level if release is None else release.decoded)
        above = behind > self._options.threshold_bytes
        self._above = self._above + 1 if above and self._may_split(release) else 0
        if release is not None:
            self._advance(connection, release)
            return
        needed = self._above or self._asked.is_set()
        self._fitting = self._number(connection, behind) if needed else None

    def open(self, connection: Connection, batch: WriteBatch) -> Release | None:
        """Open the release of the stored plan, or of a new one; None if no backlog is split.

        :raises psycopg.Error: if PostgreSQL can't be queried.
        """
        self._forget_release()
        plan = self._usable_plan()
        if plan is None and (self._is_wanted or self._asked.is_set()):
            plan = self._new_plan(connection)
        self._is_wanted = False
        self._asked.clear()
        self._remove_spools(except_for=plan)
        if plan is None:
            return None
        self._anchor = Anchor(self._slot)
        self._is_moved = False
        self._planned_to = _inserted(connection)
        self._release = Release(
            self._options,
            self._order(plan),
            plan,
            batch,
            self._store.position,
            may_end=self._may_end,
            watchdog=self._watchdog,
        )
        return self._release

    def is_over(self, level: int) -> bool:
        """True if segments must begin, or have reached their end."""
        release = self._release
        if release is not None and release.over:
            # If the slot lags, the next session first compares all WAL in between.
            return self._is_moved or time.monotonic() - release.over_at > _LAST_MOVE_S
        self._level = level if release is None else max(level, release.reached)
        if release is None:
            return self._must_begin()
        if self._above >= _CHECKS and self._may_split(release):
            self._is_wanted = True
            release.end_early()
        return False

    def change_source(self, source: SourceOptions) -> None:
        """Connect with these options from now on; may be called from any thread."""
        self._source = source

    def ask(self) -> None:
        """Request that the backlog is split now, even below the threshold, from any thread."""
        self._asked.set()

    @property
    def mode(self) -> CatchupMode:
        """Mode that decides when a backlog is split."""
        return self._options.mode

    def status(self) -> CatchupStatus:
        """Current status; may be called from any thread."""
        release = self._release
        return CatchupStatus(
            mode=self._options.mode,
            threshold_bytes=self._options.threshold_bytes,
            lag_bytes=self._lag(self._level) if self._level else 0,
            checks_above=self._above,
            plans=self._plans,
            given_up=self._given_up,
            restarts=self._restarts + (release.restarts if release else 0),
            trouble=self._trouble,
            release_position=release.durable if release else None,
            spool_bytes=release.spooled_bytes if release else 0,
            segments=release.status() if release else (),
        )

    # ------------------------------------------------------------ begin and end

    def _may_split(self, release: Release | None) -> bool:
        """True if a new plan would lose no work.

        Only the last segment must be left, and everything up to the plan's end must be released:
        otherwise a large transaction that is being decoded would be restarted again and again. If
        the backlog has grown by the threshold meanwhile, the transaction is restarted once, as part
        of a segment that ends.
        """
        if release is None:
            return True
        grew = self._inserted - self._planned_to > self._options.threshold_bytes
        return release.waits_for_tail and (grew or release.durable >= self._planned_to)

    def _must_begin(self) -> bool:
        fitting, asked = self._fitting, self._asked.is_set()
        lag = self._lag(self._level)
        if lag * _SMALL_PART < self._options.threshold_bytes:
            self._is_logged = False
        due = (
            self._options.mode is CatchupMode.AUTO
            and self._above >= _CHECKS
            and time.monotonic() >= self._rest_until
        )
        if fitting is None or not (asked or due):
            return False
        self._asked.clear()
        if fitting < 2:
            self._not_split(lag, fitting)
            return False
        self._is_wanted = True
        return True

    def _not_split(self, backlog: int, fitting: int) -> None:
        self._rest_until = time.monotonic() + _TRY_AGAIN_S
        self._trouble = (
            f"a backlog of {size(backlog)} isn't split: there is room for {max(0, fitting)}"
            f" segments of at least {size(self._options.min_segment_bytes)}, and 2 are needed; see"
            " catchup { max_segments, min_segment_bytes, reserve_slots }, max_replication_slots,"
            " max_wal_senders"
        )
        if not self._is_logged:
            self._is_logged = True
            _log.info("backlog not split", reason=self._trouble)

    def _may_end(self, level: int) -> bool:
        """True if the segments may end at ``level``.

        Little of the backlog must be left, and the slot must have been moved close to ``level``, so
        that its own stream resumes at once.
        """
        least = self._options.threshold_bytes
        return max(self._lag(level), level - self._anchor.tried) * _SMALL_PART < least

    def _lag(self, level: int) -> int:
        return max(0, self._inserted - level)

    def _number(self, connection: Connection, behind: int) -> int:
        """Number of segments for which there is room; less than 1 if the reserve is in use.

        :raises psycopg.Error: if PostgreSQL can't be queried.
        """
        free = connection.execute(_FREE, (f"laredo-fanout {self._slot} ",)).fetchone()
        assert free is not None
        slots, walsenders = map(int, free)
        options = self._options
        return min(
            options.max_segments,
            slots - options.reserve,
            walsenders - options.reserve,
            behind // options.min_segment_bytes,
        )

    def _new_plan(self, connection: Connection) -> CatchupPlan | None:
        position = self._store.position
        end = _inserted(connection)
        number = self._number(connection, end - position)
        if number < 2:
            self._not_split(end - position, number)
            return None
        segments = plan_.split(position, end, number)
        plan = CatchupPlan(secrets.token_hex(8), self._identity(), segments)
        self._store_plan(plan)
        self._plans += 1
        self._trouble = None
        self._sessions = (0, 0)
        _log.info(
            "backlog split",
            bytes=end - position,
            starts=[position_.text(segment.start) for segment in segments],
        )
        return plan

    def _usable_plan(self) -> CatchupPlan | None:
        """The stored plan, unless it is another history's, or sessions made no progress with it."""
        stored = self._store.catchup_plan
        if stored is None:
            return None
        plan = plan_.from_bytes(stored)
        position, (before, sessions) = self._store.position, self._sessions
        self._sessions = position, sessions + 1 if before == position else 1
        why = None
        if plan.source != self._identity():
            why = "its positions are another history's"
        elif self._sessions[1] > _MOST_SESSIONS:
            why = f"{_MOST_SESSIONS} successive sessions made no progress with it"
        if why is None:
            return plan
        _log.warning("split backlog given up", reason=why)
        self._given_up += 1
        self._rest_until = time.monotonic() + _REST_S
        self._store_plan(None)
        return None

    def _forget_release(self) -> None:
        release, self._release = self._release, None
        self._fitting = None
        self._above = 0
        self._level = self._store.position
        if release is None:
            return
        self._restarts += release.restarts
        if release.trouble is not None:
            self._given_up += 1
            self._trouble = release.trouble
            self._rest_until = time.monotonic() + _REST_S

    def _store_plan(self, plan: CatchupPlan | None) -> None:
        with self._store.transaction() as transaction:
            transaction.set_catchup_plan(None if plan is None else plan.to_bytes())

    @property
    def _slot(self) -> str:
        """Name of the slot that is followed, which may differ from the configured default."""
        source = self._store.source
        return self._source.slot_name if source is None else source.slot

    def _identity(self) -> str:
        source = self._store.source
        return "" if source is None else f"{source.history} {source.slot} {source.token}"

    def _directory(self, plan: CatchupPlan) -> Path:
        return self._options.spool_directory / f"{_PREFIX}{plan.token}"

    def _remove_spools(self, *, except_for: CatchupPlan | None) -> None:
        kept = None if except_for is None else self._directory(except_for)
        for path in self._options.spool_directory.glob(f"{_PREFIX}*"):
            if path != kept:
                shutil.rmtree(path, ignore_errors=True)

    def _order(self, plan: CatchupPlan) -> Order:
        source = self._source
        return Order(
            connection=source.connection,
            slot=self._slot,
            publication=source.publication.name,
            connect_timeout=source.connect_timeout,
            receive_timeout=source.receive_timeout,
            temporary="",
            segment=0,
            start=0,
            stop=None,
            directory=str(self._directory(plan)),
            piece=0,
            piece_bytes=self._options.piece_bytes,
            appends=requirements.streamed(source, self._store.tables.values()),
        )

    def _advance(self, connection: Connection, release: Release) -> None:
        """Advance the slot to the durable position; at once if the segments are about to end.

        :raises StoreRemoved: if a later start wouldn't find the store.
        """
        self._store.check_reachable()
        if not release.over:
            durable = release.durable
            at_once = release.only_tail and self._lag(durable) * _SMALL_PART < (
                self._options.threshold_bytes
            )
            self._anchor.advance(connection, durable, at_once=at_once)
        elif not self._is_moved:
            # release.durable may lag here: the store has the final position.
            self._anchor.advance(connection, self._store.position, at_once=True)
            self._is_moved = True
            release.wake()


def _inserted(connection: Connection) -> int:
    """End of the server's WAL, written to disk or not.

    :raises psycopg.Error: if PostgreSQL can't be queried, or is a standby.
    """
    row = connection.execute(_INSERTED).fetchone()
    assert row is not None
    return int(row[0])
