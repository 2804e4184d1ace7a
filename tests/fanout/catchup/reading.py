"""A backlog's messages, read through one slot and read through segments."""

import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from laredo_fanout.batch.status import CommitInfo, Counters
from laredo_fanout.batch.write_batch import WriteBatch
from laredo_fanout.catchup.plan import CatchupOptions, CatchupPlan, Order, Segment, from_bytes
from laredo_fanout.catchup.release import Release
from laredo_fanout.postgres import pgoutput as message_
from laredo_fanout.store.writer import Store
from laredo_fanout.watchdog import Watchdog
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S

SLOT, PUBLICATION = "reading", "reading"
BEGUN_ANEW = b""
"""Stands where another life begins, whose decoder knows no relation."""
_ROWS = (message_.INSERT, message_.UPDATE, message_.DELETE)


def prepare(database: Database) -> None:
    """Publication and slot; what is committed from now on is the backlog."""
    with database.connect() as connection:
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES".encode())
        connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot_of(database),)
        )


def slot_of(database: Database) -> str:
    """Slots are the cluster's: each database has its own."""
    return f"{SLOT}_{database.name}"


def start_of(database: Database) -> int:
    """Position of the slot."""
    return database.number(
        "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
        slot_of(database),
    )


def single(database: Database) -> list[bytes]:
    """All transactions as the one slot gives them."""
    with database.connect() as connection:
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', %s, 'messages', 'true')",
            (slot_of(database), PUBLICATION),
        ).fetchall()
    return normal([bytes(row[0]) for row in rows])  # type: ignore[call-overload]


def normal(messages: Sequence[bytes]) -> list[bytes]:
    """Without announcements, which each stream makes anew, and what belongs to no transaction.

    Each row's columns are as announced before: checked here.
    """
    known: dict[bytes, bytes] = {}
    found, within = [], False
    for message in messages:
        if message == BEGUN_ANEW:
            known.clear()
            continue
        kind = message[0]
        if kind == message_.RELATION:
            known[message[1:5]] = message
            continue
        if kind in _ROWS:
            # The relation in force comes along, so that a stale one makes a difference.
            found.append(known[message[1:5]])
        within = within or kind == message_.BEGIN
        if within and kind != message_.TYPE:
            found.append(message)
        within = within and kind != message_.COMMIT
    assert not within
    return found


@dataclass
class SegmentedReading:
    """Reads a plan's segments to the end of what there was; may be given up and gone on with."""

    database: Database
    path: Path
    options: CatchupOptions = field(init=False)
    messages: list[bytes] = field(default_factory=list)
    position: int = 0
    end: int = 0
    commits_a_turn: int = 5
    kept: bool = False
    """True if the store has durably what the unreleased segments have reported."""

    def __post_init__(self) -> None:
        self.options = CatchupOptions(self.path / "spools", piece_bytes=20_000, keep_interval=0.0)
        self.end = self.database.position()

    def begin(self, segments: tuple[Segment, ...]) -> None:
        """Store the plan."""
        self.position = segments[0].start
        plan = CatchupPlan("0" * 16, "here", segments)
        store = Store.open(self.path / "store", max_size=1 << 30)
        with store, store.transaction() as transaction:
            transaction.set_position(self.position, 0)
            transaction.set_catchup_plan(plan.to_bytes())

    def session(self, on_turn: Callable[[Release], bool] | None = None) -> bool:
        """Go on with the stored plan; whether everything is released.

        ``on_turn`` may end this life, as if the server were killed: what isn't
        committed is forgotten.
        """
        with Store.open(self.path / "store", max_size=1 << 30) as store:
            if store.catchup_plan is None:
                return True
            self.position = store.position
            return self._follow(store, on_turn)

    def _follow(self, store: Store, on_turn: Callable[[Release], bool] | None) -> bool:
        assert store.catchup_plan is not None
        self.messages.append(BEGUN_ANEW)
        durable = len(self.messages)
        batch = WriteBatch(store, _nobody_waits, 1.0, Counters())
        release = Release(
            self.options,
            self._order(),
            from_bytes(store.catchup_plan),
            batch,
            store.position,
            may_end=lambda _: release.runs[-1].reached >= self.end,
            watchdog=Watchdog(),
        )
        try:
            while not release.over:
                self._wait(release)
                release.read_available()
                self._take(release)
                self.kept = _is_kept(release, store)
                if on_turn is not None and on_turn(release):
                    batch.abandon()
                    del self.messages[durable:]
                    return False
                if batch.is_open or self.position > store.position:
                    batch.commit(self.position, 0)
                    durable = len(self.messages)
                    release.confirm(store.position)
        finally:
            release.close()
        assert release.trouble is None
        return True

    def _wait(self, release: Release) -> None:
        poll = select.poll()
        poll.register(release.fileno(), select.POLLIN)
        poll.poll(100)

    def _take(self, release: Release) -> None:
        get, commits = release.get, 0
        while commits < self.commits_a_turn:
            size, message = get(1)
            if size <= 0:
                return
            self.messages.append(message[message_.ENVELOPE :])
            if message[message_.ENVELOPE] == message_.COMMIT:
                commits += 1
                self.position = message_.commit(message).position

    def _order(self) -> Order:
        return Order(
            connection=self.database.dsn,
            slot=slot_of(self.database),
            publication=PUBLICATION,
            connect_timeout=PATIENCE_S,
            receive_timeout=PATIENCE_S,
            temporary="",
            segment=0,
            start=0,
            stop=None,
            directory=str(self.options.spool_directory / "plan"),
            piece=0,
            piece_bytes=self.options.piece_bytes,
        )


def _is_kept(release: Release, store: Store) -> bool:
    if store.catchup_plan is None:
        return False
    kept = {segment.number: segment for segment in from_bytes(store.catchup_plan).segments}
    return all(kept.get(run.number) == run.segment for run in release.runs[release.head :])


def _nobody_waits(_: CommitInfo) -> None:
    """Nobody is served here."""
