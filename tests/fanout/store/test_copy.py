"""Copy while streaming, against a PostgreSQL in miniature: at the barrier the rows are its rows.

Chunks are read at any time and written at any later time, the stream lags by
any amount, rows move between keys, unchanged big columns aren't sent, the table
is truncated: whatever the order, the barrier finds the state exact.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from laredo_fanout.store.environment import LONGEST_KEY
from laredo_fanout.store.errors import ChunkStale
from laredo_fanout.store.writer import Store
from tests.support.drawn import examples
from tests.support.server.store_sample import (
    COLUMNS,
    INSERT,
    TRUNCATION,
    UPDATE,
    Step,
    changes,
    delete,
    fold,
    insert,
    journal_of,
    open_store,
    partial,
    row,
    state_of,
    update,
)

LONG = "k" * 600
KEYS = ["", "k1", "k2", "x" * LONGEST_KEY, LONG, LONG + "1", "ü" * 400, "k7"]
CHUNKS = [KEYS[:3], KEYS[3:5], KEYS[5:]]
KEY = st.sampled_from(KEYS)
WRITE = st.one_of(
    st.tuples(st.just("put"), KEY, st.booleans()),
    st.tuples(st.just("put"), KEY, st.booleans()),
    st.tuples(st.just("delete"), KEY),
    st.tuples(st.just("move"), KEY, KEY),
    st.tuples(st.just("truncate")),
)
HAPPENING = st.one_of(
    st.tuples(st.just("commit"), st.lists(WRITE, min_size=1, max_size=4)),
    st.tuples(st.just("commit"), st.lists(WRITE, min_size=1, max_size=4)),
    st.tuples(st.just("stream"), st.integers(1, 3)),
    st.tuples(st.just("read"), st.integers(0, 2)),
    st.tuples(st.just("write"), st.integers(0, 5)),
    st.tuples(st.just("restart")),
)


@dataclass
class Postgres:
    """A table, and the stream of what was done to it."""

    rows: dict[str, tuple[int, str]] = field(default_factory=dict)
    stream: list[tuple[int, list[Step]]] = field(default_factory=list)
    clock: int = 0

    def commit(self, writes: list[tuple[object, ...]]) -> None:
        steps: list[Step] = []
        for kind, *arguments in writes:
            self.clock += 1
            steps += getattr(self, kind)(*arguments)
        self.clock += 1
        if steps:
            self.stream.append((self.clock, steps))

    def put(self, key: str, new_big: bool) -> list[Step]:
        old = self.rows.get(key)
        big = f"big{self.clock}" if new_big or old is None else old[1]
        self.rows[key] = self.clock, big
        if old is None:
            return [insert(key, self.clock, big)]
        return (
            [update(key, self.clock, big)] if new_big else [(UPDATE, key, partial(key, self.clock))]
        )

    def delete(self, key: str) -> list[Step]:
        return [delete(key)] if self.rows.pop(key, None) else []

    def move(self, old: str, new: str) -> list[Step]:
        if old not in self.rows or new in self.rows:
            return []
        self.rows[new] = self.clock, self.rows.pop(old)[1]
        return [delete(old), (INSERT, new, partial(new, self.clock))]

    def truncate(self) -> list[Step]:
        self.rows.clear()
        return [TRUNCATION]

    def read(self, keys: list[str]) -> list[str]:
        return [key for key in keys if key in self.rows]


class Copy:
    """Model of the source, which writes to the store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = open_store(path)
        with self.store.transaction() as transaction:
            self.table = transaction.add_table("public", "users", 1, COLUMNS).id
        self.postgres = Postgres()
        self.streamed = 0
        self.chunks: list[tuple[int, list[bytes], list[bytes]]] = []
        self.unread = list(CHUNKS)

    def commit(self, writes: list[tuple[object, ...]]) -> None:
        self.postgres.commit(writes)

    def stream(self, transactions: int) -> None:
        part = self.postgres.stream[self.streamed : self.streamed + transactions]
        self.streamed += len(part)
        if part:
            with self.store.transaction() as transaction:
                transaction.apply(self.table, changes(*part))
                transaction.set_position(part[-1][0], 0)

    def read(self, which: int) -> None:
        if self.unread:
            keys = self.unread.pop(which % len(self.unread))
            generation = self.store.tables[self.table].generation
            self.chunks.append((generation, *self.lines(keys)))

    def lines(self, keys: list[str]) -> tuple[list[bytes], list[bytes]]:
        found = self.postgres.read(keys)
        rows = self.postgres.rows
        return [key.encode() for key in found], [row(key, *rows[key]) for key in found]

    def write(self, which: int) -> None:
        if not self.chunks:
            return
        generation, keys, lines = self.chunks.pop(which % len(self.chunks))
        try:
            with self.store.transaction() as transaction:
                if keys:
                    transaction.fill(self.table, keys, lines, generation=generation)
        except ChunkStale:
            self.unread.append([key.decode() for key in keys])

    def restart(self) -> None:
        self.store.close()
        self.store = open_store(self.path)

    def finish(self) -> None:
        """Every chunk, then what is still missing, then the barrier."""
        while self.unread or self.chunks:
            self.read(0)
            self.write(0)
        self.stream(10**9)
        with self.store.transaction() as transaction:
            missing = [key.decode() for key in transaction.partial_keys(self.table)]
        keys, lines = self.lines(missing)
        with self.store.transaction() as transaction:
            if keys:
                transaction.fill(self.table, keys, lines)
            transaction.publish(self.table, self.postgres.clock + 1, 0)
            transaction.set_position(self.postgres.clock + 1, 0)


def expected(postgres: Postgres) -> dict[bytes, bytes]:
    return {key.encode(): row(key, *values) for key, values in postgres.rows.items()}


def marks_left(store: Store) -> int:
    with store._environment.begin() as transaction:
        left: int = transaction.stat(store._databases.marks)["entries"]
    return left


@given(
    before=st.lists(WRITE, max_size=10),
    happenings=st.lists(HAPPENING, max_size=25),
    after=st.lists(st.lists(WRITE, min_size=1, max_size=4), max_size=5),
)
@example(  # a chunk that was read after both was written before either was streamed
    before=[("put", "k1", False)],
    happenings=[("commit", [("move", "k1", "k2"), ("put", "k1", False)])],
    after=[],
)
@settings(max_examples=examples(100))
def test_the_barrier_finds_the_state_exact(
    before: list[tuple[object, ...]],
    happenings: list[tuple[object, ...]],
    after: list[list[tuple[object, ...]]],
) -> None:
    path = Path(tempfile.mkdtemp())
    copy = Copy(path)
    try:
        copy.commit(before)
        copy.streamed = len(copy.postgres.stream)  # from before the table was published
        for kind, *arguments in happenings:
            getattr(copy, str(kind))(*arguments)
        copy.finish()
        reader = copy.store.reader()
        at_barrier = expected(copy.postgres)
        assert state_of(reader, copy.table) == at_barrier
        assert copy.store.tables[copy.table].rows == len(at_barrier)
        while copy.store.reclaim():
            pass
        assert marks_left(copy.store) == 0

        for writes in after:
            copy.commit(writes)
        copy.stream(10**9)
        assert state_of(reader, copy.table) == expected(copy.postgres)
        entries = journal_of(reader, copy.table)
        assert fold(entries, at_barrier) == expected(copy.postgres)
        assert len(entries) == sum(
            len(steps)
            for at, steps in copy.postgres.stream
            if at > reader.table_by_id(copy.table).floor
        )
    finally:
        copy.store.close()
        shutil.rmtree(path)
