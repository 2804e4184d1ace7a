"""Repairs an archive: objects that are missing or damaged come from another destination.

An object that is missing gets its own name again, if that is still free. One that is damaged
stays as it is, since no object is ever replaced (docs/commit-protocol.md, 3): a whole one is
uploaded under a name never used before, the manifest names that instead, by compare-and-swap,
and the damaged one is retired, for the collector to delete.

Nothing is noted of a repair under way. One that was ended, at any moment, is begun again.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import structlog

from laredo_archive.errors import ArtifactDamaged, ArtifactMissing, OfTheOriginal
from laredo_archive.failpoint import reach
from laredo_archive.maintain.errors import ArtifactLost, RepairRefused
from laredo_archive.maintain.verify import name_of
from laredo_archive.manifest import object_keys, rules
from laredo_archive.manifest.entries import FormatEntry
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.read.artifact_reader import ArtifactFiles
from laredo_archive.read.location import FoundArchive
from laredo_archive.read.progress import UNWATCHED, ReadProgress
from laredo_archive.write.manifest_store import Counts, Environment, ManifestStore
from laredo_archive.write.reconcile import by_content, identity
from laredo_archive.write.uploads import store_object, stored

log = structlog.get_logger(__name__)


class DamagedObject(NamedTuple):
    """An object that isn't what the manifest says."""

    #: What it is of.
    artifact: Artifact
    format_id: str
    #: Its entry in the manifest.
    entry: FormatEntry
    #: What is wrong with it.
    failure: ArtifactMissing | ArtifactDamaged

    def __str__(self) -> str:
        return f"{name_of(self.artifact)} of epoch {self.artifact.epoch} ({self.format_id})"


class RepairedObject(NamedTuple):
    """An object that was missing or damaged and is whole again; in a dry run, would be."""

    #: What was wrong with it, with its URI.
    reason: str
    #: Where the bytes come from.
    origin: str
    #: Where it is now; None in a dry run.
    uri: str | None


@dataclass
class RepairReport:
    """What was found in one destination, and done about it."""

    #: The manifest.
    uri: str
    #: Objects that the manifest names.
    objects: int = 0
    #: How many of them were read and have the sha256 that the manifest says.
    read: int = 0
    repaired: list[RepairedObject] = field(default_factory=list)
    lost: list[ArtifactLost] = field(default_factory=list)


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

    ``others`` are asked in this order; the bytes must be those that the manifest's sha256 says.
    ``sums_bytes``: None reads every object; else all objects are compared by their sizes
    in a listing, and only about so many bytes are read, of the newest artifacts.
    ``dry_run``: nothing is written; what others have is read all the same.

    :raises RepairRefused: if ``target`` or one of ``others`` can't be used for it.
    :raises OfTheOriginal: if the original program wrote it.
    :raises ManifestError: if the manifest is damaged.
    :raises DestinationError: if a destination can't be asked; what was repaired stays so.
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
                "the objects there have other names than their manifest says (was it moved?);"
                " copy a whole archive there instead",
            )
        self._manifest = target.manifest
        self._files = ArtifactFiles(target.destination, target.locate, progress)
        self._others = [(other, by_content(other.manifest)) for other in others]
        self._progress = progress
        self._dry_run = dry_run
        self._new_names = NewNames(secrets.token_hex(8))
        self._report = RepairReport(self._store.uri)

    def run(self, sums_bytes: int | None) -> RepairReport:
        entries = [
            (artifact, format_id, entry)
            for top in reversed(self._manifest.artifacts)
            for artifact in top.with_parts()
            for format_id, entry in sorted(artifact.formats.items())
        ]
        self._report.objects = len(entries)
        for found in self._damaged(entries, sums_bytes):
            try:
                repaired = self._restored(found)
            except ArtifactLost as lost:
                self._report.lost.append(lost)
            else:
                if repaired is not None:
                    self._report.repaired.append(repaired)
        return self._report

    def _damaged(
        self, entries: Sequence[tuple[Artifact, str, FormatEntry]], sums_bytes: int | None
    ) -> Iterator[DamagedObject]:
        sizes: dict[str, int] | None = None
        if sums_bytes is None:
            self._files.expect(entry for _, _, entry in entries)
            self._progress.expect(sum(entry.size_bytes for _, _, entry in entries))
        else:
            prefix = object_keys.objects_prefix(self._store.key_prefix)
            named = {entry.key for _, _, entry in entries}
            listed = self._destination.list(prefix)
            sizes = {info.key: info.size_bytes for info in listed if info.key in named}
        for artifact, format_id, entry in entries:
            self._progress.step(f"epoch {artifact.epoch}: {name_of(artifact)}")
            try:
                if sizes is not None and sizes.get(entry.key) != entry.size_bytes:
                    self._files.check_size(entry)
                if sums_bytes is None or entry.size_bytes <= sums_bytes:
                    sums_bytes = None if sums_bytes is None else sums_bytes - entry.size_bytes
                    self._files.check_bytes(entry)
                    self._report.read += 1
            except (ArtifactMissing, ArtifactDamaged) as failure:
                yield DamagedObject(artifact, format_id, entry, failure)

    def _restored(self, found: DamagedObject) -> RepairedObject | None:
        """``found``, restored; None if the manifest doesn't name it any more.

        :raises ArtifactLost: if nobody has it whole.
        """
        manifest = self._store.read()
        if manifest is None or found.entry.key not in {entry.key for entry in manifest.named()}:
            return None
        why_not: list[str] = []
        for other, known in self._others:
            there = known.get(identity(found.artifact, found.format_id, found.entry))
            if not there:
                uri = other.destination.uri_of(other.manifest_key)
                why_not.append(f"{uri} doesn't name it")
                continue
            try:
                key = self._copied(found, other, there[0], manifest)
            except (ArtifactMissing, ArtifactDamaged) as failure:
                why_not.append(str(failure).rstrip("."))
            else:
                origin = other.destination.uri_of(other.locate(there[0].key))
                uri_now = None if key is None else self._destination.uri_of(key)
                return RepairedObject(str(found.failure), origin, uri_now)
        raise ArtifactLost(str(found), str(found.failure), why_not)

    def _copied(
        self, found: DamagedObject, other: FoundArchive, there: FormatEntry, manifest: Manifest
    ) -> str | None:
        """The key that the bytes of ``there`` have here now; None in a dry run."""
        if self._dry_run:
            ArtifactFiles(other.destination, other.locate).check_bytes(there)
            return None
        avoid = manifest.known_keys()
        if isinstance(found.failure, ArtifactMissing):
            avoid.discard(found.entry.key)
        key = store_object(
            self._destination,
            found.entry.key,
            stored(other.destination, other.locate(there.key), there.size_bytes, there.sha256),
            avoid=avoid,
            new_names=self._new_names,
            environment=self._store.environment,
        )
        reach("repair.stored")
        if key != found.entry.key:
            self._store.rewrite(partial(self._renamed, found.entry, key), None)
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
            return None  # it has left meanwhile; what was uploaded is collected
        moved = {entry.key: replace(entry, key=key, uri=self._destination.uri_of(key))}
        artifacts = tuple(artifact.moved(moved) for artifact in manifest.artifacts)
        return rules.with_retired(replace(manifest, artifacts=artifacts), [entry])
