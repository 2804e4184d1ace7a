"""Changes of one table on their way into the store."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class TableChanges:
    """Changes of one table, in commit order; what is given to ``Transaction.apply``.

    The first three have one element a change, the next three one a PostgreSQL transaction. A change
    of the key is a DELETE followed by an INSERT. Lines may be partial (unchanged TOAST): an INSERT
    right after a DELETE takes what is missing from the row just deleted, everything else from the
    state.
    """

    #: One byte each, model.Action.
    actions: bytearray = field(default_factory=bytearray)
    #: b"" for a TRUNCATE.
    keys: list[bytes] = field(default_factory=list)
    #: Rows as JSON; b"" for DELETE and TRUNCATE.
    lines: list[bytes] = field(default_factory=list)
    #: How many of these changes the transaction has.
    counts: list[int] = field(default_factory=list)
    #: The end of its commit record.
    positions: list[int] = field(default_factory=list)
    #: Its commit time, microseconds since 1970.
    times_us: list[int] = field(default_factory=list)
    #: Whether the last transaction goes on in the next piece.
    open: bool = False

    def __len__(self) -> int:
        return len(self.actions)

    def parts(self, step: Callable[[], int]) -> Iterator["TableChanges"]:
        """Split the changes into parts; before each one ``step`` returns its limit."""
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
