"""The commit of a diff: a sealed buffer is encoded, and appended to the archive."""

from datetime import UTC, datetime
from typing import NamedTuple

from laredo_archive.write.table_archive import TableArchive
from laredo_model import position
from laredo_model.checksum import StateChecksum
from laredo_model.position import Position
from laredo_snapshotter.diff.buffer import DiffSummary, Sealed

UNWRITTEN = object()
"""Result of a diff without changes."""


class Written(NamedTuple):
    """A diff that was committed."""

    epoch: int
    from_position: Position
    to_position: int
    outcome: DiffSummary
    size_bytes: int

    def to_log(self) -> dict[str, object]:
        """Fields for the log."""
        return {
            "epoch": self.epoch,
            "from_position": position.text(self.from_position),
            "to_position": position.text(self.to_position),
            "changes": self.outcome.change_count,
            "rows": self.outcome.rows,
            "size_bytes": self.size_bytes,
        }


class Unwritten:
    """Number of changes that cancelled each other, in buffers that were empty and not written."""

    def __init__(self) -> None:
        self.cancelled = 0
        """Keys."""
        self.unchanged_until: int | None = None
        """The last position before the first of these changes; None if there is none."""

    def take(self, sealed: Sealed, cancelled: int) -> None:
        """One more of them."""
        self.cancelled += cancelled
        self.unchanged_until = self.before(sealed)

    def before(self, sealed: Sealed) -> int | None:
        """The last position before the first change of these and of ``sealed``."""
        return sealed.unchanged_until if self.unchanged_until is None else self.unchanged_until

    def clear(self) -> None:
        """A diff that records it was written."""
        self.cancelled = 0
        self.unchanged_until = None


class DiffCommit:
    """One diff's commit; run again after CommitUnavailable it is the same commit."""

    def __init__(
        self,
        archive: TableArchive,
        sealed: Sealed,
        formats: tuple[str, ...],
        unwritten: Unwritten,
    ) -> None:
        self._archive = archive
        self._sealed = sealed
        self._formats = formats
        self._unwritten = unwritten
        self._measured: tuple[Position, DiffSummary] | None = None

    def run(self) -> object:
        """Commit it, in a thread; what was written, or UNWRITTEN if there was nothing."""
        sealed = self._sealed
        start, outcome = self._measure()
        if outcome.empty and not (sealed.forced and sealed.to_position > start):
            self._unwritten.take(sealed, outcome.cancelled)
            sealed.close()
            return UNWRITTEN
        artifact = self._archive.commit_diff(
            sealed.changes(),
            from_position=start,
            to_position=Position(sealed.to_position),
            to_time=time_of(sealed.to_time_us),
            rows=outcome.rows,
            checksum=outcome.checksum,
            formats=self._formats,
            truncate=outcome.truncate,
            cancelled=outcome.cancelled + self._unwritten.cancelled,
            unchanged_until=_after(start, sealed, self._unwritten),
        )
        self._unwritten.clear()
        sealed.close()
        return Written(artifact.epoch, start, sealed.to_position, outcome, artifact.size_bytes)

    def _measure(self) -> tuple[Position, DiffSummary]:
        if self._measured is None:
            head = self._archive.head
            assert head is not None and head.rows is not None and head.checksum is not None
            before = StateChecksum.from_hex(head.rows, head.checksum)
            self._measured = head.position, self._sealed.measure(before)
        return self._measured


def _after(start: Position, sealed: Sealed, unwritten: Unwritten) -> Position | None:
    """The last position at which the table is known to be as at ``start``, if that is later."""
    until = unwritten.before(sealed)
    known = sealed.to_position if until is None else until
    return Position(known) if known > start else None


def time_of(microseconds: int | None) -> datetime | None:
    """A commit time in microseconds since 1970 as a datetime."""
    if microseconds is None:
        return None
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
