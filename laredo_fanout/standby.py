"""The ingest of a server with standbys: it reads the slot, or follows the peer that does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import structlog

from laredo_fanout.errors import SlotForeign
from laredo_fanout.ingest.change_source import PendingSourceChange
from laredo_fanout.ingest.supervisor import Ingest
from laredo_fanout.postgres import connections
from laredo_fanout.postgres.connections import SourceError, SourceUnavailable
from laredo_fanout.relay import peers as peers_
from laredo_fanout.relay.ingest import RelayIngest
from laredo_fanout.slot import rules, slot
from laredo_fanout.slot.reports import StandbyReports
from laredo_fanout.slot.rules import Candidate
from laredo_fanout.slot.sharing import Deposed, SlotSharing, TakeoverRefused
from laredo_fanout.store.environment import Ownership
from laredo_fanout.store.table import Status
from laredo_model import position as position_
from laredo_service.retry import Outage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from laredo_fanout.batch.status import IngestStatus
    from laredo_fanout.batch.write_batch import OnCommit
    from laredo_fanout.pg_catalog.publication import TableDiscovery
    from laredo_fanout.relay.path import RelayOptions
    from laredo_fanout.relay.peers import Answers, PeerRole
    from laredo_fanout.slot.reports import StandbyOptions
    from laredo_fanout.source_options import SourceOptions, SourceTableOptions
    from laredo_fanout.store.errors import Damage
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


_log = structlog.get_logger()

_ASK_AGAIN_S, _LOOK_AGAIN_S = 1.0, 0.25
_HANDOVER_S, _HANDOVER_ANSWER_S, _HANDOVER_STEP_S = 5.0, 0.5, 0.05
_HANDOVER_SILENCE_S = 1.0
"""Patience if every standby refuses connections: one that has left counts as complete for 5 s."""
_BY_HAND = (
    "start the server that held it, or run `laredo-fanout promote` at the standby that is to take"
    " over"
)


def _not_running() -> SourceUnavailable:
    return SourceUnavailable("this server is stopping; its log has the reason")


class StandbyStatus(NamedTuple):
    """The role of this server among those of its slot, for the metrics."""

    holder: bool
    term: int
    #: For the holder: number of standbys that have every table and reported recently.
    complete: int
    #: For the holder: number of complete standbys that ``synchronous`` still lacks.
    missing: int
    takeovers: int


class StandbyIngest:
    """The ingest of a server with standbys; it runs ``Ingest`` or ``RelayIngest`` by its role."""

    def __init__(
        self,
        options: SourceOptions,
        tables: Sequence[SourceTableOptions],
        store: Store,
        on_commit: OnCommit,
        prune: Callable[[], None],
        *,
        peers: Sequence[RelayOptions],
        rule: StandbyOptions,
        discovery: TableDiscovery | None = None,
    ) -> None:
        self._options = options
        self._peers = tuple(peers)
        self._tables = tuple(tables)
        self._store = store
        self._on_commit = on_commit
        self._prune = prune
        self._discovery = discovery
        self._reports = StandbyReports(rule, store)
        self._sharing = SlotSharing(store, self._reports, lambda: self._answer(None))
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._promotion: Future[None] | None = None
        self._handover: Future[bool] | None = None
        self._change: PendingSourceChange[Any] = PendingSourceChange()
        self._vacancy = Vacancy(store)
        self._refusals = Outage()
        self._error: str | None = None
        self.current: Ingest | RelayIngest = self._following(self._peers[0])

    # ------------------------------------------------------------ roles

    def run(self) -> None:
        """Read the slot or follow a peer, until :meth:`stop`.

        :raises SlotLost: if changes are gone and ``on_slot_lost`` is fail.
        :raises SpoolFull: if a giant transaction has no room on the disk.
        :raises StoreError: if the store can't be written.
        """
        while not self._stopping.is_set():
            if self._handover is not None:
                self._hand_over()
            elif self._holds():
                self._hold()
            else:
                self._follow()

    def _holds(self) -> bool:
        """True if this server is to read the slot."""
        known, source = self._store.ownership, self._store.source
        if known is not None:
            return known.holder
        if source is not None:
            # It has followed the slot alone, or another server.
            self._become(1, holder=bool(source.slot and self._store.position))
            return self._holds()
        # A fresh server: the one that creates the slot is the first holder.
        found = peers_.others(self._peers, self._store.server_id)
        if any(each.role.has_source for each in found.roles):
            self._become(0, holder=False)
            return False
        return True

    def _become(self, term: int, *, holder: bool) -> None:
        known = self._sharing.ownership
        now = known._replace(term=max(term, known.term), holder=holder)
        if now == self._store.ownership:
            return
        with self._store.transaction() as transaction:
            transaction.ownership = now
        _log.info("role changed", holder=holder, term=now.term)

    def _hold(self) -> None:
        try:
            self._read_slot()
        except SlotForeign as error:
            if self._store.position:
                raise
            self._become(0, holder=False)
            _log.info("slot of a peer found", reason=str(error))

    def _read_slot(self) -> None:
        """Run the ingest until another server has taken over, or it is stopped."""
        deposed: list[int] = []

        def is_over() -> bool:
            if self._sharing.taking_over:
                return False
            if self.current.status().connected:
                return False
            found = peers_.others(self._peers, self._store.server_id)
            terms = [each.role.term for each in found.roles if each.role.holder]
            deposed.extend(term for term in terms if term > self._sharing.ownership.term)
            return bool(deposed)

        try:
            self._run(self._slot_ingest, is_over)
        except Deposed as error:
            deposed.append(error.term)
            _log.warning("slot taken over by another server", error=str(error))
            self._answer(error)
        if deposed:
            self._become(max(deposed), holder=False)

    def _follow(self) -> None:
        if self._promotion is not None:
            self._take_over()
            return
        found = peers_.others(self._peers, self._store.server_id)
        holder = self._newest_holder(found.roles)
        if self._takes_over(found, holder):
            return
        if holder is None:
            self._stopping.wait(self._pause)
            return
        self._become(holder.role.term, holder=False)
        _log.info("holder followed", server=holder.options.server, term=holder.role.term)

        def is_over() -> bool:
            found = peers_.others(self._peers, self._store.server_id)
            newest = self._newest_holder(found.roles)
            if self._takes_over(found, newest):
                return True
            return newest is not None and (
                newest.options.server != holder.options.server
                or newest.role.term != holder.role.term
            )

        self._run(partial(self._following, holder.options), is_over)

    def _following(self, peer: RelayOptions) -> RelayIngest:
        return RelayIngest(
            peer, self._tables, self._store, self._on_commit, self._prune, change=self._change
        )

    def _newest_holder(self, found: Sequence[PeerRole]) -> PeerRole | None:
        least = self._sharing.ownership.term
        holders = [each for each in found if each.role.holder and each.role.term >= least]
        return max(holders, key=lambda each: each.role.term, default=None)

    def _run(self, made: Callable[[], Ingest | RelayIngest], is_over: Callable[[], bool]) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            # A change that the former ingest hasn't taken is part of what this one is made with.
            self._change.take()
            self.current = ingest = made()
            if self._promotion is not None and isinstance(ingest, RelayIngest):
                return
            if self._handover is not None and isinstance(ingest, Ingest):
                return
        with self._watched(ingest, is_over):
            ingest.run()

    @property
    def _pause(self) -> float:
        """Seconds until the peers are asked again."""
        return _LOOK_AGAIN_S if self._vacancy.candidate else _ASK_AGAIN_S

    @contextmanager
    def _watched(self, ingest: Ingest | RelayIngest, is_over: Callable[[], bool]) -> Iterator[None]:
        """While the block runs, ask now and then if it ``is_over``; then stop the ingest.

        :raises Exception: the error of a question that crashed.
        """
        over = threading.Event()

        def watch() -> None:
            try:
                while not (over.wait(self._pause) or is_over()):
                    pass
            finally:
                if not over.is_set():
                    ingest.stop()

        with ThreadPoolExecutor(1, "laredo-standby") as threads:
            watching = threads.submit(watch)
            try:
                yield
            finally:
                over.set()
            watching.result()

    # ------------------------------------------------------------ takeover

    def _takes_over(self, found: Answers, holder: PeerRole | None) -> bool:
        """Look at the slot, if no ``holder`` answers that can reach PostgreSQL.

        True if this standby is to take it over now.
        """
        if holder is not None and not holder.role.cut_off:
            self._error = None
            self._vacancy.end()
            self._refusals.end()
            return False
        after = self._reports.options.takeover_after
        if self._promotion is not None:
            return True
        missing = "no peer holds the slot"
        if holder is not None:
            missing = f"the holder ({holder.options.server}) can't reach PostgreSQL"
        nobody = "; ".join((missing, *found.failures))
        if not after:
            self._error = f"{nobody}; {_BY_HAND}"
            return False
        free_s = self._vacancy.look(self._options, self._tables)
        if free_s is None:
            self._error = f"{nobody}; this server doesn't take over: {self._vacancy.refusal}"
            return False
        self._error = f"{nobody}; the slot is taken over once it has been free for {after:g} s"
        others = [each.role for each in found.roles if each.role.candidate]
        rivals = [Candidate(each.position, each.server_id) for each in others]
        own = Candidate(self._position, self._store.server_id)
        if not rules.takes_over(free_s, after, own, rivals):
            return False
        self._vacancy.end()
        with self._lock:
            if self._promotion is None:
                self._promotion = Future()
        return True

    @property
    def _position(self) -> int:
        """The least position of the tables."""
        live = [each.position for each in self._store.tables.values() if each.live]
        return min(live, default=0) or self._store.position

    @property
    def _refused(self) -> str | None:
        """Reason why this standby doesn't take over a slot without a holder."""
        return None if self._sharing.ownership.holder else self._error

    def promote(self) -> Future[None]:
        """Take over the slot; from any thread. Done when this server is the holder.

        The future fails with a SourceError if it can't be; then it is a standby as before.
        """
        with self._lock:
            answer = self._promotion
            if answer is not None:
                return answer
            answer = Future[None]()
            if self._sharing.ownership.holder:
                answer.set_result(None)
                return answer
            if self._stopping.is_set():
                answer.set_exception(_not_running())
                return answer
            self._promotion = answer
            if isinstance(self.current, RelayIngest):
                self.current.stop()
        return answer

    def _slot_ingest(self) -> Ingest:
        return Ingest(
            self._options,
            self._tables,
            self._store,
            self._on_commit,
            self._prune,
            discovery=self._discovery,
            sharing=self._sharing,
            change=self._change,
        )

    def _take_over(self) -> None:
        answer = self._promotion
        assert answer is not None
        _log.warning("takeover begun", slot=self._options.slot_name)
        self._sharing.taking_over = True
        try:
            self._prepare()
            self._read_slot()
        except SourceError as error:
            if self._sharing.ownership.holder:
                raise
            if self._refusals.is_news(str(error)):
                _log.error("takeover failed", error=str(error))
            self._answer(error)
        finally:
            self._sharing.taking_over = False
            self._answer(None if self._sharing.ownership.holder else SourceUnavailable("stopped"))

    def _answer(self, error: SourceError | None) -> None:
        with self._lock:
            answer, self._promotion = self._promotion, None
        if answer is None:
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    def _prepare(self) -> None:
        """Put the store at the least position of its tables, for a session with the slot.

        :raises TakeoverRefused: if it has no table.
        """
        store = self._store
        live = [each for each in store.tables.values() if each.live]
        if store.source is None or not store.source.slot or not live:
            raise TakeoverRefused("this server has received no table of the holder yet")
        with store.transaction() as transaction:
            for record in list(transaction.tables.values()):
                if record.status is Status.COPYING:
                    transaction.drop_table(record.id)
            # Those of a former holder that hasn't followed another one are the store's.
            transaction.position = min(each.position or store.position for each in live)
            transaction.set_marker(None)
            transaction.set_upstream_path(b"")

    # ------------------------------------------------------------ handover

    def hand_over(self) -> Future[bool]:
        """Give the slot to a standby that has all tables, and follow it; from any thread.

        Done with True once the standby is the holder; with False if there is no such standby, or
        the handover takes too long: then this server goes on.
        """
        with self._lock:
            answer = self._handover
            if answer is not None:
                return answer
            answer = Future[bool]()
            is_running = self._sharing.ownership.holder and not self._stopping.is_set()
            if not (is_running and self._reports.most_advanced()):
                answer.set_result(False)
                return answer
            self._handover = answer
            self.current.stop()
        return answer

    def _hand_over(self) -> None:
        """The slot isn't read any more: have a standby take it over."""
        answer = self._handover
        assert answer is not None
        began = time.monotonic()
        until = began + _HANDOVER_SILENCE_S
        done = not self._sharing.ownership.holder
        while not done and time.monotonic() < until and not self._stopping.is_set():
            complete = self._reports.most_advanced()
            found = peers_.others(
                self._peers,
                self._store.server_id,
                answer_s=_HANDOVER_ANSWER_S,
                take_over=next(iter(complete), ""),
            )
            if found.silent or any(each.role.server_id in complete for each in found.roles):
                until = began + _HANDOVER_S
            terms = [each.role.term for each in found.roles if each.role.holder]
            if max(terms, default=0) > self._sharing.ownership.term:
                self._become(max(terms), holder=False)
                done = True
            else:
                self._stopping.wait(_HANDOVER_STEP_S)
        if done:
            _log.info("slot handed over", slot=self._options.slot_name)
        else:
            waited = round(time.monotonic() - began, 1)
            _log.warning("slot not taken over by a standby", waited_s=waited)
        with self._lock:
            self._handover = None
        answer.set_result(done)

    # ------------------------------------------------------------ as the other ingests

    def stop(self) -> None:
        """Have :meth:`run` commit what is whole and return; from any thread."""
        with self._lock:
            self._stopping.set()
            self.current.stop()

    def end(self) -> None:
        """Answer who waits for this server to hand over or take over: :meth:`run` has ended for
        good, perhaps by a crash."""
        with self._lock:
            self._stopping.set()
            handover, self._handover = self._handover, None
        if handover is not None:
            handover.set_result(False)
        self._answer(_not_running())

    def change(self, options: SourceOptions, tables: Sequence[SourceTableOptions]) -> Future[None]:
        """Follow these tables, with these options, from now on; from any thread."""
        with self._lock:
            self._options, self._tables = options, tuple(tables)
            current = self.current
            if isinstance(current, RelayIngest):
                return current.change(current.options, tables)
            return current.change(options, tables)

    reads_split_backlog = False
    """The slot of several servers is read as one."""

    def check_catalog_soon(self) -> None:
        """Have the catalog checked as soon as checks may be made; from any thread."""
        self.current.check_catalog_soon()

    def recopy(self, table: str) -> Future[None]:
        """Have ``table`` copied again, or sent again by the holder; from any thread."""
        return self.current.recopy(table)

    def repair(self, found: Damage) -> None:
        """Have damage in the store repaired; from any thread."""
        self.current.repair(found)

    @property
    def brought_to(self) -> int:
        """Position up to which the stream had brought changes, committed or not."""
        return self.current.brought_to

    def status(self) -> IngestStatus:
        """Current status; callable from any thread."""
        status = self.current.status()
        if self._refused is not None and not status.connected:
            status = replace(status, error=self._refused)
        return status

    def report(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Take a peer's report; returns this server's role. From any thread."""
        known, current = self._sharing.ownership, self.current
        if message["tables"] and known.holder:
            self._reports.take(message["server"], message["tables"])
        if message["take_over"] == self._store.server_id:
            self.promote()
        return {
            "server_id": self._store.server_id,
            "holder": known.holder,
            "term": known.term,
            "has_source": self._store.source is not None,
            "position": self._position,
            "candidate": self._vacancy.candidate or self._promotion is not None,
            "cut_off": known.holder and isinstance(current, Ingest) and current.is_cut_off,
        }

    def standby_status(self) -> StandbyStatus:
        """The role; from any thread."""
        known, reports = self._sharing.ownership, self._reports
        complete = reports.complete if known.holder else 0
        missing = max(0, reports.options.synchronous - complete) if known.holder else 0
        return StandbyStatus(known.holder, known.term, complete, missing, self._sharing.takeovers)

    def shown(self) -> dict[str, Any]:
        """The role and the standbys, as JSON values; from any thread."""
        known: Ownership = self._sharing.ownership
        role = "holder" if known.holder else "standby"
        return {
            "role": "taking over" if self._sharing.taking_over else role,
            "term": known.term,
            "synchronous": self._reports.options.synchronous,
            "alone": known.holder and self._reports.alone,
            "standbys": self._reports.shown() if known.holder else [],
            "takeovers": self._sharing.takeovers,
            "error": self._refused,
        }
