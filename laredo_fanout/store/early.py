"""Changes out of commit order: the last position wins, key by key and column by column.

While a backlog is released as it is decoded, a later part's changes are applied *early*: others
that were committed before them are still to come. A mark tells the position of each row that was
changed early. What comes for such a row and is older has no effect any more, with one exception.
An update without its unchanged TOAST values (a partial line) wins only the columns that it has;
the others are borrowed from the row that is there, and a change that is older than the update and
not older than what is borrowed puts them right. A delete needn't: whoever updates the row after it
found it inserted again, and that change is still to come, or has come.

What comes in its turn needs no mark: whatever is to come is later. When everything has come, each
row has what its last change made of it, and each column of that the last change that had it.

A TRUNCATE comes in its turn only. Rows that were changed by later transactions stay: they are
inserted again after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from laredo_fanout.store import layout
from laredo_fanout.store.errors import RowIncomplete
from laredo_model import line as line_
from laredo_model.change import Action

if TYPE_CHECKING:
    from laredo_fanout.store.changes import TableChanges
    from laredo_fanout.store.disk import Reserve
    from laredo_fanout.store.environment import Databases

_POSITION = Struct(">Q")


class Mark(NamedTuple):
    """The row's last change that came is at ``position``. ``borrowed``: columns (JSON strings)
    that it didn't have, each with the position of the change that they are from."""

    position: int
    borrowed: dict[bytes, int]

    def to_bytes(self) -> bytes:
        """As it is stored."""
        position = _POSITION.pack(self.position)
        if not self.borrowed:
            return position
        named = {name.decode(): since for name, since in self.borrowed.items()}
        return position + orjson.dumps(named)


def _from_bytes(stored: bytes) -> Mark:
    (position,) = _POSITION.unpack_from(stored)
    borrowed = orjson.loads(stored[_POSITION.size :]) if len(stored) > _POSITION.size else {}
    return Mark(position, {name.encode(): since for name, since in borrowed.items()})


class Effect(NamedTuple):
    """What a change did: an action as the journal has it, and the rows before and after."""

    action: Action
    line: bytes
    old: bytes


class Survivor(NamedTuple):
    """A row that a TRUNCATE doesn't concern: where it lies (without the space), and its line."""

    stored: bytes
    line: bytes


class EarlyRows:
    """The rows of one table that is out of order, within one write transaction.

    Rows lie in ``space``, marks in ``marks``.
    """

    def __init__(
        self,
        transaction: Any,
        databases: Databases,
        reserve: Reserve,
        table: str,
        *,
        space: int,
        marks: int,
    ) -> None:
        self._table = table
        self._reserve = reserve
        self._space, self._marks_space = layout.prefix(space), layout.prefix(marks)
        self._state = transaction.cursor(db=databases.state)
        self._marks = transaction.cursor(db=databases.marks)
        self._last_deleted: bytes | None = None

    def take(
        self, action: int, key: bytes, line: bytes, position: int, *, early: bool
    ) -> Effect | None:
        """One change, an upsert or a delete; None if it had no effect.

        :raises RowIncomplete: if the row would miss columns.
        """
        self._reserve(2, 2 * len(key) + len(line))
        stored = layout.stored_key(self._space, key)
        place = self._marks_space + stored[layout.PREFIX_BYTES :]
        mark = self._mark(place)
        moved, self._last_deleted = self._last_deleted, None
        # What comes in its turn may have come early itself, where the plan was given up since.
        newest = position if early else position - 1
        if mark is not None and mark.position > newest:
            if action == Action.DELETE:
                return None
            return self._put_right(stored, place, mark, line, position)
        if action == Action.DELETE:
            old = self._state.pop(stored)
            self._last_deleted = old
            self._set_mark(place, mark, Mark(position, {}) if early else None)
            return None if old is None else Effect(Action.DELETE, b"", old)
        borrowed: dict[bytes, int] = {}
        if line_.is_partial(line):
            if moved is not None and action == Action.INSERT and not early:
                line = line_.fill(line, moved)
            old = self._value(stored)
            if old is not None and line_.is_partial(line):
                borrowed = _borrowed(line, mark)
                line = line_.fill(line, old)
            if line_.is_partial(line):
                raise RowIncomplete(self._table, key)
            self._reserve(1, len(line) + 50 * len(borrowed))
        old = self._state.replace(stored, line)
        self._set_mark(place, mark, Mark(position, borrowed) if early else None)
        return Effect(Action.UPDATE if old else Action.INSERT, line, old or b"")

    def fits(self, changes: TableChanges) -> bool:
        """Whether all of these whole transactions may be applied early: whether for each row that
        lacks columns there is one to borrow them from."""
        there: dict[bytes, bool] = {}
        at = 0
        for count, position in zip(changes.counts, changes.positions, strict=True):
            for index in range(at, at + count):
                action, key, line = (
                    changes.actions[index],
                    changes.keys[index],
                    changes.lines[index],
                )
                if action == Action.TRUNCATE:
                    return False
                if line_.is_partial(line) and not self._may_borrow(action, key, position, there):
                    return False
                there[key] = action != Action.DELETE
            at += count
        return True

    def survivors(self, position: int, into: EarlyRows, step: int) -> Iterator[list[Survivor]]:
        """Move what a TRUNCATE at ``position`` doesn't concern, a few rows at a time."""
        after = self._marks_space
        while True:
            found = list(islice(self._marks_from(after), step))
            kept = [(place, mark) for place, mark in found if mark.position > position]
            yield [
                Survivor(stored, line)
                for place, mark in kept
                for stored, line in into._keep(place, mark, self._line_at(place))
            ]
            if len(found) < step:
                return
            after = found[-1][0] + b"\0"

    def _keep(self, place: bytes, mark: Mark, line: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        stored = place[layout.PREFIX_BYTES :]
        self._reserve(2, 2 * len(stored) + len(line or b"") + 50 * len(mark.borrowed))
        self._marks.put(self._marks_space + stored, mark.to_bytes())
        if line is not None:
            self._state.put(self._space + stored, line)
            yield stored, line

    def _line_at(self, place: bytes) -> bytes | None:
        return self._value(self._space + place[layout.PREFIX_BYTES :])

    def _marks_from(self, place: bytes) -> Iterator[tuple[bytes, Mark]]:
        found = self._marks.set_range(place)
        while found and self._marks.key().startswith(self._marks_space):
            yield self._marks.key(), _from_bytes(self._marks.value())
            found = self._marks.next()

    def _may_borrow(self, action: int, key: bytes, position: int, there: dict[bytes, bool]) -> bool:
        if action == Action.INSERT:
            # Of a row that moved here, as it was in its turn.
            return False
        if key in there:
            return there[key]
        stored = layout.stored_key(self._space, key)
        mark = self._mark(self._marks_space + stored[layout.PREFIX_BYTES :])
        return (mark is not None and mark.position > position) or self._value(stored) is not None

    def _put_right(
        self, stored: bytes, place: bytes, mark: Mark, line: bytes, position: int
    ) -> Effect | None:
        """An older change than the row has: it is for the columns that are from an even older."""
        late = {name for name, since in mark.borrowed.items() if since <= position}
        if not late:
            return None
        values = {
            name: value
            for name, value in line_.items(line)
            if name in late and value != line_.MISSING
        }
        old = self._value(stored)
        assert old is not None, "a row that borrowed is there"
        new = line_.replaced(old, values)
        self._reserve(1, len(new))
        self._state.put(stored, new)
        since = {**mark.borrowed, **dict.fromkeys(values, position)}
        self._set_mark(place, mark, mark._replace(borrowed=since))
        return None if new == old else Effect(Action.UPDATE, new, old)

    def _set_mark(self, place: bytes, before: Mark | None, now: Mark | None) -> None:
        if now is not None:
            self._marks.put(place, now.to_bytes())
        elif before is not None:
            self._marks.pop(place)

    def _mark(self, place: bytes) -> Mark | None:
        return _from_bytes(self._marks.value()) if self._marks.set_key(place) else None

    def _value(self, stored: bytes) -> bytes | None:
        return self._state.value() if self._state.set_key(stored) else None


def _borrowed(line: bytes, mark: Mark | None) -> dict[bytes, int]:
    """The columns that this partial line lacks, and since when the row there has its values."""
    before, of = (0, {}) if mark is None else (mark.position, mark.borrowed)
    missing = [name for name, value in line_.items(line) if value == line_.MISSING]
    return {name: of.get(name, before) for name in missing}
