"""The net-change buffer: per key the line before the window and the line after it.

docs/archive-format.md, "A diff holds the **net** change per key": DELETE then INSERT is UPDATE,
INSERT then DELETE is nothing, old equal to new is nothing; after a TRUNCATE
everything is INSERT.

An open transaction is kept apart until its end. So the buffer can be frozen between transactions at
any time, and the half of a transaction that a lost connection leaves can be dropped.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, cast

from laredo_model.checksum import MODULUS, StateChecksum, sum_of
from laredo_model.errors import ModelError
from laredo_model.line import Action, Change
from laredo_model.position import History
from laredo_service.record_file import RecordFile
from laredo_snapshotter.errors import StreamInconsistent

Net = tuple[bytes, bytes | None, bytes | None]
"""One key's net change: key, old line, new line."""

MOST_RUNS = 32
"""Number of runs of one length that are merged into one run of the next length."""


class _Level:
    """Runs of about one length, oldest first."""

    def __init__(self, directory: Path | None) -> None:
        self.file = RecordFile(directory)
        self._extents: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._extents)

    def add(self, changes: Iterable[Net]) -> None:
        self._extents.append(self.file.write(changes))

    def runs(self) -> Sequence[Iterator[Net]]:
        return [cast("Iterator[Net]", self.file.read(*each)) for each in self._extents]


class SpillFile:
    """Runs of net changes on disk. Not thread-safe; one user at a time."""

    def __init__(self, directory: Path | None) -> None:
        """``directory`` defaults to the system's temporary one.

        :raises OSError: if no file can be made there.
        """
        self._directory = directory
        self._levels = [_Level(directory)]
        """Those of the shortest runs first: they are the newest."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(level.file.size for level in self._levels)

    def write(self, changes: Iterable[Net]) -> None:
        """Add one run; ``changes`` are sorted by key.

        :raises OSError: if the disk is full.
        """
        self._add(changes, 0)

    def adopt(self, other: "SpillFile") -> None:
        """Take over the runs of ``other``, which come after all of this file's, and close it."""
        for run in other._runs():
            self.write(run)
        other.close()

    def merged(self, last: Iterable[Net]) -> Iterator[Net]:
        """Every key's net change over all runs and ``last`` (sorted by key), in key order.

        A key may come out with its old line equal to its new one; the caller drops it.
        """
        return _merged([*self._runs(), last])

    def close(self) -> None:
        """Give the disk space back."""
        for level in self._levels:
            level.file.close()
        self._levels = []

    def _runs(self) -> list[Iterable[Net]]:
        """All runs, oldest first."""
        return [run for level in reversed(self._levels) for run in level.runs()]

    def _add(self, changes: Iterable[Net], number: int) -> None:
        if number == len(self._levels):
            self._levels.append(_Level(self._directory))
        level = self._levels[number]
        level.add(changes)
        if len(level) == MOST_RUNS:
            self._add(_merged(level.runs()), number + 1)
            self._levels[number] = _Level(self._directory)
            level.file.close()


def _merged(runs: Sequence[Iterable[Net]]) -> Iterator[Net]:
    """Every key's net change over all runs, in key order."""
    # merge() is stable: of equal keys the earlier run's comes first.
    merged = heapq.merge(*runs, key=itemgetter(0))
    current = next(merged, None)
    if current is None:
        return
    key, old, new = current
    for following in merged:
        if following[0] == key:
            new = following[2]
            continue
        yield key, old, new
        key, old, new = following
    yield key, old, new


# The keys that changed in a window and are as they were before it: no diff mentions them.
#
# A reader that stopped in the middle of the window may hold such a key as it was in between, so a
# diff records their number (``cancelled`` in docs/archive-format.md): an upper bound; 0 is exact.

KEPT = 10_000
"""Keys held by name; a window with more of them is only counted from there on."""

KEPT_BYTES = 256
"""Longer keys are only counted."""


class Cancelled:
    """The cancelled keys of one window.

    A few are kept by name, so that a key that changes again no longer counts.
    """

    __slots__ = ("_keys", "_more", "in_spill")

    def __init__(self) -> None:
        self.in_spill = 0
        """Number of keys that cancelled out in a spill file."""
        self._keys: set[bytes] = set()
        self._more = 0

    @property
    def count(self) -> int:
        """Number of cancelled keys, at most."""
        return len(self._keys) + self._more + self.in_spill

    def add(self, key: bytes) -> None:
        """The key's changes have cancelled out."""
        if len(key) > KEPT_BYTES:
            self._more += 1
            return
        if len(self._keys) >= KEPT:
            self._more += len(self._keys)
            self._keys.clear()
        self._keys.add(key)

    def add_many(self, count: int) -> None:
        """Count keys whose changes a TRUNCATE discarded."""
        self._more += count

    def discard(self, key: bytes) -> None:
        """The key has changed again."""
        self._keys.discard(key)

    def extend(
        self, later: "Cancelled", *, before: AbstractSet[bytes], after: AbstractSet[bytes]
    ) -> None:
        """Add the cancelled keys of a later time.

        ``before`` and ``after`` are the keys that the first and the later time leave changed.
        """
        self._keys = {key for key in self._keys if key not in after}
        self._more += later._more
        for key in later._keys:
            if key not in before:
                self.add(key)


ENTRY_OVERHEAD = 260
"""Bytes of memory that an entry costs besides key and lines: objects and table slot."""

_TRUNCATE, _DELETE = int(Action.TRUNCATE), int(Action.DELETE)
_CHUNK = 4096


class NetChanges:
    """The net effect of a sequence of changes; over memory and, if need be, a spill file."""

    def __init__(self, spill_directory: Path | None = None) -> None:
        self.truncated = False
        self.memory_bytes = 0
        self.cancelled = Cancelled()
        self._entries: dict[bytes, tuple[bytes | None, bytes | None]] = {}
        self._spill: SpillFile | None = None
        self._spilled = 0
        self._spill_directory = spill_directory

    @property
    def depth(self) -> int:
        """Keys in memory and in the spill file; one that is in both counts twice."""
        return len(self._entries) + self._spilled

    @property
    def spilled_bytes(self) -> int:
        """Bytes in the spill file."""
        return self._spill.size if self._spill is not None else 0

    @property
    def empty(self) -> bool:
        """True if there is certainly no change; a spilled buffer may still prove to be empty."""
        return not (self._entries or self.truncated or self._spill)

    def apply(
        self,
        actions: Sequence[int],
        keys: Sequence[bytes],
        lines: Sequence[bytes],
        old_lines: Sequence[bytes],
        position: int | None = None,
    ) -> None:
        """Take changes in their order; a line that isn't there is empty.

        :raises StreamInconsistent: if an old line isn't what the change before left.
        """
        entries, size = self._entries, self.memory_bytes
        get, cancelled = entries.get, self.cancelled
        for action, key, line, old_line in zip(actions, keys, lines, old_lines, strict=True):
            if action == _TRUNCATE:
                self._clear()
                self.truncated, size = True, 0
                continue
            old = old_line or None
            new = None if action == _DELETE else line
            entry = get(key)
            if entry is None:
                if old != new:
                    cancelled.discard(key)
                    entries[key] = (old, new)
                    size += ENTRY_OVERHEAD + len(key) + len(old_line) + len(line)
                continue
            first, before = entry
            if before != old:
                raise StreamInconsistent(key, position)
            if first == new:
                del entries[key]
                cancelled.add(key)
                size -= ENTRY_OVERHEAD + len(key) + len(first or b"") + len(before or b"")
            else:
                entries[key] = (first, new)
                size += len(line) - len(before or b"")
        self.memory_bytes = size

    def extend(self, later: "NetChanges") -> None:
        """Take everything of ``later``, which happened after this and isn't used any more.

        :raises StreamInconsistent: as :meth:`apply`.
        """
        if later.truncated:
            self._clear()
            self.truncated = True
        self.cancelled.extend(
            later.cancelled, before=self._entries.keys(), after=later._entries.keys()
        )
        if later._spill is not None:
            self.spill()
            if self._spill is None:
                self._spill = later._spill
            else:
                self._spill.adopt(later._spill)
            self._spilled += later._spilled
            self._entries, self.memory_bytes = later._entries, later.memory_bytes
            return
        if not self._entries:
            self._entries, self.memory_bytes = later._entries, later.memory_bytes
            return
        entries = later._entries
        self.apply(
            bytes(_DELETE if new is None else Action.UPDATE for _, new in entries.values()),
            list(entries),
            [new or b"" for _, new in entries.values()],
            [old or b"" for old, _ in entries.values()],
        )

    def spill(self) -> None:
        """Move what is in memory to the spill file.

        :raises OSError: if there is no room for it.
        """
        if not self._entries:
            return
        if self._spill is None:
            self._spill = SpillFile(self._spill_directory)
        self._spill.write(self._sorted_entries())
        self._spilled += len(self._entries)
        self._entries = {}
        self.memory_bytes = 0

    def net(self) -> Iterator[Net]:
        """Key, old line and new line of every key that changed, in key order; repeatable."""
        if self._spill is None:
            yield from self._sorted_entries()
            return
        self.cancelled.in_spill = 0
        for key, old, new in self._spill.merged(self._sorted_entries()):
            if old != new:
                yield key, old, new
            else:
                self.cancelled.in_spill += 1

    def close(self) -> None:
        """Give memory and disk space back."""
        self._clear()

    def _sorted_entries(self) -> Iterator[Net]:
        entries = self._entries
        for key in sorted(entries):
            yield key, *entries[key]

    def _clear(self) -> None:
        self.cancelled.add_many(len(self._entries) + self._spilled)
        self._spilled = 0
        self._entries.clear()
        self.memory_bytes = 0
        if self._spill is not None:
            self._spill.close()
            self._spill = None


class DiffSummary(NamedTuple):
    """Summary of a frozen buffer: its changes, and the state of the table after them."""

    change_count: int
    rows: int
    checksum: str
    truncate: bool
    cancelled: int
    """Number of keys that changed and have no net change: an upper bound, but 0 is certain."""

    @property
    def empty(self) -> bool:
        """True if the table is as it was before."""
        return not (self.change_count or self.truncate)


class FrozenBuffer:
    """The net changes up to one position, closed for good; read by the diff's writer."""

    def __init__(
        self, changes: NetChanges, to_position: int, to_time_us: int | None, *, forced: bool
    ) -> None:
        self.to_position = to_position
        """The cut: every transaction up to here is in it."""
        self.to_time_us = to_time_us
        """Commit time of its last transaction, microseconds since 1970; None if it has none."""
        self.forced = forced
        """Written even if it turns out to be empty."""
        self.unchanged_until: int | None = None
        """The last position before its first change; None if it has none, or none is known."""
        self.history: History | None = None
        """The history of its positions; None: the archive's."""
        self._changes = changes

    @property
    def memory_bytes(self) -> int:
        """Memory that it holds until closed."""
        return self._changes.memory_bytes

    @property
    def spilled_bytes(self) -> int:
        """Disk space that it holds until closed."""
        return self._changes.spilled_bytes

    @property
    def depth(self) -> int:
        """Changed keys in it, at most."""
        return self._changes.depth

    @property
    def empty(self) -> bool:
        """True if it certainly has no change."""
        return self._changes.empty

    def measure(self, rows_before: int, checksum_before: str) -> DiffSummary:
        """Summarize these changes and the table after them, in one pass.

        :raises ModelError: if more rows go than there were.
        """
        before = StateChecksum.from_hex(rows_before, checksum_before)
        truncate = self._changes.truncated and before.rows > 0
        rows, value = (0, 0) if self._changes.truncated else (before.rows, before.value)
        count = 0
        for gone, come, size in _chunks(self._changes.net()):
            rows += len(come) - len(gone)
            value += sum_of(come) - sum_of(gone)
            count += size
        if rows < 0:
            raise ModelError(
                f"the changes up to this cut remove {-rows} rows more than the table had"
            )
        checksum = StateChecksum(rows, value % MODULUS).hex()
        return DiffSummary(count, rows, checksum, truncate, self._changes.cancelled.count)

    def changes(self) -> Iterator[Change]:
        """The diff's changes in key order, the TRUNCATE apart; repeatable."""
        for key, old, new in self._changes.net():
            if old is None:
                yield Change(Action.INSERT, key, None, new)
            elif new is None:
                yield Change(Action.DELETE, key, old, None)
            else:
                yield Change(Action.UPDATE, key, old, new)

    def close(self) -> None:
        """Give memory and disk space back."""
        self._changes.close()


class ChangeBuffer:
    """Changes of one table since the last cut.

    Whole transactions can be frozen at any time; an open one is kept apart from them.
    """

    def __init__(self, spill_directory: Path | None = None) -> None:
        self._spill_directory = spill_directory
        self._whole = NetChanges(spill_directory)
        self._open: NetChanges | None = None
        self._time_us: int | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory, the open transaction's included."""
        return self._whole.memory_bytes + (self._open.memory_bytes if self._open is not None else 0)

    @property
    def spilled_bytes(self) -> int:
        """Bytes in spill files."""
        return self._whole.spilled_bytes + (
            self._open.spilled_bytes if self._open is not None else 0
        )

    @property
    def depth(self) -> int:
        """Changed keys, those in spill files too."""
        return self._whole.depth + (self._open.depth if self._open is not None else 0)

    @property
    def in_transaction(self) -> bool:
        """True if a transaction was begun and not ended."""
        return self._open is not None

    @property
    def empty(self) -> bool:
        """True if no whole transaction changed anything."""
        return self._whole.empty

    def take(
        self,
        actions: Sequence[int],
        keys: Sequence[bytes],
        lines: Sequence[bytes],
        old_lines: Sequence[bytes],
        *,
        position: int,
        time_us: int,
        ends: bool,
    ) -> None:
        """Take changes of one transaction, or of several that end at ``position`` or before.

        ``ends``: the last of them ends here; else it goes on in the next call.

        :raises StreamInconsistent: if an old line isn't what the change before left.
        """
        if ends and self._open is None:
            self._whole.apply(actions, keys, lines, old_lines, position)
        else:
            if self._open is None:
                self._open = NetChanges(self._spill_directory)
            self._open.apply(actions, keys, lines, old_lines, position)
        if ends:
            if self._open is not None:
                self._whole.extend(self._open)
                self._open = None
            self._time_us = time_us

    def spill(self) -> None:
        """Move the open transaction to disk.

        :raises OSError: if there is no room for it.
        """
        if self._open is not None:
            self._open.spill()

    def abandon(self) -> None:
        """Drop the open transaction: its stream was lost, and the next one begins with it."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def freeze(self, to_position: int, *, forced: bool = False) -> FrozenBuffer:
        """Close the whole transactions at ``to_position`` and begin the next ones after it.

        What cancelled out counts for the next diff if this one isn't to be written.
        """
        frozen = FrozenBuffer(self._whole, to_position, self._time_us, forced=forced)
        carried = self._whole.cancelled if self._whole.empty and not forced else None
        self._whole = NetChanges(self._spill_directory)
        if carried is not None:
            self._whole.cancelled = carried
        self._time_us = None
        return frozen

    def clear(self) -> None:
        """Drop all changes, those of the open transaction too."""
        self.abandon()
        self._whole.close()
        self._time_us = None


def _chunks(net: Iterator[Net]) -> Iterator[tuple[list[bytes], list[bytes], int]]:
    """Old lines, new lines and number of changes, some thousands at a time."""
    gone: list[bytes] = []
    come: list[bytes] = []
    size = 0
    for _, old, new in net:
        size += 1
        if old is not None:
            gone.append(old)
        if new is not None:
            come.append(new)
        if size == _CHUNK:
            yield gone, come, size
            gone, come, size = [], [], 0
    yield gone, come, size
