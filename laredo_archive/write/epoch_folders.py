"""Puts a relabelled diff's objects into its new epoch's folder (commit protocol, re-base).

Readers of other writers' programs compute an object's name from its artifact's epoch, and others
list by ``epoch=N/``. So an object is in its own epoch's folder before a manifest has that epoch:
by a link, by a copy that the store makes, or by an upload of the same bytes. What the former
epoch's folder holds stays there, as ``former`` in the manifest, until that epoch is retired.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog

from laredo_archive.errors import ArtifactMissing
from laredo_archive.failpoint import reach
from laredo_archive.manifest import object_keys, rules
from laredo_archive.manifest.entries import FormatEntry
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.write.manifest_store import ManifestStore
from laredo_archive.write.parts.unmerged import with_boundary
from laredo_archive.write.uploads import copy_object, is_there, stored

log = structlog.get_logger(__name__)


class EpochFolders:
    """The objects of relabelled diffs, by destination, under the names that they have got."""

    def __init__(self, new_names: NewNames) -> None:
        self._new_names = new_names
        self._placed: dict[tuple[str, str], tuple[Manifest, str]] = {}
        """By destination's location and former key: the manifest for which the object was seen in
        its folder, and its key there."""

    def prepare(self, stores: Sequence[ManifestStore], base: Artifact) -> None:
        """Copy everywhere what ``base`` will take over there, before any manifest changes.

        :raises DestinationError: if one is unavailable; what is done stays done.
        """
        for store in stores:
            manifest = store.current()
            if manifest is not None:
                self.taken_over(store, manifest, base)
        reach("folders.prepared")

    def taken_over(self, store: ManifestStore, manifest: Manifest, base: Artifact) -> Manifest:
        """``manifest`` whose diffs that ``base`` takes over name objects in its epoch's folder.

        :raises DestinationError: if the destination is unavailable.
        """
        manifest = with_boundary(store, manifest, base)
        diffs = [diff.relabelled(base.epoch) for diff in rules.taken_over(manifest, base)]
        return rules.with_moved(manifest, self.entries(store, manifest, diffs))

    def entries(
        self, store: ManifestStore, manifest: Manifest, diffs: Iterable[Artifact]
    ) -> dict[str, FormatEntry]:
        """The objects of ``diffs`` in their epochs' folders, by the keys that they have.

        ``diffs`` carry their new epoch. Those that are in their folder, or missing, are left out.
        Each was seen, or made, after ``manifest`` was read: so it holds for the swap of that.

        :raises DestinationError: if the destination is unavailable.
        """
        version = _Version(store, manifest, manifest.known_keys())
        elsewhere = [
            (diff, format_id, entry)
            for diff in diffs
            for format_id, entry in diff.formats.items()
            if not object_keys.is_in_folder(entry.key, store.key_prefix, diff.epoch)
        ]
        placed = store.environment.at_once(
            [partial(self._entry, version, *one) for one in elsewhere]
        )
        return {
            entry.key: there
            for (_, _, entry), there in zip(elsewhere, placed, strict=True)
            if there is not None
        }

    def _entry(
        self, version: "_Version", diff: Artifact, format_id: str, entry: FormatEntry
    ) -> FormatEntry | None:
        store = version.store
        target = store.destination.location, entry.key
        before, key = self._placed.get(target, (None, None))
        # A collector that deletes an object changes the manifest first.
        seen = before is version.manifest or (
            key is not None and is_there(store.destination, key, entry.size_bytes)
        )
        if key is None or key in version.known or not seen:
            wanted = object_keys.artifact_key(store.key_prefix, diff, format_id)
            name = wanted if key is None else self._new_names.instead_of(wanted)
            try:
                key = self._copy(version, entry, name)
            except ArtifactMissing as missing:
                # Nothing is lost by the re-base that isn't lost already; a base may be the cure.
                log.warning("relabelled diff not found", uri=missing.uri)
                return None
        self._placed[target] = version.manifest, key
        return replace(entry, key=key, uri=store.destination.uri_of(key))

    def _copy(self, version: "_Version", entry: FormatEntry, name: str) -> str:
        destination, environment = version.store.destination, version.store.environment
        key = copy_object(
            destination,
            entry.key,
            name,
            stored(destination, entry.key, entry.size_bytes, entry.sha256),
            avoid=version.known,
            new_names=self._new_names,
            environment=environment,
        )
        reach("folders.copied")
        return key


class _Version(NamedTuple):
    """One version of one destination's manifest."""

    store: ManifestStore
    manifest: Manifest
    known: set[str]
    """The keys that it mentions."""
