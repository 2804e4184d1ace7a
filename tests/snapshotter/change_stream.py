"""Random transactions for the change buffer, and what its net changes must be."""

import random

from laredo_model.checksum import StateChecksum
from laredo_model.line import Action
from laredo_snapshotter.diff.buffer import ChangeBuffer, FrozenBuffer

State = dict[bytes, bytes]

Row = tuple[int, bytes, bytes, bytes]


class Stream:
    """Random transactions on a plain dict, as a server would send them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state: State = {}
        self.position = 100

    def row(self) -> bytes:
        return b'{"v":%d}' % self.random.randrange(4)

    def change(self) -> Row:
        if self.random.random() < 0.03:
            self.state.clear()
            return (Action.TRUNCATE, b"", b"", b"")
        key = b"%d" % self.random.randrange(12)
        old = self.state.get(key)
        if old is None:
            self.state[key] = new = self.row()
            return (Action.INSERT, key, new, b"")
        if self.random.random() < 0.5:
            del self.state[key]
            return (Action.DELETE, key, b"", old)
        self.state[key] = new = self.row()
        return (Action.UPDATE, key, new, old)

    def transaction(self) -> tuple[int, list[Row]]:
        self.position += self.random.randrange(1, 5)
        return self.position, [self.change() for _ in range(self.random.randrange(1, 20))]


EMPTY = 0, StateChecksum().hex()
"""Rows and checksum of a table without rows."""


def state_of(state: State) -> tuple[int, str]:
    """Rows and checksum of the table."""
    checksum = StateChecksum()
    checksum.add(list(state.values()))
    return checksum.rows, checksum.hex()


def take(buffer: ChangeBuffer, rows: list[Row], position: int, *, ends: bool) -> None:
    buffer.take(
        bytes(row[0] for row in rows),
        [row[1] for row in rows],
        [row[2] for row in rows],
        [row[3] for row in rows],
        position=position,
        time_us=position * 10,
        ends=ends,
    )


def assert_leads(before: State, frozen: FrozenBuffer, after: State) -> None:
    """Folding ``frozen`` over ``before`` gives ``after``, by docs/archive-format.md, Formats."""
    outcome = frozen.measure(*state_of(before))
    state = {} if outcome.truncate or not before else dict(before)
    changes = list(frozen.changes())
    assert len(changes) == outcome.change_count
    keys = [change.key for change in changes]
    assert keys == sorted(set(keys))
    for action, key, old, new in changes:
        assert old != new
        assert state.get(key) == old
        if outcome.truncate:
            assert action is Action.INSERT
        expected = Action.INSERT if old is None else Action.DELETE if new is None else Action.UPDATE
        assert action is expected
        if new is None:
            del state[key]
        else:
            state[key] = new
    assert state == after
    assert (outcome.rows, outcome.checksum) == state_of(after)
    assert [*frozen.changes()] == changes, "a second reading differs"
    frozen.close()
