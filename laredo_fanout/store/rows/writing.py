"""Writing rows: changes of the stream, and copied rows where nothing is yet.

A live table has lines only. While it is copied it also has tombstones
(deleted by the stream; a copied row must not come back) and partial lines
(columns that the stream didn't send; a copied row fills them). Marks list both,
so that the barrier needn't scan the table. A mark may be stale; the value counts.
Further marks name the rows that the stream wrote whole. A copied row may be newer
than the stream's position, so it can't serve as the old row of a delete, nor as the
source of columns for the key that the row moved to.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from itertools import islice, repeat
from operator import itemgetter
from typing import NamedTuple

from laredo_fanout.store import layout
from laredo_fanout.store.errors import RowIncomplete
from laredo_fanout.store.write_context import WriteContext
from laredo_model import key as key_
from laredo_model import line as line_
from laredo_model.line import Action

_RUNS = re.compile(rb"[\x01\x02]+|\x03+|\x04", re.DOTALL)
_SORT_FROM = 32
_SLICE = 100
"""Rows written at a time: half a millisecond's, as a unix socket is full in little more."""
_SWEEP_STEP = 1000


class Run(NamedTuple):
    """Neighbouring changes of one kind: upserts, deletes, or a TRUNCATE."""

    start: int
    stop: int
    kind: Action


def runs(actions: bytes | bytearray) -> Iterator[Run]:
    """The changes, cut where deletes, upserts and TRUNCATEs meet."""
    for match in _RUNS.finditer(actions):
        first = actions[match.start()]
        kind = Action.UPDATE if first <= Action.UPDATE else Action(first)
        yield Run(match.start(), match.end(), kind)


class Rows:
    """The rows of one space, within one write transaction."""

    def __init__(self, context: WriteContext, table: str, space: int) -> None:
        self._table = table
        self._reserve = context.disk.reserve
        self._prefix = layout.prefix(space)
        self._state = context.transaction.cursor(db=context.databases.state)
        self._marks = context.transaction.cursor(db=context.databases.marks)
        self._last_deleted: bytes | None = None

    def upsert(
        self, actions: Sequence[int], keys: list[bytes], lines: list[bytes], *, live: bool
    ) -> Generator[None, None, tuple[list[bytes], list[bytes | None]]]:
        """Write new lines; stops after each slice.

        Returns the lines, whole ones as far as their missing columns are
        known, and what each replaced: None nothing, b"" a tombstone.

        :raises RowIncomplete: if a line of a live table stays partial.
        """
        stored = self._stored(keys, sum(map(len, lines)))
        if min(lines).startswith(line_.PARTIAL):
            lines, olds = self._fill_and_replace(actions, keys, stored, lines, live=live)
        else:
            olds = yield from self._replace(stored, lines)
            if not live:
                self._mark_streamed(stored)
        self._last_deleted = None
        return lines, olds

    def delete(self, keys: list[bytes]) -> list[bytes | None]:
        """Delete rows of a live table; returns what there was."""
        stored = self._stored(keys, 0)
        olds: list[bytes | None] = list(map(self._state.pop, stored))
        self._last_deleted = olds[-1]
        return olds

    def bury(self, keys: list[bytes]) -> list[bytes | None]:
        """Leave tombstones, in a table that is copied; returns what there was."""
        stored = self._stored(keys, 0)
        self._stored(keys, 0)  # room for their marks
        is_streamed = self._is_streamed(stored[-1])
        olds: list[bytes | None] = list(
            map(self._state.replace, stored, repeat(layout.TOMBSTONE, len(stored)))
        )
        for key in stored:
            self._marks.put(layout.mark_key(layout.TOMBSTONE_MARK, key), b"")
            self._marks.pop(layout.mark_key(layout.STREAMED_MARK, key))
        self._last_deleted = olds[-1] if is_streamed else None
        return olds

    def widest(self, keys: list[bytes]) -> int:
        """Bytes of the longest of these rows' lines; 0 if none of them is there."""
        stored = layout.stored_keys(self._prefix, keys)
        return max((len(self._value(key) or b"") for key in stored), default=0)

    def fill(self, keys: list[bytes], lines: list[bytes]) -> int:
        """Copied rows where nothing is yet, columns where they are missing; returns rows added."""
        stored = self._stored(keys, sum(map(len, lines)))
        pairs = sorted(zip(stored, lines, strict=True))
        _, added = self._state.putmulti(pairs, overwrite=False)
        if self.has_marks(layout.PARTIAL_MARK):
            for key, line in pairs:
                if self._marks.set_key(layout.mark_key(layout.PARTIAL_MARK, key)):
                    self._complete(key, line)
        return int(added)

    def numbered(self, digests: Sequence[bytes]) -> list[bytes]:
        """Keys for rows that are added to a table without a key, as ``key.numbered`` makes them.

        b"" is a TRUNCATE, after which numbers begin again. They count on from the rows that are
        there, so write these rows before asking again.
        """
        numbers: dict[bytes, int] = {}
        is_empty = False
        keys: list[bytes] = []
        for digest in digests:
            if not digest:
                is_empty = True
                numbers.clear()
                keys.append(b"")
                continue
            number = numbers.get(digest)
            if number is None:
                number = 0 if is_empty else self._highest_number(digest)
            numbers[digest] = number + 1
            keys.append(key_.numbered(digest, number + 1))
        return keys

    def _highest_number(self, digest: bytes) -> int:
        """Highest number of a row with this digest in a table without a key; 0 if there is none."""
        first = self._prefix + digest + b"-"
        beyond = self._prefix + digest + b"."
        found = self._state.prev() if self._state.set_range(beyond) else self._state.last()
        stored = self._state.key() if found else b""
        return key_.number_of(stored) if stored.startswith(first) else 0

    def has_marks(self, kind: bytes) -> bool:
        """True if any mark of this kind exists, stale ones included."""
        start = self._prefix + kind
        return bool(self._marks.set_range(start)) and self._marks.key().startswith(start)

    def partial_keys(self) -> Iterator[bytes]:
        """The keys of the rows that still miss columns."""
        start = self._prefix + layout.PARTIAL_MARK
        found = self._marks.set_range(start)
        while found and self._marks.key().startswith(start):
            value = self._value(layout.marked_key(self._marks.key()))
            if value and line_.is_partial(value):
                yield self._marks.value()
            found = self._marks.next()

    def sweep(self) -> int:
        """Drop tombstones and marks: the barrier has passed. Returns tombstones dropped."""
        dropped = marks = 0
        found = self._marks.set_range(self._prefix)
        while found and self._marks.key().startswith(self._prefix):
            if marks % _SWEEP_STEP == 0:
                self._reserve(2 * _SWEEP_STEP, 0)
            marks += 1
            stored = layout.marked_key(self._marks.key())
            if self._value(stored) == layout.TOMBSTONE:
                self._state.delete()
                dropped += 1
            found = self._marks.delete() and bool(self._marks.key())
        return dropped

    def _stored(self, keys: list[bytes], size: int) -> list[bytes]:
        """Stored keys of these rows, with room reserved for one change of each.

        The changes have ``size`` bytes in all.
        """
        self._reserve(len(keys), size + sum(map(len, keys)))
        return layout.stored_keys(self._prefix, keys)

    def _mark_streamed(self, stored: Sequence[bytes]) -> None:
        self._reserve(len(stored), sum(map(len, stored)))
        self._marks.putmulti([(layout.mark_key(layout.STREAMED_MARK, key), b"") for key in stored])

    def _is_streamed(self, stored: bytes) -> bool:
        return bool(self._marks.set_key(layout.mark_key(layout.STREAMED_MARK, stored)))

    def _value(self, stored: bytes) -> bytes | None:
        """The stored value, with the state cursor on it."""
        return self._state.value() if self._state.set_key(stored) else None

    def _replace(
        self, stored: list[bytes], lines: list[bytes]
    ) -> Generator[None, None, list[bytes | None]]:
        count = len(stored)
        if count < _SORT_FROM:
            return list(map(self._state.replace, stored, lines))
        # In key order neighbours share pages; sorting is stable, so that several
        # changes of one key stay in their order.
        order = sorted(range(count), key=stored.__getitem__)
        pick = itemgetter(*order)
        olds: list[bytes | None] = [None] * count
        replaced = zip(order, map(self._state.replace, pick(stored), pick(lines)), strict=True)
        for _ in range(0, count, _SLICE):
            for index, old in islice(replaced, _SLICE):
                olds[index] = old
            yield
        return olds

    def _fill_and_replace(
        self,
        actions: Sequence[int],
        keys: list[bytes],
        stored: list[bytes],
        lines: list[bytes],
        *,
        live: bool,
    ) -> tuple[list[bytes], list[bytes | None]]:
        whole: list[bytes] = []
        olds: list[bytes | None] = []
        for index, line in enumerate(lines):
            old = self._value(stored[index])
            exact = not live
            if line_.is_partial(line):
                moved = self._last_deleted if index == 0 else None
                if moved and actions[0] == Action.INSERT:
                    line = line_.fill(line, moved)  # noqa: PLW2901
                if old and line_.is_partial(line):
                    line = line_.fill(line, old)  # noqa: PLW2901
                    exact = exact and self._is_streamed(stored[index])
                if line_.is_partial(line):
                    if live:
                        raise RowIncomplete(self._table, keys[index])
                    mark = layout.mark_key(layout.PARTIAL_MARK, stored[index])
                    self._reserve(1, 2 * len(keys[index]))
                    self._marks.put(mark, keys[index])
                    exact = False
                self._reserve(1, len(line))
            self._state.put(stored[index], line)
            if exact:
                self._mark_streamed([stored[index]])
            whole.append(line)
            olds.append(old)
        return whole, olds

    def _complete(self, stored: bytes, line: bytes) -> None:
        value = self._value(stored)
        if value and line_.is_partial(value):
            whole = line_.fill(value, line)
            self._reserve(1, len(whole))
            self._state.put(stored, whole)
