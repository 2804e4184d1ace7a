"""One small table for the store's tests, and how to read a store back whole."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.rows import TableChanges
from laredo_fanout.store.transaction import Transaction
from laredo_fanout.store.writer import Store
from laredo_model import line as line_
from laredo_model.column import Column
from laredo_model.line import Action, Change

COLUMNS = (
    Column("id", "text", nullable=False, ordinal=1, key_ordinal=1),
    Column("v", "text", ordinal=2),
    Column("big", "text", ordinal=3),
)
NAMES = ("id", "v", "big")
SIZE = 512 << 20
INSERT, UPDATE, DELETE, TRUNCATE = Action


def row(key: str, v: object, big: object = "b") -> bytes:
    """A whole row's line."""
    return line_.join(NAMES, [f'"{key}"'.encode(), f'"{v}"'.encode(), f'"{big}"'.encode()])


def partial(key: str, v: object) -> bytes:
    """A row whose column ``big`` the stream didn't send."""
    values = [f'"{key}"'.encode(), f'"{v}"'.encode(), line_.MISSING]
    return line_.PARTIAL + line_.join(NAMES, values)


Step = tuple[Action, str, bytes]


def insert(key: str, v: object, big: object = "b") -> Step:
    return INSERT, key, row(key, v, big)


def update(key: str, v: object, big: object = "b") -> Step:
    return UPDATE, key, row(key, v, big)


def delete(key: str) -> Step:
    return DELETE, key, b""


TRUNCATION: Step = (TRUNCATE, "", b"")


def changes(
    *transactions: tuple[int, Sequence[Step]], is_open: bool = False, time_us: int = 0
) -> TableChanges:
    """Transactions as (position, steps); their commit time is the position unless given."""
    made = TableChanges(open=is_open)
    for position, steps in transactions:
        for action, key, line in steps:
            made.actions.append(action)
            made.keys.append(key.encode())
            made.lines.append(line)
        made.counts.append(len(steps))
        made.positions.append(position)
        made.times_us.append(time_us or position)
    return made


def open_store(path: Path, max_size: int = SIZE) -> Store:
    return Store.open(path, max_size=max_size)


def live_table(store: Store, name: str = "users", position: int = 0) -> int:
    """An empty table that is live from ``position`` on; its id."""
    with store.transaction() as transaction:
        record = transaction.add_table("public", name, 1, COLUMNS)
        transaction.publish(record.id, position, 0)
        transaction.set_position(max(position, store.position), 0)
    return record.id


def commit(store: Store, table_id: int, *transactions: tuple[int, Sequence[Step]]) -> None:
    """Apply these and advance the position to the last."""
    with store.transaction() as transaction:
        apply(transaction, table_id, *transactions)


def apply(
    transaction: Transaction, table_id: int, *transactions: tuple[int, Sequence[Step]]
) -> None:
    transaction.apply(table_id, changes(*transactions))
    transaction.set_position(transactions[-1][0], 0)


def state_of(reader: StoreReader, table_id: int) -> dict[bytes, bytes]:
    """All rows."""
    with reader.snapshot(table_id) as snapshot:
        return {
            key: line
            for keys, lines in snapshot.batches(7)
            for key, line in zip(keys, lines, strict=True)
        }


def journal_of(
    reader: StoreReader, table_id: int, after: int | None = None, max_bytes: int = 1 << 30
) -> list[tuple[int, int, Change]]:
    """Every entry after a sequence (default: all kept ones), as (sequence, position, change)."""
    view = reader.table_by_id(table_id)
    after = view.oldest_sequence - 1 if after is None else after
    entries = []
    while records := reader.journal(table_id, after, max_bytes):
        for record in records:
            batch = record.decode()
            assert batch.first_sequence == record.first_sequence == after + 1
            positions = [
                position
                for count, position in zip(batch.counts, batch.positions, strict=True)
                for _ in range(count)
            ]
            assert len(positions) == len(record)
            columns = zip(
                batch.actions, batch.keys, batch.old_lines, batch.lines, positions, strict=True
            )
            for index, (action, key, old, new, position) in enumerate(columns):
                change = Change(Action(action), key, old or None, new or None)
                entries.append((record.first_sequence + index, position, change))
            after = record.last_sequence
    return entries


def fold(
    entries: Iterable[tuple[int, int, Change]], state: dict[bytes, bytes]
) -> dict[bytes, bytes]:
    """Apply entries to ``state``; fail if an entry doesn't fit it."""
    state = dict(state)
    for _, _, (action, key, old, new) in entries:
        if action is TRUNCATE:
            assert (key, old, new) == (b"", None, None)
            state.clear()
            continue
        assert state.get(key) == old
        assert (old is None) == (action is INSERT)
        assert (new is None) == (action is DELETE)
        if new is None:
            del state[key]
        else:
            state[key] = new
    return state
