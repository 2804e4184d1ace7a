"""An archive of many small diffs, some seconds apart, and what its table was at each boundary."""

import random
from collections.abc import Sequence
from copy import copy
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from laredo_archive.maintain import compact
from laredo_archive.maintain.collect import Collected, Policy, collect
from laredo_archive.reader import Archive
from laredo_archive.storage.destination import Destination
from laredo_archive.write.table_archive import TableArchive
from laredo_model.position import History, Position
from tests.support.archive import several_epochs
from tests.support.archive.archiving import (
    MORNING,
    PREFIX,
    TABLE,
    ScriptedDestination,
    environment,
    rebased,
)
from tests.support.archive.rows import changes
from tests.support.archive.truth import State, checksum_of

LEVELS = tuple(timedelta(seconds=seconds) for seconds in (20, 60, 300))
FIRST = 10
HOUR_S = 3600.0


class LongArchive:
    """Writes diffs to an archive, and knows the table's rows at each of their ends."""

    def __init__(
        self,
        archive: TableArchive,
        seed: int = 0,
        *,
        keys: int = 12,
        formats: Sequence[str] = ("jsonl",),
    ) -> None:
        self.archive = archive
        self.formats = formats
        self.states: dict[int, State] = {}
        self.times: dict[int, datetime] = {}
        self.history: History | None = None
        """Of the diffs to come; None: that of those before."""
        self._chance = random.Random(seed)
        self._keys = keys
        self._values = 0

    @classmethod
    def begun(cls, archive: TableArchive, seed: int = 0, **given: Any) -> Self:
        """One with its first base."""
        long = cls(archive, seed, **given)
        long.begin()
        return long

    def begin(self, position: int = FIRST) -> None:
        """The first base."""
        self.states[position], self.times[position] = self._changed({}, 6)[0], MORNING
        rebased(self.archive, position, self.states[position], continues=False)

    def copied(self) -> "LongArchive":
        """The archive's states and times, for a copy of its files."""
        same = copy(self)
        same.states, same.times = dict(self.states), dict(self.times)
        return same

    @property
    def head(self) -> int:
        """The position of the newest boundary."""
        return max(self.states)

    def grow(self, count: int, *, seconds: float = 5.0, truncating: float = 0.0) -> None:
        """Commit ``count`` diffs, ``seconds`` apart."""
        for _ in range(count):
            self.diff(self.head + 10, seconds, truncate=self._chance.random() < truncating)

    def diff(self, end: int, seconds: float = 5.0, *, truncate: bool = False) -> None:
        """Commit one diff."""
        start = self.head
        before = {} if truncate else self.states[start]
        after, cancelled = self._changed(before, self._chance.randint(0, 4))
        self.states[end] = after
        self.times[end] = self.times[start] + timedelta(seconds=seconds)
        state = checksum_of(after)
        self.archive.commit_diff(
            changes(before, after),
            from_position=Position(start),
            to_position=Position(end),
            to_time=self.times[end],
            rows=state.rows,
            checksum=state.hex(),
            formats=self.formats,
            truncate=truncate,
            cancelled=cancelled,
            history=self.history,
        )

    def compacted(self, levels: Sequence[timedelta] = LEVELS) -> int:
        """Merge whatever is due; how many merges that were."""
        merges = 0
        while compact.merge_next(self.archive.merging, levels, formats=self.formats):
            merges += 1
        return merges

    def _changed(self, before: State, changes: int) -> tuple[State, int]:
        after = dict(before)
        touched = set()
        for _ in range(changes):
            key = b"%d" % self._chance.randint(1, self._keys)
            touched.add(key)
            if key in after and self._chance.random() < 0.4:
                del after[key]
            else:
                self._values += 1
                after[key] = b'{"id":%s,"v":"%d"}' % (key, self._values)
        return after, sum(before.get(key) == after.get(key) for key in touched)


def compacted(archive: LongArchive, rounds: int = 8, truncating: float = 0.0) -> LongArchive:
    """The archive after so many times ten diffs and what merges are due: 60 make every level."""
    if not archive.states:
        archive.begin()
    for _ in range(rounds):
        archive.grow(10, truncating=truncating)
        archive.compacted()
    return archive


def rows_at(destination: Destination, position: int | datetime) -> State:
    """The table as a reader finds it as of a position or a time."""
    as_of = position if isinstance(position, datetime) else Position(position)
    archive = Archive.open(destination, PREFIX)
    boundary = archive.boundary(as_of, exact=not isinstance(position, datetime))
    return several_epochs.rows_at(archive, boundary)


def collected(destination: ScriptedDestination, hours: float = 2.0, **more: Any) -> Collected:
    """A collection some hours later."""
    destination.store.world.now += hours * HOUR_S
    hour = timedelta(hours=1)
    return collect(
        destination,
        TABLE,
        key_prefix=PREFIX,
        policy=Policy(hour, hour),
        environment=environment(destination),
        **more,
    )


def spoil(path: Path, data: bytes) -> None:
    """Put other bytes in an object's place, and leave what is linked to it alone."""
    path.unlink()
    path.write_bytes(data)
