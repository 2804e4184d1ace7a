"""Random histories in random order: in the end it is as if nothing had come before its turn."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laredo_fanout.store.errors import RowIncomplete
from laredo_fanout.store.transaction import Transaction
from laredo_fanout.store.writer import Store
from laredo_model.change import Action, Change
from tests.fanout.store.sample import (
    INSERT,
    TRUNCATION,
    UPDATE,
    Step,
    changes,
    delete,
    fold,
    insert,
    journal_of,
    live_table,
    open_store,
    partial,
    row,
    state_of,
    update,
)

LONG = "k" * 490
KEYS = ["a", "b", "c", LONG]
Rows = dict[str, tuple[str, str]]


class History(NamedTuple):
    """Committed transactions as (position, steps), and the rows after each."""

    transactions: list[tuple[int, list[Step]]]
    states: dict[int, dict[bytes, bytes]]

    def after(self, position: int) -> "History":
        """The same, so much later."""
        return History(
            [(position + at, steps) for at, steps in self.transactions],
            {position + at: rows for at, rows in self.states.items()},
        )


@st.composite
def histories(draw: st.DrawFn) -> History:
    """What PostgreSQL might send: only what is there is updated, moved or deleted."""
    rows: Rows = {}
    made: list[tuple[int, list[Step]]] = []
    states: dict[int, dict[bytes, bytes]] = {0: {}}
    for number in range(draw(st.integers(1, 25))):
        steps: list[Step] = []
        for _ in range(draw(st.integers(1, 4))):
            steps += _step(draw, rows, f"{number}.{len(steps)}")
        position = 10 * (number + 1)
        made.append((position, steps))
        states[position] = {key.encode(): row(key, *values) for key, values in rows.items()}
    return History(made, states)


def _step(draw: st.DrawFn, rows: Rows, value: str) -> list[Step]:
    key = draw(st.sampled_from(KEYS))
    kind = draw(st.integers(0, 11))
    if kind == 0:
        rows.clear()
        return [TRUNCATION]
    if key not in rows:
        rows[key] = value, value
        return [insert(key, value, value)]
    big = rows[key][1]
    if kind <= 3:
        del rows[key]
        return [delete(key)]
    if kind <= 5:
        free = [other for other in KEYS if other not in rows]
        if free:
            other = draw(st.sampled_from(free))
            del rows[key]
            rows[other] = value, big
            unsent = draw(st.booleans())
            line = partial(other, value) if unsent else row(other, value, big)
            return [delete(key), (INSERT, other, line)]
    if kind <= 8:
        rows[key] = value, big
        return [(UPDATE, key, partial(key, value))]
    rows[key] = value, value
    return [update(key, value, value)]


class Backlog:
    """The history in segments, released bit by bit."""

    def __init__(self, store: Store, table: int, history: History, cuts: set[int]) -> None:
        self.store = store
        self.table = table
        self._segments: list[list[tuple[int, list[Step]]]] = [[]]
        for number, transaction in enumerate(history.transactions):
            if number in cuts:
                self._segments.append([])
            self._segments[-1].append(transaction)
        self._all = history.transactions
        self._taken = [0] * len(self._segments)
        self._at = 0
        self.incomplete = False

    @property
    def over(self) -> bool:
        return self.store.position >= self._all[-1][0]

    def take_early(self, segment: int, number: int, transaction: Transaction) -> None:
        """Some transactions of a segment whose turn hasn't come, as many as fit."""
        if not self._head < segment < len(self._segments):
            return
        taken = self._taken[segment]
        some = self._segments[segment][taken : taken + number]
        if some:
            made = changes(*some)
            if transaction.fits_early(self.table, made):
                transaction.apply_early(self.table, made)
                self._taken[segment] += len(some)

    def take_head(self, number: int, transaction: Transaction) -> None:
        """Some transactions in their turn; what was taken early isn't taken again."""
        head = self._head
        some = self._segments[head][self._taken[head] : self._taken[head] + number]
        if some:
            transaction.apply(self.table, changes(*some))
            self._taken[head] += len(some)
        transaction.set_position(max(transaction.position, self._prefix()), 0)

    def give_up(self) -> None:
        """All that the position hasn't reached comes again, in order."""
        left = [each for each in self._all if each[0] > self.store.position]
        self._segments, self._taken = [left], [0]

    def keep(self) -> tuple[list[list[tuple[int, list[Step]]]], list[int]]:
        return list(self._segments), list(self._taken)

    def restore(self, kept: tuple[list[list[tuple[int, list[Step]]]], list[int]]) -> None:
        self._segments, self._taken = kept

    @property
    def _head(self) -> int:
        for number, segment in enumerate(self._segments):
            if self._taken[number] < len(segment):
                return number
        return len(self._segments) - 1

    def _prefix(self) -> int:
        position = 0
        for segment, taken in zip(self._segments, self._taken, strict=True):
            if taken:
                position = segment[taken - 1][0]
            if taken < len(segment):
                break
        return position


ROUNDS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=4),
        st.sampled_from(["commit", "commit", "commit", "forget", "give up"]),
    ),
    max_size=25,
)


class Forgotten(Exception):
    """A transaction that is given up."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One for all examples: making one takes longer than all that is done with it."""
    with open_store(tmp_path_factory.mktemp("early")) as opened:
        yield opened


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(histories(), st.sets(st.integers(1, 24), max_size=3), ROUNDS)
def test_in_the_end_it_is_as_if_nothing_had_been_early(
    store: Store,
    history: History,
    cuts: set[int],
    rounds: list[tuple[list[tuple[int, int]], str]],
) -> None:
    table = live_table(store, "users", store.reach + 10)
    _run(store, table, history.after(store.position), cuts, rounds)
    with store.transaction() as transaction:
        transaction.drop_table(table)
    while store.reclaim():
        pass


def _run(
    store: Store,
    table: int,
    history: History,
    cuts: set[int],
    rounds: list[tuple[list[tuple[int, int]], str]],
) -> None:
    backlog = Backlog(store, table, history, cuts)
    watch = Watch(store, table, history)
    for works, ending in rounds:
        if not _round(backlog, watch, works, ending):
            return
    while not backlog.over:
        if not _round(backlog, watch, [(0, 2)], "commit"):
            return
    record = store.tables[table]
    assert record.disorder is None
    assert store.reach == store.position
    assert all(each.last >= each.first for each in record.disorders)
    watch.check_resumed()
    # What was put aside for it is removed.
    while store.reclaim(5):
        pass
    assert state_of(store.reader(), table) == history.states[store.position]


def _round(backlog: Backlog, watch: "Watch", works: list[tuple[int, int]], ending: str) -> bool:
    """One commit; False if a table must be copied anew, which is right then."""
    store, kept = backlog.store, backlog.keep()
    try:
        with store.transaction() as transaction:
            for segment, number in works:
                if segment == 0:
                    backlog.take_head(number, transaction)
                else:
                    backlog.take_early(segment, number, transaction)
            transaction.set_position(transaction.position, 0)
            if ending == "forget":
                raise Forgotten
    except Forgotten:
        backlog.restore(kept)
    except RowIncomplete:
        # Its old place was used again by a later transaction, which came early.
        assert watch.has_partial_moves
        return False
    if ending == "give up":
        backlog.give_up()
    watch.look()
    return True


class Watch:
    """Looks at the store after each commit."""

    def __init__(self, store: Store, table: int, history: History) -> None:
        self._store = store
        self._table = table
        self._history = history
        self._rows: dict[bytes, bytes] = {}
        self._sequence = store.tables[table].sequence
        self._seen: set[int] = {store.position}

    @property
    def has_partial_moves(self) -> bool:
        return any(
            action is INSERT and line[:1] == b"\x01"
            for _, steps in self._history.transactions
            for action, _, line in steps
        )

    def look(self) -> None:
        """Entries are true for the rows before them, and make the rows that there are."""
        reader = self._store.reader()
        entries = journal_of(reader, self._table, self._sequence)
        self._rows = fold(entries, self._rows)
        self._sequence += len(entries)
        assert state_of(reader, self._table) == self._rows
        view = reader.table_by_id(self._table)
        assert view.rows == len(self._rows)
        if view.out_of_order:
            assert view.position == view.record.disorders[-1].start
        else:
            assert view.position == self._store.position
            assert self._rows == self._history.states[view.position]
        self._seen.add(view.position)
        for record in reader.journal(self._table, view.oldest_sequence - 1, 1 << 30):
            within = any(each.holds(record.first_sequence) for each in view.record.disorders)
            assert record.out_of_order == within

    def check_resumed(self) -> None:
        """Whoever has the rows of a position, of here or of elsewhere, gets level with them."""
        reader = self._store.reader()
        view = reader.table_by_id(self._table)
        led = 0
        for position, rows in self._history.states.items():
            if view.leads_on_from(position):
                first = reader.sequence_after_position(self._table, position)
                entries = journal_of(reader, self._table, first - 1)
                assert _loosely(entries, rows) == self._rows
                led += 1
        assert all(view.leads_on_from(position) for position in self._seen)
        assert led >= len(self._seen)


def _loosely(
    entries: list[tuple[int, int, Change]], rows: dict[bytes, bytes]
) -> dict[bytes, bytes]:
    """As a client applies what it may have seen in part."""
    found = dict(rows)
    for _, _, (action, key, _, new) in entries:
        if action is Action.TRUNCATE:
            found.clear()
        elif new is None:
            found.pop(key, None)
        else:
            found[key] = new
    return found
