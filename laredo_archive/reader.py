"""The reader of an archive: the table at any boundary, and the changes between two.

Memory doesn't grow with the table: rows and changes stream by in key order.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from laredo_archive.errors import NoSuchBoundary
from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest import timeline
from laredo_archive.manifest.merged import BoundaryFilter, PartsFiles
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.object_keys import manifest_key
from laredo_archive.manifest.timeline import Boundary, Epoch
from laredo_archive.read import fold, location
from laredo_archive.read.artifact_reader import ArtifactFiles, RowFields
from laredo_archive.read.fold import Rows
from laredo_archive.read.location import FoundArchive
from laredo_archive.read.objects import UNWATCHED, ReadProgress
from laredo_archive.storage.access import S3Access
from laredo_archive.storage.destination import Destination
from laredo_model.line import Action, Change
from laredo_model.position import Position


class Difference(NamedTuple):
    """Net changes in key order. ``truncated``: the table was emptied first, all are INSERT."""

    truncated: bool
    changes: Iterator[Change]


class Archive:
    """One table's archive, read only.

    ``key_fields`` is the key of an archive whose manifest doesn't name it; without it such a
    table's key is ``id``. ``progress`` is called with what is read.
    """

    def __init__(
        self,
        found: FoundArchive,
        key_fields: Sequence[str] | None = None,
        progress: ReadProgress = UNWATCHED,
        parts: PartsFiles | None = None,
    ) -> None:
        """``parts``: lists of parts of the same archive that were read before."""
        self.found = found
        self.key_fields = key_fields
        self.manifest: Manifest = found.manifest
        """The manifest, unfolded at the boundaries that were requested."""
        self._parts = parts or found.parts_files()
        self.uri = found.destination.uri_of(found.manifest_key)
        self.files = ArtifactFiles(found.destination, found.locate, progress)

    @classmethod
    def at(
        cls,
        uri: str,
        key_fields: Sequence[str] | None = None,
        access: S3Access | None = None,
    ) -> "Archive":
        """The archive at a path or URI; ``access`` is for S3.

        :raises ArchiveMissing: if there is none.
        :raises ManifestError: if its manifest is damaged or newer than this program.
        :raises DestinationError: if the location can't be read.
        """
        return cls(location.find(uri, access), key_fields)

    @classmethod
    def open(
        cls, destination: Destination, key_prefix: str, key_fields: Sequence[str] | None = None
    ) -> "Archive":
        """The archive below ``key_prefix`` in ``destination``; raises like :meth:`at`."""
        key = manifest_key(key_prefix)
        manifest = location.read_manifest(destination, key)
        return cls(FoundArchive(destination, key, manifest, location.as_it_is), key_fields)

    def refreshed(self) -> "Archive":
        """Archive with its manifest read again; raises like :meth:`at`."""
        manifest = location.read_manifest(self.found.destination, self.found.manifest_key)
        return Archive(self.found._replace(manifest=manifest), self.key_fields, parts=self._parts)

    def watched(self, progress: ReadProgress) -> "Archive":
        """Archive whose reads are reported to ``progress``."""
        return Archive(self.found, self.key_fields, progress, self._parts)

    @property
    def epochs(self) -> list[Epoch]:
        """The epochs, oldest first.

        :raises ManifestDamaged: if an epoch has no base, or a gap.
        """
        return timeline.epochs_of(self.manifest, self.uri)

    @property
    def boundaries(self) -> list[Boundary]:
        """The boundaries of the manifest as far as it is unfolded, oldest first.

        Raises like :attr:`epochs`.
        """
        return timeline.boundaries(self.epochs)

    def boundary(
        self,
        as_of: Position | datetime | None = None,
        *,
        exact: bool = False,
        epoch: int | None = None,
    ) -> Boundary:
        """The last boundary at or before ``as_of``; the head if that is None.

        ``exact`` refuses an earlier one; ``epoch`` searches that epoch only.

        :raises NoSuchBoundary: if there is none, or ``as_of`` is later than the
            archive knows the table to be complete.
        :raises ArtifactMissing, ArtifactDamaged: if it is a merged diff's part, and the file that
            lists these can't be read.
        """
        if as_of is not None:
            self.unfold(merged_.at(as_of))
        return timeline.find(self.manifest, self.uri, as_of, exact=exact, epoch=epoch)

    def unfold(self, wanted: BoundaryFilter) -> None:
        """Put the parts of merged diffs in their places, where boundaries are ``wanted``.

        :raises ArtifactMissing, ArtifactDamaged: if a file that lists them can't be read.
        """
        self.manifest = merged_.unfolded(self.manifest, wanted, self._parts.diffs_of)

    def parts_of(self, merged: Artifact) -> tuple[Artifact, ...]:
        """The diffs that a merged diff was made from, one level down.

        :raises ArtifactMissing, ArtifactDamaged: if a file that lists them can't be read.
        """
        return self._parts.diffs_of(merged)

    def shape(self, boundary: Boundary) -> RowFields:
        """Known fields of the rows at ``boundary``."""
        return RowFields.of(boundary.base, self.key_fields)

    def rows(self, boundary: Boundary) -> Iterator[Rows]:
        """The table at ``boundary``: keys and lines, in key order, some thousand at a time.

        :raises ArtifactMissing: if an object doesn't exist, before the first row.
        :raises ArtifactDamaged: if a file differs from its entry: before the first row
            if its size shows that, else at the latest after the last.
        :raises FormatUnknown: if an artifact is in no format that this program reads.
        :raises TemporarySpaceLacking: if there is too little disk space for sorting.
        """
        self._check_sizes(boundary.artifacts)
        shape = self.shape(boundary)
        start, keys = fold.timelines(self.files, boundary.diffs, shape)
        base = iter(()) if start is not None else fold.base_rows(self.files, boundary.base, shape)
        return fold.applied(base, fold.newest(keys))

    def changes(self, start: Boundary, end: Boundary) -> Difference:
        """Net changes of each key from ``start`` to ``end``, in key order.

        They come from the diffs between them if these follow each other; else from a comparison of
        the table at both.

        :raises NoSuchBoundary: if ``end`` is before ``start``.
        :raises ArchiveError: as :meth:`rows` does.
        """
        if (end.epoch, end.position) < (start.epoch, start.position):
            raise NoSuchBoundary(self.uri, f"{end} is before {start}; exchange --from and --to")
        for boundary in (start, end):
            self.unfold(merged_.at(boundary.position))
        diffs = timeline.path(self.epochs, start, end)
        if diffs is None:
            return Difference(False, _compared(self.rows(start), self.rows(end)))
        self._check_sizes(diffs)
        first, keys = fold.timelines(self.files, diffs, self.shape(end))
        return Difference(first is not None, fold.net(keys))

    def _check_sizes(self, artifacts: Iterable[Artifact]) -> None:
        self.files.check_sizes([self.files.choose(artifact)[1] for artifact in artifacts])


def _compared(before: Iterator[Rows], after: Iterator[Rows]) -> Iterator[Change]:
    old = ((key, Change(Action.DELETE, key, line, None)) for key, line in _flat(before))
    new = ((key, Change(Action.INSERT, key, None, line)) for key, line in _flat(after))
    held: Change | None = None
    for _, change in heapq.merge(old, new, key=lambda labelled: labelled[0]):
        if held is not None and held.key == change.key:
            if held.old != change.new:
                yield Change(Action.UPDATE, change.key, held.old, change.new)
            held = None
            continue
        if held is not None:
            yield held
        held = change
    if held is not None:
        yield held


def _flat(rows: Iterator[Rows]) -> Iterator[tuple[bytes, bytes]]:
    for keys, lines in rows:
        yield from zip(keys, lines, strict=True)
