"""Changes out of commit order: whatever comes before its turn, in the end it is as if it hadn't."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laredo_fanout.store.errors import RowIncomplete
from laredo_fanout.store.table import Status
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


class Steps:
    """One row's changes, given one by one; the table is right when all have come."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._base = store.reach
        self.table = live_table(store, "users", self._base)
        with store.transaction() as transaction:
            made = changes((self._base + 1, [insert("a", 1, 1)]))
            transaction.apply(self.table, made)
            transaction.set_position(self._base + 1, 0)

    def early(self, position: int, *steps: Step) -> None:
        with self._store.transaction() as transaction:
            made = changes((self._base + position, steps))
            assert transaction.fits_early(self.table, made)
            transaction.apply_early(self.table, made)

    def in_turn(self, position: int, *steps: Step) -> None:
        with self._store.transaction() as transaction:
            transaction.apply(self.table, changes((self._base + position, steps)))
            transaction.set_position(self._base + position, 0)

    def come(self, position: int) -> dict[bytes, bytes]:
        """All has come; the rows."""
        with self._store.transaction() as transaction:
            transaction.set_position(self._base + position, 0)
        record = self._store.tables[self.table]
        assert record.disorder is None and record.disorders
        return state_of(self._store.reader(), self.table)


def _unsent(key: str, value: int) -> Step:
    return UPDATE, key, partial(key, value)


def test_borrowed_column_is_put_right_by_what_it_skipped(store: Store) -> None:
    steps = Steps(store)
    steps.early(20, _unsent("a", 20))
    steps.early(30, _unsent("a", 30))
    steps.in_turn(10, update("a", 10, 10))
    assert steps.come(30) == {b"a": row("a", 30, 10)}


def test_borrowed_column_takes_the_newest_of_what_it_skipped(store: Store) -> None:
    steps = Steps(store)
    steps.early(30, _unsent("a", 30))
    steps.early(20, update("a", 20, 20))
    steps.in_turn(10, update("a", 10, 10))
    assert steps.come(30) == {b"a": row("a", 30, 20)}


def test_borrowed_column_stays_as_later_changes_of_its_part_had_it(store: Store) -> None:
    steps = Steps(store)
    steps.early(20, update("a", 20, 20))
    steps.early(30, _unsent("a", 30))
    steps.in_turn(10, update("a", 10, 10))
    assert steps.come(30) == {b"a": row("a", 30, 20)}


def test_row_that_is_to_come_keeps_its_columns(store: Store) -> None:
    """It was deleted and inserted again before the update that came early."""
    steps = Steps(store)
    steps.early(30, _unsent("a", 30))
    steps.in_turn(10, delete("a"))
    steps.in_turn(20, insert("a", 20, 20))
    assert steps.come(30) == {b"a": row("a", 30, 20)}


def test_row_without_columns_to_borrow_must_wait(store: Store) -> None:
    steps = Steps(store)
    # It goes before "a" moves to its place, which is still to come.
    steps.in_turn(5, insert("gone", 5))
    with store.transaction() as transaction:
        for transactions in (
            [(40, [_unsent("b", 1)])],
            [(40, [delete("a"), _unsent("a", 1)])],
            [(40, [delete("a"), (INSERT, "b", partial("b", 1))])],
            [(40, [delete("a"), (INSERT, "gone", partial("gone", 1))])],
            [(40, [insert("b", 1)]), (50, [delete("b")]), (60, [_unsent("b", 1)])],
            [(40, [TRUNCATION])],
        ):
            assert not transaction.fits_early(steps.table, changes(*transactions))
        late = changes((40, [insert("b", 1)]), (50, [_unsent("b", 1)]))
        assert transaction.fits_early(steps.table, late)


def test_truncate_leaves_what_later_transactions_wrote(store: Store) -> None:
    steps = Steps(store)
    steps.early(30, insert("b", 30), insert("c", 30), insert(LONG, 30))
    steps.early(40, delete("c"))
    steps.in_turn(20, insert("d", 20), TRUNCATION, insert("c", 20), insert("e", 20))
    assert steps.come(40) == {
        key.encode(): row(key, value) for key, value in (("b", 30), ("e", 20), (LONG, 30))
    }


def test_truncate_empties_what_came_early_before_it(store: Store) -> None:
    steps = Steps(store)
    steps.early(20, insert("b", 20))
    steps.early(50, insert("c", 50))
    steps.in_turn(10, insert("d", 10))
    steps.in_turn(30, TRUNCATION)
    assert steps.come(50) == {b"c": row("c", 50)}


def test_many_rows_survive_a_truncate(store: Store) -> None:
    steps = Steps(store)
    keys = [f"k{number}" for number in range(2500)]
    steps.early(30, *(insert(key, 30) for key in keys))
    first = store.tables[steps.table].sequence + 1
    steps.in_turn(20, TRUNCATION, insert("e", 20))
    rows = {key.encode(): row(key, 30) for key in keys} | {b"e": row("e", 20)}
    assert steps.come(30) == rows
    reader = store.reader()
    records = reader.journal(steps.table, first - 1, 1 << 30)
    assert [record.open for record in records] == [True] * (len(records) - 1) + [False]
    assert {record.first_position for record in records} == {records[0].last_position}


def test_pruned_within_it_the_journal_begins_behind_all_that_went(store: Store) -> None:
    steps = Steps(store)
    steps.early(40, insert("b", 40))
    steps.in_turn(20, insert("c", 20))
    steps.in_turn(30, insert("d", 30))
    steps.come(40)
    for kept in (2, 1):
        store.prune(steps.table, kept, 1e12, 0)
        assert store.tables[steps.table].floor == store.position
    record = store.tables[steps.table]
    assert record.entries == 1
    assert not store.reader().table_by_id(steps.table).leads_on_from(store.position - 10)


def test_who_was_before_it_gets_all_of_it(store: Store) -> None:
    """By positions alone the entry that came second would be the first."""
    steps = Steps(store)
    before = store.position
    with store.transaction() as transaction:
        transaction.set_position(before + 5, 0)
    first = store.tables[steps.table].sequence + 1
    steps.early(30, insert("b", 30))
    steps.in_turn(20, insert("c", 20))
    steps.come(30)
    for position in range(before, before + 6):
        assert store.reader().sequence_after_position(steps.table, position) == first


def test_what_came_in_the_same_commit_before_it_is_before_it(store: Store) -> None:
    steps = Steps(store)
    before = store.position
    first = store.tables[steps.table].sequence + 1
    with store.transaction() as transaction:
        transaction.apply(steps.table, changes((before + 10, [insert("b", 10)])))
        transaction.apply_early(steps.table, changes((before + 30, [insert("c", 30)])))
    steps.come(40)
    assert store.reader().sequence_after_position(steps.table, before) == first


def test_row_that_moves_in_its_turn_takes_its_columns_along(store: Store) -> None:
    steps = Steps(store)
    steps.early(30, insert("z", 30))
    steps.in_turn(10, delete("a"), (INSERT, "b", partial("b", 10)))
    assert steps.come(30) == {b"b": row("b", 10, 1), b"z": row("z", 30)}


def test_closed_table_stays_at_no_position(store: Store) -> None:
    steps = Steps(store)
    steps.early(30, insert("b", 30))
    record = store.tables[steps.table]
    with store.transaction() as transaction:
        closed = replace(record, status=Status.CLOSED, closed_at=store.position)
        transaction.put_table(closed)
        transaction.set_position(store.position + 100, 0)
    assert store.reach == store.position
    view = store.reader().table_by_id(steps.table)
    assert view.out_of_order
    assert view.position == record.disorders[-1].start


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
            assert record.decode().out_of_order == within

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
