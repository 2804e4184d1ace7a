"""The target of a copy: its key prefix, its refusals, its next manifest."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from laredo_archive.errors import ArchiveMissing, CopyRefused
from laredo_archive.manifest import object_keys
from laredo_archive.manifest.merged.parts_file import PartsFiles
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.notices import later
from laredo_archive.manifest.unnamed_objects import Retired
from laredo_archive.read import location
from laredo_archive.read.location import ArchiveLocation, FoundArchive
from laredo_archive.storage.destination import Destination
from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.write.reconcile import unfit
from laredo_model import position as positions


class CopyTarget(NamedTuple):
    """The target of a copy."""

    #: The destination.
    destination: Destination
    #: The key prefix in it.
    key_prefix: str

    @property
    def uri(self) -> str:
        """The manifest's."""
        return self.destination.uri_of(object_keys.manifest_key(self.key_prefix))


def target_at(target_location: ArchiveLocation, source: FoundArchive) -> CopyTarget:
    """The key prefix at a location: that of its archive, or else of ``source``.

    A location that ends with another name than the source's key prefix gets that name for it,
    so that a writer can be given the directory above as its destination.

    :raises CopyRefused: if there is another table's archive, or one that was moved, or the
        two archives overlap.
    :raises DestinationUnavailable: if it can't be written, or its manifest not be swapped.
    """
    try:
        there = location.found(target_location)
    except ArchiveMissing:
        there = None
    if there is None or not there.manifest.artifacts:
        depth = target_location.depth_of([source.manifest_key])
        target = CopyTarget(
            *target_location.split_at(
                min(1, len(target_location.parts)) if depth is None else depth
            )
        )
    elif there.manifest.table != source.manifest.table:
        raise CopyRefused(
            there.destination.uri_of(there.manifest_key),
            f"there is the archive of {there.manifest.table}, not of {source.manifest.table}; copy"
            " to another location",
        )
    elif there.is_renamed_copy:
        raise CopyRefused(
            there.destination.uri_of(there.manifest_key),
            "its objects have other names than its manifest has (was the archive moved?); copy to"
            " an empty location",
        )
    else:
        target = CopyTarget(there.destination, there.key_prefix)
    _refuse_overlap(CopyTarget(source.destination, source.key_prefix), target)
    if isinstance(target.destination, S3Destination):
        target.destination.probe()
    return target


def _refuse_overlap(source: CopyTarget, target: CopyTarget) -> None:
    ours, theirs = _extent(source), _extent(target)
    if ours[0] == theirs[0] and (_is_within(ours[1], theirs[1]) or _is_within(theirs[1], ours[1])):
        raise CopyRefused(
            target.uri,
            f"source {source.uri} contains it, or is inside it; give each its own directory",
        )


def _is_within(inner: str, outer: str) -> bool:
    return inner == outer or (outer.endswith("/") and inner.startswith(outer))


def _extent(target: CopyTarget) -> tuple[str, str]:
    """The service, and what all URIs of the archive begin with."""
    destination = target.destination
    return destination.location.removeprefix(destination.uri), target.uri.removesuffix(
        object_keys.MANIFEST
    )


def refuse_unfit(
    target: CopyTarget, found: FoundArchive, own: Manifest, where: str, *, take_over: bool
) -> None:
    """See that ``own``, which is there, may become what was ``found`` at ``where``.

    :raises CopyRefused: if it may not.
    """
    source = found.manifest
    if own.writer_id is not None and not take_over:
        raise CopyRefused(
            target.uri,
            f"writer {own.writer_id} (term {own.writer_term}) has claimed it, and may be at work"
            " there; copy to another location. If it is stopped for good, --take-over copies all"
            " the same, and shuts it out should it still live",
        )
    if source.head is not None and own.head is not None and own.head > source.head:
        raise CopyRefused(
            target.uri,
            f"it is ahead: it ends at {_head(own)}, and {where} at {_head(source)}; copy the other"
            " way round, or to another location",
        )
    reason = unfit(source, own, PartsFiles(found.destination, found.locate, found.key_prefix))
    if reason is not None:
        raise CopyRefused(
            target.uri,
            f"its objects aren't an earlier state of {where}: {reason}; copy to another location",
        )


def _head(manifest: Manifest) -> str:
    assert manifest.head is not None, "it has artifacts"
    return f"{positions.text(manifest.head.position)} (epoch {manifest.head.epoch})"


def following(
    source: Manifest,
    own: Manifest,
    artifacts: Iterable[Artifact],
    unneeded: Iterable[str],
    in_files: Iterable[str],
) -> Manifest | None:
    """``own`` as a copy of ``source`` with ``artifacts``; None if it is that already.

    It has no writer: with the source's writer_id that writer would go on in the copy
    as if it were its own. The term only grows, so a writer that was shut out stays out.
    ``unneeded`` are keys of objects that were perhaps copied for nothing; ``in_files`` are of those
    that files of parts name.
    """
    listed = tuple(artifacts)
    kept = {entry.key for artifact in listed for entry in artifact.objects()}
    kept.update(in_files)
    leaving = own.kept_keys() - kept
    gone = dict.fromkeys([*leaving, *unneeded]).keys() - own.retired_keys() - kept
    changed = replace(
        source,
        artifacts=listed,
        writer_id=None,
        writer_term=max(source.writer_term, own.writer_term + (own.writer_id is not None)),
        notified={
            sink: later(own.notified.get(sink), source.notified.get(sink))
            for sink in [*own.notified, *source.notified]
        },
        retired=own.retired + tuple(Retired(key) for key in sorted(gone)),
        former=(),
        revision=own.revision,
        updated_at=own.updated_at,
    )
    return None if changed == own else changed
