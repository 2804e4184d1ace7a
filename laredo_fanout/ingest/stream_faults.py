"""Faults of the stream at one place of the WAL, and the way round them.

PostgreSQL can't decode a transaction, or sends what the protocol doesn't allow: another session
meets it again. PostgreSQL decodes a transaction in two ways: in parts while it runs (protocol
version 2), or whole at its commit. What fails in one often passes in the other, so each attempt
takes the other way than the last one. After a fault in parts transactions come whole until the
slot's restart_lsn has passed it, as a session decodes again everything from there on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.postgres.errors import DecodingFailed, StreamFault
from laredo_fanout.tables.status import FaultStatus
from laredo_model import position

if TYPE_CHECKING:
    from laredo_fanout.store.writer import Store
    from laredo_fanout.tables.status import Counters

_log = structlog.get_logger()


class StreamFaults:
    """The fault that isn't passed yet, and whether the next session is sent transactions in parts.

    ``current`` may be read in any thread; the ingest's thread does everything else. It stays while
    attempts connect and fail, so that nobody takes one that has connected for a cure.
    """

    def __init__(self, store: Store, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self._ways: frozenset[bool] = frozenset()
        """Ways in which the current fault was met: True for transactions in parts."""
        self._until = 0
        """End of the WAL when the fault was met last: the fault is before it."""
        self._slot = ""
        """The slot in whose stream it was met, by its token."""
        self.in_parts = True
        self.current: FaultStatus | None = None

    def begin(self) -> None:
        """A session begins: where the fault is of a former slot, or nothing before it is decoded
        again, transactions come in parts."""
        if self.is_left_behind or self._slot != self._token():
            if not self.in_parts:
                _log.info("streaming of large transactions resumed")
            self.in_parts = True
            self.passed(self._until)

    def met(self, error: StreamFault, wal_end: int) -> StreamFault:
        """A session ended with this fault; returns it with its place, and what is done next.

        ``wal_end``: how far WAL was written by then.
        """
        before, at = self.current, self._store.position
        is_known = before is not None and before.position == at and self._slot == self._token()
        self._ways = (self._ways if is_known else frozenset()) | {self.in_parts}
        self._until, self._slot = wal_end, self._token()
        kind = "decoding" if isinstance(error, DecodingFailed) else "protocol"
        self.in_parts = not self.in_parts
        text = self._text(error, at)
        since = before.since if before is not None else time.time()
        attempts = before.attempts + 1 if is_known and before is not None else 1
        self.current = FaultStatus(kind, text, at, attempts, since)
        self._counters.stream_faults[kind] += 1
        return StreamFault(text)

    def passed(self, level: int) -> None:
        """Nothing up to ``level`` is missing in the store: a fault before it is over."""
        if self.current is not None and (level >= self._until or self._slot != self._token()):
            _log.info("stream fault passed", position=position.text(self._store.position))
            self.current = None

    @property
    def is_left_behind(self) -> bool:
        """True if transactions come whole, and no session will decode again what must be."""
        if self.in_parts or self.current is not None:
            return False
        slot = self._counters.slot.slot
        restart = 0 if slot is None else slot.restart or 0
        return restart >= self._until or self._slot != self._token()

    def _token(self) -> str:
        return "" if self._store.source is None else self._store.source.token

    def _text(self, error: StreamFault, at: int) -> str:
        if isinstance(error, DecodingFailed):
            what = f"PostgreSQL can't decode a transaction after {position.text(at)}"
            what, why = f"{what} ({error.sqlstate})", error.text
        else:
            what, why = f"the stream after {position.text(at)} isn't the protocol's", str(error)
        if len(self._ways) == 1:
            way, other = ("whole", "in parts") if self.in_parts else ("in parts", "whole")
            return f"{what}, {way}: {why}; it is tried {other} next"
        slot = "" if self._store.source is None else self._store.source.slot
        cure = "check the network between the server and PostgreSQL"
        if isinstance(error, DecodingFailed):
            cure = "a larger logical_decoding_work_mem of the role may help"
        return (
            f"{what}, neither in parts nor whole: {why}; it is tried again, {cure}. If nothing"
            f" helps, SELECT pg_drop_replication_slot('{slot}'): with on_slot_lost = recreate"
            " every table is copied again"
        )
