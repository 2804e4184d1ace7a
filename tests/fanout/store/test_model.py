"""The store against a dict: whatever is done to it, rows, journal and look-ups agree."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from laredo_fanout.store.reader import Snapshot
from laredo_model.line import Change
from tests.support.drawn import examples
from tests.support.server.store_sample import (
    DELETE,
    INSERT,
    TRUNCATE,
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
    state_of,
    update,
)

LONG = "k" * 500
KEYS = st.sampled_from(["", "a", "b", "c", "ä", "a" * 480, "a" * 481, LONG + "1", LONG + "2"])
VALUES = st.integers(0, 3)
FILLERS = st.sampled_from(["", "toast", "y" * 3000])
STEPS = st.one_of(
    st.builds(insert, KEYS, VALUES, FILLERS),
    st.builds(update, KEYS, VALUES, FILLERS),
    st.builds(delete, KEYS),
    st.builds(lambda key, value: (UPDATE, key, partial(key, value)), KEYS, VALUES),
    st.just(TRUNCATION),
)
TRANSACTIONS = st.lists(st.lists(STEPS, min_size=1, max_size=6), min_size=1, max_size=4)


class Modelled:
    """Expected content of one table."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.entries: list[tuple[int, Change]] = []
        self.pruned = 0
        self.floor = 0

    def possible(self, step: Step) -> bool:
        """PostgreSQL updates only what is there; a partial line of an unknown row can't be."""
        action, key, line = step
        return action is not UPDATE or line[:1] != b"\x01" or key.encode() in self.rows

    def take(self, position: int, step: Step) -> None:
        action, name, line = step
        key = name.encode()
        old = self.rows.get(key)
        if action is TRUNCATE:
            self.rows.clear()
            self.entries.append((position, Change(TRUNCATE, b"", None, None)))
        elif action is DELETE:
            if self.rows.pop(key, None) is not None:
                self.entries.append((position, Change(DELETE, key, old, None)))
        else:
            if line[:1] == b"\x01":
                assert old is not None
                line = line[1:].replace(b"\x02", old[old.index(b'"big":') + 6 : -1])
            self.rows[key] = line
            made = INSERT if old is None else UPDATE
            self.entries.append((position, Change(made, key, old, line)))


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.store = open_store(self.path)
        self.tables = {live_table(self.store, name): Modelled() for name in ("one", "two")}
        self.first = {table: self.store.tables[table].sequence + 1 for table in self.tables}
        self.position = 0
        self.snapshots: list[tuple[Snapshot, dict[bytes, bytes], int, int]] = []

    @rule(
        which=st.integers(0, 1),
        transactions=TRANSACTIONS,
        cut=st.integers(0, 5),
        commit=st.booleans(),
    )
    def apply(self, which: int, transactions: list[list[Step]], cut: int, commit: bool) -> None:
        table = list(self.tables)[which]
        modelled = self.tables[table]
        before = dict(modelled.rows), list(modelled.entries)
        position = self.position
        try:
            together = []
            with self.store.transaction() as transaction:
                for steps in transactions:
                    position += 10
                    done = []
                    for step in steps:
                        if modelled.possible(step):
                            modelled.take(position, step)
                            done.append(step)
                    if cut == 0 and done:
                        together.append((position, done))
                        continue
                    if cut < len(done):
                        piece = changes((position, done[:cut]), is_open=True)
                        transaction.apply(table, piece)
                        done = done[cut:]
                    if done:
                        transaction.apply(table, changes((position, done)))
                if together:
                    transaction.apply(table, changes(*together))
                transaction.set_position(position, position)
                if not commit:
                    raise Abandoned
            self.position = position
        except Abandoned:
            modelled.rows, modelled.entries = before

    @rule(which=st.integers(0, 1), keep=st.integers(0, 12), pin=st.none() | st.integers(0, 30))
    def prune(self, which: int, keep: int, pin: int | None) -> None:
        table = list(self.tables)[which]
        modelled = self.tables[table]
        pinned = None if pin is None else self.first[table] - 1 + pin
        pruned = self.store.prune(table, keep, 1e12, 0, pinned)
        entries = modelled.entries
        limit = len(entries) if pin is None else pin
        cut = modelled.pruned
        for index, (position, _) in enumerate(entries):
            ends = index + 1 < len(entries) and entries[index + 1][0] != position
            start = next(i for i, entry in enumerate(entries) if entry[0] == position)
            if start < len(entries) - keep and ends and index < limit:
                cut = max(cut, index + 1)
        assert pruned == cut - modelled.pruned
        if cut > modelled.pruned:
            modelled.floor = entries[cut - 1][0]
        modelled.pruned = cut

    @rule()
    def restart(self) -> None:
        self.let_snapshots_go()
        self.store.close()
        self.store = open_store(self.path)
        assert self.store.position == self.position

    @rule(limit=st.integers(1, 20))
    def reclaim(self, limit: int) -> None:
        self.store.reclaim(limit)

    @precondition(lambda self: len(self.snapshots) < 3)
    @rule(which=st.integers(0, 1), size=st.integers(1, 4), spill=st.booleans())
    def take_snapshot(self, which: int, size: int, spill: bool) -> None:
        table = list(self.tables)[which]
        snapshot = self.store.reader().snapshot(table)
        assert snapshot.position == self.position
        assert snapshot.rows == len(self.tables[table].rows)
        if spill:
            snapshot.spill()
        self.snapshots.append((snapshot, dict(self.tables[table].rows), size, table))

    @precondition(lambda self: self.snapshots)
    @rule(spill=st.booleans())
    def finish_snapshot(self, spill: bool) -> None:
        snapshot, expected, size, table = self.snapshots.pop(0)
        batches = snapshot.batches(size)
        found = dict(zip(*next(batches, ([], [])), strict=True))
        if spill:
            snapshot.spill()
        for keys, lines in batches:
            found |= zip(keys, lines, strict=True)
        assert found == expected
        if snapshot.sequence + 1 >= self.store.tables[table].oldest_sequence:
            later = journal_of(self.store.reader(), table, snapshot.sequence)
            assert fold(later, expected) == self.tables[table].rows
        snapshot.close()

    def let_snapshots_go(self) -> None:
        for snapshot, *_ in self.snapshots:
            snapshot.close()
        self.snapshots.clear()

    @invariant()
    def rows_and_journal_agree(self) -> None:
        reader = self.store.reader()
        for table, modelled in self.tables.items():
            view = reader.table_by_id(table)
            assert state_of(reader, table) == modelled.rows
            assert view.rows == len(modelled.rows)
            first = self.first[table]
            kept = modelled.entries[modelled.pruned :]
            assert journal_of(reader, table) == [
                (first + modelled.pruned + index, *entry) for index, entry in enumerate(kept)
            ]
            assert view.entries == len(kept)
            assert view.floor == modelled.floor
            for position in {at + off for at, _ in kept for off in (-1, 0, 1)}:
                beyond = [i for i, (at, _) in enumerate(modelled.entries) if at > position]
                found = max([min(beyond, default=len(modelled.entries)), modelled.pruned])
                assert reader.sequence_after_position(table, position) == first + found

    def teardown(self) -> None:
        self.let_snapshots_go()
        self.store.close()
        shutil.rmtree(self.path)


class Abandoned(Exception):
    """A transaction that is given up."""


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=examples(60), stateful_step_count=25)
