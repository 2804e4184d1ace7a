"""Changes of one table on their way into the store."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class TableChanges:
    """Changes of one table, in commit order; what the source hands to ``Transaction.apply``.

    ``actions`` (one byte each, model.Action), ``keys`` and ``lines`` have one
    element a change; the key is b"" for a TRUNCATE, the line for DELETE and
    TRUNCATE. A change of the key is a DELETE followed by an INSERT. Lines may
    be partial (unchanged TOAST): an INSERT right after a DELETE takes what is
    missing from the row just deleted, everything else from the state.

    ``counts``, ``positions`` and ``times_us`` have one element a PostgreSQL
    transaction: how many of these changes it has, the end of its commit
    record, its commit time in microseconds since 1970. ``open`` says that the
    last transaction goes on in the next piece.
    """

    actions: bytearray = field(default_factory=bytearray)
    keys: list[bytes] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)
    open: bool = False

    def __len__(self) -> int:
        return len(self.actions)

    def parts(self, step: Callable[[], int]) -> Iterator["TableChanges"]:
        """The same changes in parts, each of at most as many as ``step`` says then."""
        if len(self) <= step():
            yield self
            return
        start = transaction = used = 0
        while start < len(self):
            stop = min(len(self), start + step())
            first, rest = transaction, stop - start
            counts = []
            while rest:
                taken = min(rest, self.counts[transaction] - used)
                counts.append(taken)
                rest, used = rest - taken, used + taken
                if used == self.counts[transaction]:
                    transaction, used = transaction + 1, 0
            last = first + len(counts)
            yield TableChanges(
                self.actions[start:stop],
                self.keys[start:stop],
                self.lines[start:stop],
                counts,
                self.positions[first:last],
                self.times_us[first:last],
                self.open if stop == len(self) else used > 0,
            )
            start = stop
