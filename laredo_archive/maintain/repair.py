"""Repairs an archive: objects that are missing or damaged come from another destination.

A missing object gets its own name again, if that is still free. A damaged one stays as it is, since
no object is ever replaced (docs/commit-protocol.md, 3): a whole one is uploaded under a new name, a
swap of the manifest names that instead, and retires the damaged one, for the collector to delete. A
file that lists the parts of a merged diff is never changed, so of its objects only missing ones can
be restored.

A repair keeps no notes. One that was interrupted is run again.
"""

import math
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from laredo_archive.errors import (
    ArtifactDamaged,
    ArtifactLost,
    ArtifactMissing,
    OfTheOriginal,
    RepairRefused,
)
from laredo_archive.failpoint import reach
from laredo_archive.maintain.verify import name_of
from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest import object_keys, rules
from laredo_archive.manifest.merged import PartsFiles
from laredo_archive.manifest.model import Artifact, FormatEntry, Manifest
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.read.artifact_reader import ArtifactFiles
from laredo_archive.read.location import FoundArchive
from laredo_archive.read.objects import UNWATCHED, ReadProgress
from laredo_archive.write.claim import by_content, identity
from laredo_archive.write.manifest_store import Counts, Environment, ManifestStore
from laredo_archive.write.uploads import store_object, stored
from laredo_service.log import Log

log = Log(__name__)


class NamedObject(NamedTuple):
    """An object that the manifest names, or a file of parts that it names."""

    #: The manifest's artifact: ``artifact``, or the merged diff of which that is a part.
    top: Artifact
    #: The artifact that the object contains.
    artifact: Artifact
    format_id: str
    entry: FormatEntry
    #: Whether only a file of parts has the entry.
    is_listed: bool

    @property
    def is_part(self) -> bool:
        """True if the object is of a part of a merged diff."""
        return self.artifact is not self.top

    def __str__(self) -> str:
        return f"{name_of(self.artifact)} of epoch {self.artifact.epoch} ({self.format_id})"


class DamagedObject(NamedTuple):
    """An object that differs from its entry."""

    named: NamedObject
    #: The damage.
    failure: ArtifactMissing | ArtifactDamaged


class RepairedObject(NamedTuple):
    """An object that was missing or damaged and is whole again; in a dry run, would be."""

    #: The damage, with the object's URI.
    reason: str
    #: URI of the object that the bytes come from.
    origin: str
    #: URI of the whole object; None in a dry run.
    uri: str | None


@dataclass
class RepairReport:
    """Report of a repair of one destination: findings and actions."""

    #: The manifest.
    uri: str
    #: Objects that the manifest names, and those that files of parts name, if these were read.
    objects: int = 0
    #: Objects that were read, and have the sha256 of their entries.
    read: int = 0
    repaired: list[RepairedObject] = field(default_factory=list)
    lost: list[ArtifactLost] = field(default_factory=list)
    #: Lost objects that no boundary after a later, whole base needs: the manifest marks them as
    #: lost (not in a dry run).
    gone: list[ArtifactLost] = field(default_factory=list)


def repair(
    target: FoundArchive,
    others: Sequence[FoundArchive],
    *,
    dry_run: bool = False,
    sums_bytes: int | None = None,
    progress: ReadProgress = UNWATCHED,
    environment: Environment | None = None,
) -> RepairReport:
    """Check every object that ``target``'s manifest names, and restore what isn't whole.

    ``others`` are tried in order; the bytes must have the manifest's sha256. ``sums_bytes``: None
    reads every object; else objects that the manifest names are compared by their sizes in a
    listing, and only about that many bytes are read, of the newest artifacts. ``dry_run``: nothing
    is written, but objects of others are read.

    :raises RepairRefused: if ``target`` or one of ``others`` can't be used for it.
    :raises OfTheOriginal: if the original program wrote it.
    :raises ManifestError: if the manifest is damaged.
    :raises DestinationError: if a destination is unavailable; finished repairs stay.
    """
    for other in others:
        _refuse_unfit(target, other)
    running = _Repair(target, others, progress, environment or Environment(), dry_run=dry_run)
    return running.run(sums_bytes)


def _refuse_unfit(target: FoundArchive, other: FoundArchive) -> None:
    uri = other.destination.uri_of(other.manifest_key)
    if other.manifest.table != target.manifest.table:
        raise RepairRefused(
            uri, f"it is the archive of {other.manifest.table}, not of {target.manifest.table}"
        )
    if (other.destination.location, other.manifest_key) == (
        target.destination.location,
        target.manifest_key,
    ):
        raise RepairRefused(uri, "it is the archive that is to be repaired; name another one")


_RECENT_S = 10.0


class _Repair:
    def __init__(
        self,
        target: FoundArchive,
        others: Sequence[FoundArchive],
        progress: ReadProgress,
        environment: Environment,
        *,
        dry_run: bool,
    ) -> None:
        self._destination = target.destination
        self._store = ManifestStore(
            target.destination, target.manifest.table, target.key_prefix, environment, Counts()
        )
        if target.manifest.by_original:
            raise OfTheOriginal(self._store.uri)
        if target.is_renamed_copy:
            raise RepairRefused(
                self._store.uri,
                "its objects have other names than its manifest has (was the archive moved?);"
                " copy a whole archive there instead",
            )
        self._manifest = target.manifest
        self._files = ArtifactFiles(target.destination, target.locate, progress)
        self._parts = target.parts_files()
        self._others = [(each, by_content(each.manifest), each.parts_files()) for each in others]
        self._progress = progress
        self._dry_run = dry_run
        self._new_names = NewNames(secrets.token_hex(8))
        self._report = RepairReport(self._store.uri)
        self._now: Manifest | None = None
        self._read_at = -math.inf
        self._lost_bases: set[int] = set()
        """Epochs whose base isn't whole."""
        self._known: dict[str, bool] = {}
        """True for each object, by key, to mark as lost in the manifest; False: no longer lost."""

    def run(self, sums_bytes: int | None) -> RepairReport:
        tops = tuple(reversed(self._manifest.artifacts))
        self._repair([each for top in tops for each in _objects(top, top.with_parts())], sums_bytes)
        if sums_bytes is None:
            for top in tops:
                self._repair_listed(top, top)
        if self._known and not self._dry_run:
            self._store.rewrite(self._marked, None)
        return self._report

    def _repair_listed(self, top: Artifact, within: Artifact) -> None:
        """Repair the objects that only files of parts name, from ``within`` down."""
        for merged in within.with_parts():
            if merged.parts is None or merged.parts.file is None:
                continue
            self._report.objects += 1
            try:
                diffs = self._parts.diffs_of(merged)
            except (ArtifactMissing, ArtifactDamaged) as failure:
                if _names(self._store.read(), {merged.parts.file.key, *top.lists_of_parts()}):
                    name = f"the list of the parts of {name_of(merged)}"
                    why_not = ["every destination has its own list"]
                    self._report.lost.append(
                        ArtifactLost(name, str(failure), why_not, is_part=True)
                    )
                continue
            self._report.read += 1
            self._repair(
                [
                    each
                    for diff in diffs
                    for each in _objects(top, diff.with_parts(), are_listed=True)
                ],
                None,
            )
            for diff in diffs:
                self._repair_listed(top, diff)

    def _repair(self, named: Sequence[NamedObject], sums_bytes: int | None) -> None:
        self._report.objects += len(named)
        was_lost = {each.entry.key for each in named if each.entry.lost and not each.is_listed}
        for found in self._damaged(named, sums_bytes):
            was_lost.discard(found.named.entry.key)
            try:
                repaired = self._restored(found)
            except ArtifactLost as lost:
                self._note_lost(found.named, lost)
            else:
                if repaired is not None:
                    self._report.repaired.append(repaired)
                    if found.named.entry.lost and repaired.uri is not None:
                        self._known[found.named.entry.key] = False
        if sums_bytes is None:
            # They have been put back.
            self._known.update(dict.fromkeys(was_lost, False))

    def _note_lost(self, named: NamedObject, lost: ArtifactLost) -> None:
        """Note an object that no destination has whole; newer artifacts were checked before it."""
        if named.artifact.is_snapshot:
            self._lost_bases.add(named.top.epoch)
        replaced = any(
            each.is_snapshot and each.epoch > named.top.epoch and each.epoch not in self._lost_bases
            for each in self._manifest.artifacts
        )
        if not replaced or named.is_listed:
            self._report.lost.append(lost)
            return
        self._report.gone.append(lost)
        if not named.entry.lost:
            self._known[named.entry.key] = True

    def _marked(self, manifest: Manifest) -> Manifest | None:
        """The manifest with these objects marked as lost, or no longer so."""
        moved = {
            entry.key: replace(entry, lost=self._known[entry.key])
            for entry in manifest.named()
            if self._known.get(entry.key, entry.lost) != entry.lost
        }
        if not moved:
            return None
        artifacts = tuple(artifact.moved(moved) for artifact in manifest.artifacts)
        return replace(manifest, artifacts=artifacts)

    def _damaged(
        self, named: Sequence[NamedObject], sums_bytes: int | None
    ) -> Iterator[DamagedObject]:
        sizes: dict[str, int] | None = None
        if sums_bytes is None:
            self._files.expect(each.entry for each in named)
            self._progress.expect(sum(each.entry.size_bytes for each in named))
        else:
            prefix = object_keys.objects_prefix(self._store.key_prefix)
            keys = {each.entry.key for each in named}
            listed = self._destination.list(prefix)
            sizes = {info.key: info.size_bytes for info in listed if info.key in keys}
        for each in named:
            entry = each.entry
            self._progress.step(f"epoch {each.artifact.epoch}: {name_of(each.artifact)}")
            try:
                if sizes is not None and sizes.get(entry.key) != entry.size_bytes:
                    self._files.check_size(entry)
                if sums_bytes is None or entry.size_bytes <= sums_bytes:
                    sums_bytes = None if sums_bytes is None else sums_bytes - entry.size_bytes
                    self._files.check_bytes(entry)
                    self._report.read += 1
            except (ArtifactMissing, ArtifactDamaged) as failure:
                yield DamagedObject(each, failure)

    def _recent(self) -> Manifest | None:
        """The manifest, read again when some time has passed: thousands of objects may be lost."""
        if time.monotonic() > self._read_at + _RECENT_S:
            self._now = self._store.read()
            self._read_at = time.monotonic()
        return self._now

    def _restored(self, found: DamagedObject) -> RepairedObject | None:
        """``found``, restored; None if the manifest doesn't name it any more.

        :raises ArtifactLost: if no destination has it whole.
        """
        named = found.named
        keys = set(named.top.lists_of_parts()) if named.is_listed else {named.entry.key}
        if not _names(self._recent(), keys):
            return None
        why_not: list[str] = []
        if named.is_listed and isinstance(found.failure, ArtifactDamaged):
            why_not.append("a file of parts names it, so no other object can take its place")
            raise ArtifactLost(str(named), str(found.failure), why_not, is_part=True)
        for other, known, parts in self._others:
            try:
                there = _entry_in(other, known, parts, named)
                if there is None:
                    uri = other.destination.uri_of(other.manifest_key)
                    why_not.append(f"{uri} doesn't name it")
                    continue
                ArtifactFiles(other.destination, other.locate, UNWATCHED).check_size(there)
                manifest = self._store.read()
                if manifest is None or not _names(manifest, keys):
                    return None
                key = self._copied(found, other, there, manifest)
            except (ArtifactMissing, ArtifactDamaged) as failure:
                why_not.append(str(failure).rstrip("."))
            else:
                origin = other.destination.uri_of(other.locate(there.key))
                uri_now = None if key is None else self._destination.uri_of(key)
                return RepairedObject(str(found.failure), origin, uri_now)
        raise ArtifactLost(str(named), str(found.failure), why_not, is_part=named.is_part)

    def _copied(
        self, found: DamagedObject, other: FoundArchive, there: FormatEntry, manifest: Manifest
    ) -> str | None:
        """The key that the bytes of ``there`` have here now; None in a dry run."""
        if self._dry_run:
            ArtifactFiles(other.destination, other.locate).check_bytes(there)
            return None
        avoid = manifest.known_keys()
        if isinstance(found.failure, ArtifactMissing):
            avoid.discard(found.named.entry.key)
        key = store_object(
            self._destination,
            found.named.entry.key,
            stored(other.destination, other.locate(there.key), there.size_bytes, there.sha256),
            avoid=avoid,
            new_names=self._new_names,
            environment=self._store.environment,
        )
        reach("repair.stored")
        if key != found.named.entry.key:
            if found.named.is_listed:
                raise ArtifactDamaged(
                    self._destination.uri_of(found.named.entry.key),
                    "another object has this name, and a file of parts can't name another key",
                )
            self._store.rewrite(partial(self._renamed, found.named.entry, key), None)
            reach("repair.named")
        log.info(
            "object restored",
            table=manifest.table,
            uri=self._destination.uri_of(key),
            origin=other.destination.uri_of(other.locate(there.key)),
            reason=str(found.failure),
        )
        return key

    def _renamed(self, entry: FormatEntry, key: str, manifest: Manifest) -> Manifest | None:
        if entry.key not in {named.key for named in manifest.named()}:
            return None  # it has left meanwhile; the upload will be collected
        uri = self._destination.uri_of(key)
        moved = {entry.key: replace(entry, key=key, uri=uri, lost=False)}
        artifacts = tuple(artifact.moved(moved) for artifact in manifest.artifacts)
        return rules.with_retired(replace(manifest, artifacts=artifacts), [entry])


def _objects(
    top: Artifact, artifacts: Iterable[Artifact], *, are_listed: bool = False
) -> Iterator[NamedObject]:
    for artifact in artifacts:
        for format_id, entry in sorted(artifact.formats.items()):
            yield NamedObject(top, artifact, format_id, entry, are_listed)


def _names(manifest: Manifest | None, keys: set[str]) -> bool:
    """True if ``manifest`` still names one of these keys."""
    return manifest is not None and any(entry.key in keys for entry in manifest.named())


def _entry_in(
    archive: FoundArchive,
    known: Mapping[object, Sequence[FormatEntry]],
    parts: PartsFiles,
    named: NamedObject,
) -> FormatEntry | None:
    """Entry of ``archive`` with the same content; None if it names none.

    :raises ArtifactMissing, ArtifactDamaged: if a file of parts that may name it can't be read.
    """
    wanted = identity(named.artifact, named.format_id, named.entry)
    there = known.get(wanted)
    if not there and named.is_part:
        to_it = merged_.around(named.artifact)
        there = by_content(merged_.unfolded(archive.manifest, to_it, parts.diffs_of)).get(wanted)
    return there[0] if there else None
