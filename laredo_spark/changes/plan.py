"""The plan of a read of changes: the chain of artifacts between two boundaries."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from laredo_archive.errors import NoSuchBoundary
from laredo_archive.manifest import merged
from laredo_archive.manifest.chain import (
    ANY_EPOCH,
    NextArtifact,
    ReaderPosition,
    is_behind,
    mark_now,
    up_to,
)
from laredo_archive.manifest.model import Artifact
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.position import Position
from laredo_spark.changes.shape import ChangesShape
from laredo_spark.errors import ArchiveBehind, BoundaryGone, ChangesGone, OptionRefused
from laredo_spark.options import OnGap, ReadOptions
from laredo_spark.read.table_read import shape_at


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


def unfold_between(
    archive: Archive, start: ReaderPosition, end: ReaderPosition | None, most: int | None = None
) -> None:
    """Have every boundary between two in the manifest, also those that merged diffs hide.

    So changes come step by step, and are the same before and after a merge. ``end``: None for the
    head. ``most``: the number of diffs that are enough.

    :raises ArtifactMissing, ArtifactDamaged: if a file that lists a merged diff's parts can't be
        read.
    """
    last = None if end is None else end.position
    first = start.position or Position(0)
    within = merged.between(first, last)
    if most is None:
        archive.unfold(within)
        return
    if start.position is not None:
        archive.unfold(merged.at(start.position))
    # Positions of a later history may be lower.
    epoch = (mark_now(archive.epochs, start) or start).epoch or 0
    placed: set[tuple[int, Position]] = set()

    def wanted(before: Artifact, diff: Artifact) -> bool:
        if before.epoch >= epoch and before.to_position > first and not before.is_snapshot:
            placed.add((before.epoch, before.to_position))
        return diff.epoch >= epoch and within(before, diff) and len(placed) <= most

    archive.unfold(wanted)


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
        raise OptionRefused(
            "as_of", str(asked.as_of), "is for tables; changes have after and until"
        )
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
        start = None  # a batch fails when it is read; a stream has its checkpoint
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
        first, after = archive.boundaries[0], asked.after
        text = after.isoformat() if isinstance(after, datetime) else positions.text(after)
        raise ChangesGone(archive.uri, text, f"the oldest boundary is {first}")
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
    for step in up_to(epochs, start, goal):
        if step.gap is not None and on_gap is OnGap.FAIL:
            raise ChangesGone(archive.uri, _before(found, start), step.gap)
        found.append(step)
        if step.mark == goal:
            return found
    raise NoSuchBoundary(archive.uri, f"{end} is before {start}; exchange until and after")


def _before(found: Sequence[NextArtifact], start: ReaderPosition) -> ReaderPosition:
    return found[-1].mark if found else start
