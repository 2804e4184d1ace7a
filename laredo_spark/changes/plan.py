"""The plan of a read of changes: the chain of artifacts between two boundaries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from laredo_archive.errors import NoSuchBoundary
from laredo_archive.manifest import merged
from laredo_archive.manifest.model import Artifact
from laredo_archive.manifest.timeline import Boundary, Epoch
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.position import History, Position
from laredo_spark.changes.shape import ChangesShape
from laredo_spark.errors import ArchiveBehind, BoundaryGone, ChangesGone, OptionRefused
from laredo_spark.options import OnGap, ReadOptions
from laredo_spark.read.table_read import UNKNOWN_HISTORY, shape_at

# The chain of artifacts from a reader's position to the archive's head, diff by diff.
#
# Diffs connect boundaries; a new epoch's base connects to the epoch before if it ``continues``
# that. Otherwise there is a gap, which only the base's rows can fill.

ANY_EPOCH = 0
"""The epoch of a reader that knows only position and history."""


@dataclass(frozen=True)
class ReaderPosition:
    """Position that a reader has reached in an archive."""

    #: The epoch, or ANY_EPOCH.
    epoch: int
    #: The boundary that it has read; None: nothing of the epoch yet, not even its base.
    position: Position | None
    #: The history of the position, as options write it.
    history: str

    @classmethod
    def at(cls, artifact: Artifact) -> "ReaderPosition":
        """After reading ``artifact``."""
        return cls(artifact.epoch, artifact.to_position, history_of(artifact.history))

    @classmethod
    def of(cls, boundary: Boundary) -> "ReaderPosition":
        """After reading up to a boundary."""
        return cls.at(boundary.last)

    @classmethod
    def before(cls, epoch: Epoch) -> "ReaderPosition":
        """Before an epoch's base."""
        return cls(epoch.number, None, history_of(epoch.base.history))

    def __str__(self) -> str:
        if self.position is None:
            return f"the base of epoch {self.epoch}" if self.epoch else "the first base"
        known = f" (epoch {self.epoch})" if self.epoch else ""
        return positions.text(self.position) + known


@dataclass(frozen=True)
class NextArtifact:
    """The next artifact for a reader. A base's rows are read only after a gap."""

    #: A diff, or a base.
    artifact: Artifact
    #: The epoch whose columns it has.
    epoch: Epoch
    #: Why no diff connects to this base; None if there is no gap.
    gap: str | None = None

    @property
    def mark(self) -> ReaderPosition:
        """The reader's position after it."""
        return ReaderPosition(self.epoch.number, self.artifact.to_position, _history(self.artifact))

    @property
    def boundary(self) -> Boundary:
        """The boundary at its end."""
        return Boundary.after((self.epoch.base, self.artifact)[self.artifact.is_snapshot :])

    @property
    def has_rows(self) -> bool:
        """True if its rows are read."""
        return self.gap is not None or not self.artifact.is_snapshot


def history_of(history: History | None) -> str:
    """A history as options write it."""
    return UNKNOWN_HISTORY if history is None else str(history)


def _history(artifact: Artifact) -> str:
    return history_of(artifact.history)


def is_behind(epochs: Sequence[Epoch], start: ReaderPosition) -> bool:
    """True if the archive ends before ``start``, in the same history."""
    if start.position is None or not epochs:
        return bool(epochs) and start.epoch > epochs[-1].number
    last = epochs[-1].artifacts[-1]
    if _history(last) != start.history:
        return False
    return (last.epoch, last.to_position) < (start.epoch or last.epoch, start.position)


def following(epochs: Sequence[Epoch], start: ReaderPosition) -> Iterator[NextArtifact]:
    """Every artifact after ``start``, in order; the first has a gap if ``start`` is gone."""
    if start.position is None:
        index = _first_from(epochs, start.epoch)
        yield from _whole(epochs[index:], None, "nothing before it was read")
        return
    found = _epoch_index(epochs, start)
    if found is None:
        yield from _whole(epochs[_after(epochs, start) :], None, _why_not_there(epochs, start))
        return
    epoch = epochs[found]
    yield from (
        NextArtifact(diff, epoch) for diff in epoch.diffs if diff.to_position > start.position
    )
    yield from _whole(epochs[found + 1 :], epoch, None)


def mark_now(epochs: Sequence[Epoch], mark: ReaderPosition) -> ReaderPosition | None:
    """``mark`` with its present epoch, which a re-base changes; None if it is gone."""
    if mark.position is None:
        is_there = not mark.epoch or mark.epoch in (epoch.number for epoch in epochs)
        return mark if is_there else None
    found = _epoch_index(epochs, mark)
    return (
        None if found is None else ReaderPosition(epochs[found].number, mark.position, mark.history)
    )


def _whole(
    epochs: Sequence[Epoch], before: Epoch | None, gap: str | None
) -> Iterator[NextArtifact]:
    for epoch in epochs:
        yield NextArtifact(epoch.base, epoch, gap if before is None else _why_gap(before, epoch))
        yield from (NextArtifact(diff, epoch) for diff in epoch.diffs)
        before = epoch


def _epoch_index(epochs: Sequence[Epoch], start: ReaderPosition) -> int | None:
    """The index of the epoch to continue in; None if ``start`` is in none."""
    for index, epoch in enumerate(epochs):
        ends = [diff for diff in epoch.diffs if _is_at(diff, start)]
        if epoch.number == start.epoch or not start.epoch:
            if ends or _is_at(epoch.base, start):
                return index
        elif epoch.number > start.epoch:
            # A re-base gives the diffs after its base to the new epoch.
            if ends:
                return index
            follows = epoch.number == start.epoch + 1 and bool(epoch.base.continues)
            if follows and _is_at(epoch.base, start):
                return index
    return None


def _is_at(artifact: Artifact, start: ReaderPosition) -> bool:
    return artifact.to_position == start.position and _history(artifact) == start.history


def _first_from(epochs: Sequence[Epoch], number: int) -> int:
    found = (index for index, epoch in enumerate(epochs) if epoch.number >= number)
    return next(found, len(epochs))


def _after(epochs: Sequence[Epoch], start: ReaderPosition) -> int:
    """The index of the first epoch after ``start``; 0 if there is none, as in another archive."""
    index = _first_from(epochs, start.epoch + 1)
    return index if index < len(epochs) else 0


def _why_not_there(epochs: Sequence[Epoch], start: ReaderPosition) -> str:
    if not any(_history(a) == start.history for epoch in epochs for a in epoch.artifacts):
        return f"there is nothing of the history {start.history} any more"
    first = epochs[0].base
    oldest = f"{positions.text(first.to_position)} (epoch {first.epoch})"
    return f"retention has removed the diffs after it; the oldest boundary is now {oldest}"


def _why_gap(before: Epoch, epoch: Epoch) -> str | None:
    base, last = epoch.base, before.artifacts[-1]
    if base.continues and base.to_position == last.to_position:
        return None
    where = f"epoch {epoch.number} begins with a new base at {positions.text(base.to_position)}"
    if _history(base) != _history(last):
        return f"{where}, of another history ({_history(base)} after {_history(last)})"
    if base.columns != before.base.columns:
        return f"{where}, as the table's columns changed"
    return f"{where}, and changes were missed before it"


@dataclass(frozen=True)
class Pinned:
    """The boundaries of a DataFrame of changes, the same however often it is read."""

    #: The columns of its rows.
    shape: ChangesShape
    #: The last boundary of a batch read.
    end: ReaderPosition
    #: The boundary after which it begins; None: as the options say when it is read.
    start: ReaderPosition | None = None


@dataclass(frozen=True)
class ChangesRead:
    """One read of changes, planned by one version of the manifest."""

    #: The options of the read.
    asked: ReadOptions
    #: The archive that is read.
    archive: Archive
    #: The columns of the rows.
    shape: ChangesShape
    #: The artifacts from start to end.
    steps: Sequence[NextArtifact]

    @classmethod
    def of(cls, asked: ReadOptions, pinned: Pinned | None = None) -> "ChangesRead":
        """Plan the read of ``asked`` now, or as it was ``pinned``.

        :raises ArchiveError: if there is no such archive, or no such boundary in it.
        :raises ChangesGone: if diffs don't lead there, and ``on_gap`` is fail.
        :raises BoundaryGone: if what was pinned has left the archive.
        :raises OptionRefused: if a column isn't there.
        """
        archive = opened(asked)
        known = pinned or pinned_now(archive, asked)
        start = known.start or start_of(archive, asked)
        if asked.merged:
            _unfold_at_both(archive, start, known.end)
        else:
            unfold_between(archive, start, known.end)
        _refuse_behind(archive, start)
        if known.start is not None and mark_now(archive.epochs, start) is None:
            raise BoundaryGone(archive.uri, f"the boundary {start}")
        steps = steps_between(archive, start, known.end, asked.on_gap)
        return cls(asked, archive, known.shape, steps)


def unfold_between(archive: Archive, start: ReaderPosition, end: ReaderPosition | None) -> None:
    """Have every boundary between two in the manifest, also those that merged diffs hide.

    So changes come step by step, and are the same before and after a merge. ``end``: None for the
    head.

    :raises ArtifactMissing, ArtifactDamaged: if a file that lists a merged diff's parts can't be
        read.
    """
    last = None if end is None else end.position
    archive.unfold(merged.between(start.position or Position(0), last))


def _unfold_at_both(archive: Archive, start: ReaderPosition, end: ReaderPosition) -> None:
    """Have two boundaries in the manifest; merged diffs between them stay as they are."""
    for each in (start, end):
        if each.position is not None:
            archive.unfold(merged.at(each.position))


def opened(asked: ReadOptions) -> Archive:
    """Open the archive.

    :raises OptionRefused: if the options are a table's.
    :raises ArchiveError: if there is none.
    """
    if asked.as_of is not None:
        raise OptionRefused("as_of", str(asked.as_of), "is a table's; changes have after and until")
    return Archive.at(asked.path, asked.key_fields, asked.access())


def pinned_now(archive: Archive, asked: ReadOptions) -> Pinned:
    """Resolve the boundaries of ``asked`` in ``archive``.

    :raises NoSuchBoundary: if ``until`` isn't in it, or nothing is.
    """
    end = archive.boundary(asked.until, exact=asked.exact)
    shape = ChangesShape(shape_at(archive, end, asked), end.epoch)
    try:
        start = mark_now(archive.epochs, start_of(archive, asked))
    except (ChangesGone, NoSuchBoundary):
        start = None  # a batch says why when it is read; a stream's checkpoint knows better
    return Pinned(shape, ReaderPosition.of(end), start)


def start_of(archive: Archive, asked: ReadOptions) -> ReaderPosition:
    """The boundary after which ``asked`` begins.

    :raises ChangesGone: if that was before the archive's first boundary; see ``on_gap``.
    :raises NoSuchBoundary: if it isn't there for another reason.
    """
    if asked.after_head:
        return ReaderPosition.of(archive.boundary())
    if asked.after is None:
        return _oldest(archive, asked)
    if asked.history is not None:
        if isinstance(asked.after, datetime):
            raise OptionRefused("history", asked.history, "goes with a position in after")
        archive.unfold(merged.at(asked.after))
        return ReaderPosition(asked.epoch or ANY_EPOCH, asked.after, asked.history)
    if _is_before_all(archive.boundaries, asked.after):
        if asked.on_gap is OnGap.SNAPSHOT:
            return ReaderPosition.before(archive.epochs[0])
        first = archive.boundaries[0]
        raise ChangesGone(archive.uri, "that", f"the oldest boundary is {first}")
    return ReaderPosition.of(archive.boundary(asked.after, exact=asked.exact))


def _oldest(archive: Archive, asked: ReadOptions) -> ReaderPosition:
    epochs = archive.epochs
    if not epochs:
        raise NoSuchBoundary(archive.uri, "there is nothing in it yet; see laredo-archive ls")
    first = epochs[0]
    return (
        ReaderPosition.before(first)
        if asked.on_gap is OnGap.SNAPSHOT
        else ReaderPosition.at(first.base)
    )


def _is_before_all(boundaries: Sequence[Boundary], after: int | datetime) -> bool:
    if isinstance(after, datetime):
        return bool(boundaries) and after < min(boundary.time for boundary in boundaries)
    return bool(boundaries) and after < min(boundary.position for boundary in boundaries)


def _refuse_behind(archive: Archive, start: ReaderPosition) -> None:
    if is_behind(archive.epochs, start):
        raise ArchiveBehind(archive.uri, start, archive.boundary())


def steps_between(
    archive: Archive, start: ReaderPosition, end: ReaderPosition, on_gap: OnGap
) -> Sequence[NextArtifact]:
    """The artifacts from ``start`` to ``end``.

    :raises ChangesGone: at a gap, unless ``on_gap`` has the base's rows come there.
    :raises NoSuchBoundary: if ``end`` is before ``start``.
    :raises BoundaryGone: if ``end`` has left the archive.
    """
    epochs = archive.epochs
    goal = mark_now(epochs, end)
    if goal is None:
        raise BoundaryGone(archive.uri, f"the boundary {end}")
    if goal in (start, mark_now(epochs, start)):
        return ()
    found: list[NextArtifact] = []
    for step in following(epochs, start):
        if _is_beyond(step.mark, goal):
            break
        if step.gap is not None and on_gap is OnGap.FAIL:
            raise ChangesGone(archive.uri, _before(found, start), step.gap)
        found.append(step)
        if step.mark == goal:
            return found
    raise NoSuchBoundary(archive.uri, f"{end} is before {start}; exchange until and after")


def _before(found: Sequence[NextArtifact], start: ReaderPosition) -> ReaderPosition:
    return found[-1].mark if found else start


def _is_beyond(mark: ReaderPosition, goal: ReaderPosition) -> bool:
    return (mark.epoch, mark.position or 0) > (goal.epoch, goal.position or 0)
