"""A copy of an archive at another location: every object is checked, the manifest comes last.

The target becomes equal to the source, as a reconciled destination does (commit protocol, 2): a
later copy adds new artifacts, and retires those that have left the source. But a copy is no writer.
It claims nothing and leaves no ``writer_id``, so that no writer takes the copy for its own work.
The target must be empty, or an earlier state of the same archive that no writer has claimed. If a
writer claims the target meanwhile, the copy's swap fails, and the copy stops.

A copy keeps no notes. One that was interrupted is run again: it adopts objects that exist with the
same size and sha256.
"""

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from laredo_archive.errors import (
    ArchiveMissing,
    ArtifactDamaged,
    ArtifactMissing,
    CopyRefused,
    CopyStopped,
    DestinationError,
    ManifestDamaged,
    OfTheOriginal,
)
from laredo_archive.failpoint import reach
from laredo_archive.maintain.collect import DAY, CoveredPositions, file_keys_of
from laredo_archive.maintain.copy_objects import Carrier, Load, Tally
from laredo_archive.manifest import object_keys, rules
from laredo_archive.manifest.model import Artifact, FormatEntry, Manifest, Parts, Retired
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.manifest.updates import later
from laredo_archive.read import location
from laredo_archive.read.location import ArchiveLocation, FoundArchive
from laredo_archive.read.objects import UNWATCHED, ReadProgress
from laredo_archive.storage.destination import Destination, ObjectInfo
from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.write.claim import by_content, identity, own_parts, unfit
from laredo_archive.write.manifest_store import Counts, Environment, ManifestStore
from laredo_archive.write.part_lists import PartsLists
from laredo_archive.write.uploads import stored
from laredo_model import position as positions
from laredo_service.log import Log


class CopyTarget(NamedTuple):
    """The target of a copy."""

    destination: Destination
    key_prefix: str

    @property
    def uri(self) -> str:
        """The URI of the target's manifest."""
        return self.destination.uri_of(object_keys.manifest_key(self.key_prefix))


def target_at(target_location: ArchiveLocation, source: FoundArchive) -> CopyTarget:
    """The target at a location: its archive, or else one with a new key prefix.

    If the location doesn't end with the source's key prefix, its last name becomes the key prefix,
    so that a writer can have the directory above as its destination.

    :raises CopyRefused: if there is another table's archive, or one that was moved, or the
        two archives overlap.
    :raises DestinationUnavailable: if it can't be tested for conditional writes now.
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
            f"it is the archive of {there.manifest.table}, not of {source.manifest.table}; copy to"
            " another location",
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
            f"the source {source.uri} contains it, or is inside it; give each its own directory",
        )


def _is_within(inner: str, outer: str) -> bool:
    return inner == outer or (outer.endswith("/") and inner.startswith(outer))


def _extent(target: CopyTarget) -> tuple[str, str]:
    """The service, and the common prefix of the archive's URIs."""
    destination = target.destination
    return destination.location.removeprefix(destination.uri), target.uri.removesuffix(
        object_keys.MANIFEST
    )


def refuse_unfit(
    target: CopyTarget, found: FoundArchive, own: Manifest, where: str, *, take_over: bool
) -> None:
    """Check that the target's manifest ``own`` may become a copy of the one ``found`` at ``where``.

    :raises CopyRefused: if it may not.
    """
    source = found.manifest
    if own.writer_id is not None and not take_over:
        raise CopyRefused(
            target.uri,
            f"writer {own.writer_id} (term {own.writer_term}) has claimed it, and may be running;"
            " copy to another location. If that writer is stopped for good, copy with --take-over,"
            " which fences it",
        )
    if source.head is not None and own.head is not None and own.head > source.head:
        raise CopyRefused(
            target.uri,
            f"it is ahead: it ends at {_head(own)}, and {where} ends at {_head(source)}; copy in"
            " the other direction, or to another location",
        )
    reason = unfit(source, own, found.parts_files())
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

    It has no writer: with the source's writer_id, that writer would take the copy for its own
    work. The term only grows, so a fenced writer stays fenced. ``unneeded``: keys of objects that
    may have been copied for nothing. ``in_files``: keys of those that files of parts name.
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


log = Log(__name__)

ROUNDS = 20
"""Times that a copy is planned again because the source has retired an artifact of the plan."""


@dataclass(frozen=True)
class Copied:
    """A finished copy."""

    #: The copy's manifest.
    uri: str
    #: Its content.
    manifest: Manifest
    #: Counts of copied and adopted objects.
    tally: Tally
    #: Objects that the target's manifest had before.
    kept: int


class _Slot(NamedTuple):
    """An object to copy: its entry in the source, and its key in the target's manifest, if any."""

    artifact: Artifact
    format_id: str
    entry: FormatEntry
    own_key: str | None


class _Before(NamedTuple):
    """State of the target before its manifest is changed."""

    own: Manifest
    unused: dict[object, list[FormatEntry]]
    """Its manifest's entries that aren't matched yet, by content."""
    sizes: Mapping[str, int]
    """Sizes of the objects that were listed there, by key."""


def copy(
    source: FoundArchive,
    target_location: ArchiveLocation,
    *,
    take_over: bool = False,
    progress: ReadProgress = UNWATCHED,
    environment: Environment | None = None,
) -> Copied:
    """Make the archive at ``target_location`` the same as ``source``.

    ``take_over``: even if a writer has claimed the target; if that writer still runs, it is
    fenced.

    :raises CopyRefused: if the target is something else, or the source is empty.
    :raises CopyStopped: if it ended halfway; its ``__cause__`` is the failure, and the target's
        manifest is unchanged.
    :raises ArchiveError: if a manifest can't be read, or the target's can't be written.
    """
    target = target_at(target_location, source)
    return _Copy(source, target, take_over, progress, environment or Environment()).run()


class _Copy:
    def __init__(
        self,
        source: FoundArchive,
        target: CopyTarget,
        take_over: bool,
        progress: ReadProgress,
        environment: Environment,
    ) -> None:
        self._source = source
        self._source_uri = source.destination.uri_of(source.manifest_key)
        self._target = target
        self._take_over = take_over
        self._store = ManifestStore(
            target.destination, source.manifest.table, target.key_prefix, environment, Counts()
        )
        self._carrier = Carrier(
            target.destination, NewNames(secrets.token_hex(8)), environment, progress
        )
        self._parts = source.parts_files()
        self._progress = progress
        self._kept = 0

    def run(self) -> Copied:
        for _ in range(ROUNDS):
            wanted = self._sound(self._source.manifest)
            absent = Manifest(wanted.table, self._store.environment.now())
            try:
                change = partial(self._changed, wanted)
                manifest = self._store.rewrite(change, None, absent=absent)
            except CopyStopped as stopped:
                if not self._has_left(stopped.__cause__):
                    raise
                log.info("copied artifact retired by the source", table=wanted.table)
            else:
                self._drop_left_overs()
                return Copied(self._target.uri, manifest, self._carrier.tally, self._kept)
        raise CopyRefused(
            self._source_uri,
            f"it has retired the artifact that was being copied, {ROUNDS} times; raise its"
            " retention.keep_epochs, or its collector's grace period",
        )

    def _sound(self, manifest: Manifest) -> Manifest:
        for contradiction in rules.check(manifest):
            raise ManifestDamaged(self._source_uri, contradiction)
        if manifest.by_original:
            raise OfTheOriginal(self._source_uri)
        if not manifest.artifacts:
            raise CopyRefused(self._source_uri, "there is nothing in it yet")
        return manifest

    def _has_left(self, failure: BaseException | None) -> bool:
        """True if ``failure`` is about an object that the source no longer names."""
        if not isinstance(failure, ArtifactMissing | ArtifactDamaged):
            return False
        manifest = location.read_manifest(self._source.destination, self._source.manifest_key)
        self._source = self._source._replace(manifest=manifest)
        if failure.uri in {self._origin(entry) for entry in manifest.named()}:
            return False
        # Positions in names show which objects the files of parts name.
        listed = CoveredPositions(file_keys_of(manifest), self._source.key_prefix)
        return not listed.has(failure.uri.removeprefix(self._source.destination.uri))

    def _origin(self, entry: FormatEntry) -> str:
        return self._source.destination.uri_of(self._source.locate(entry.key))

    def _drop_left_overs(self) -> None:
        """Delete unfinished uploads of killed copies; young ones may be another copy's work."""
        with suppress(DestinationError):  # the copy is done; a collection drops them too
            prefix = self._target.key_prefix
            is_ours = partial(object_keys.is_begun, key_prefix=prefix)
            self._target.destination.collect_unfinished(prefix, DAY, is_ours)

    def _changed(self, wanted: Manifest, own: Manifest) -> Manifest | None:
        """``own`` as a copy of ``wanted``, once all of its objects exist."""
        # Only this plan's lists: an earlier plan may have put other objects into its lists.
        self._lists = PartsLists(self._carrier.new_names)
        found = self._source._replace(manifest=wanted)
        try:
            refuse_unfit(self._target, found, own, self._source_uri, take_over=self._take_over)
        except (DestinationError, ArtifactDamaged, ArtifactMissing) as failure:
            # A list of parts may have left the source since its manifest was read.
            raise CopyStopped(failure, self._target.uri, 0, 1) from failure
        self._progress.step(f"listing {self._target.uri}")
        there = {info.key: info.size_bytes for info in self._listed()}
        self._kept = 0
        before = _Before(own, by_content(own), there)
        artifacts = self._copied(wanted.artifacts, before)
        reach("copy.objects")
        return following(wanted, own, artifacts, self._carrier.names.values(), self._lists.in_files)

    def _copied(self, artifacts: Sequence[Artifact], before: _Before) -> list[Artifact]:
        """``artifacts`` as the target's manifest names them, once all of their objects exist."""
        # Parts first: merged diffs may have many more parts than the manifest has artifacts.
        listed = [replace(each, parts=self._copied_parts(each, before)) for each in artifacts]
        slots = self._slots(listed, before)
        names = self._names_there(slots, before)
        absent = [slot for slot in slots if slot.entry.key not in names]
        lacking = [slot for slot in absent if not slot.entry.lost]
        self._bring(lacking, before, len(slots))
        for slot in lacking:
            names[slot.entry.key] = self._carrier.names[self._origin(slot.entry)]
        for slot in absent:
            if slot.entry.lost:
                names[slot.entry.key] = self._name_of_lost(slot, before, names.values())
        return [self._as_named(artifact, names) for artifact in listed]

    def _copied_parts(self, merged: Artifact, before: _Before) -> Parts | None:
        if merged.parts is None:
            return None
        mine = own_parts(before.own, merged)
        if mine is not None:
            return mine
        try:
            diffs = self._parts.diffs_of(merged)
        except (DestinationError, ArtifactDamaged, ArtifactMissing) as failure:
            raise CopyStopped(failure, self._target.uri, 0, 1) from failure
        parts = Parts(merged.parts.count, tuple(self._copied(diffs, before)))
        return self._lists.listed(self._store, before.own, merged, parts)

    def _listed(self) -> Iterator[ObjectInfo]:
        """List the target's objects.

        Called after the target's manifest was read, so that the list is valid for the swap.
        """
        return self._target.destination.list(self._target.key_prefix)

    def _names_there(self, slots: Sequence[_Slot], before: _Before) -> dict[str, str]:
        """By the source's key, the target's key of each object that is already copied."""
        retired, sizes = before.own.retired_keys(), before.sizes
        names: dict[str, str] = {}
        for _, _, entry, own_key in slots:
            for name in (own_key, self._carrier.names.get(self._origin(entry))):
                if name and name not in retired and sizes.get(name) == entry.size_bytes:
                    names.setdefault(entry.key, name)
        self._kept += sum(
            slot.own_key is not None and names.get(slot.entry.key) == slot.own_key for slot in slots
        )
        return names

    def _bring(self, lacking: Sequence[_Slot], before: _Before, wanted: int) -> None:
        avoid = before.own.known_keys()
        content = [
            stored(
                self._source.destination,
                self._source.locate(entry.key),
                entry.size_bytes,
                entry.sha256,
            )
            for _, _, entry, _ in lacking
        ]
        loads = [
            Load(one, self._name_for(slot)) for one, slot in zip(content, lacking, strict=True)
        ]
        try:
            self._carrier.bring(loads, before.sizes, avoid)
        except (DestinationError, ArtifactDamaged, ArtifactMissing) as failure:
            missing = sum(one.origin not in self._carrier.names for one in content)
            raise CopyStopped(failure, self._target.uri, wanted - missing, wanted) from failure

    def _name_for(self, slot: _Slot) -> str:
        """Key of the object in the target: its name in the source, or the name a writer gives it.

        An object keeps its name only if that has a writer's form: the source's manifest may use any
        name, even one that another program's object has in the target.
        """
        key, prefix = self._source.locate(slot.entry.key), self._target.key_prefix
        name = f"{prefix}{key.removeprefix(self._source.key_prefix)}"
        in_folder = object_keys.is_in_folder(name, prefix, slot.artifact.epoch)
        if in_folder and object_keys.is_own(name, prefix):
            return name
        return object_keys.artifact_key(prefix, slot.artifact, slot.format_id)

    def _name_of_lost(self, slot: _Slot, before: _Before, taken: Collection[str]) -> str:
        """Key for an object that nobody has whole: its entry is carried over, still marked."""
        if slot.own_key is not None:
            return slot.own_key
        name = self._name_for(slot)
        is_free = name not in taken and name not in before.own.known_keys()
        return name if is_free else self._carrier.new_names.instead_of(name)

    def _slots(self, wanted: Sequence[Artifact], before: _Before) -> list[_Slot]:
        slots = []
        for artifact in wanted:
            for format_id, entry in artifact.formats.items():
                mine = before.unused.get(identity(artifact, format_id, entry))
                key = mine.pop(0).key if mine else None
                # A re-base at the source may have given the artifact to another epoch.
                prefix, epoch = self._target.key_prefix, artifact.epoch
                if key is not None and not object_keys.is_in_folder(key, prefix, epoch):
                    key = None
                slots.append(_Slot(artifact, format_id, entry, key))
        return slots

    def _as_named(self, artifact: Artifact, names: Mapping[str, str]) -> Artifact:
        formats = {
            format_id: replace(
                entry, key=names[entry.key], uri=self._target.destination.uri_of(names[entry.key])
            )
            for format_id, entry in artifact.formats.items()
        }
        return replace(artifact, formats=formats)
