"""Lists of a merged diff's parts, in the manifest or in a file, and the diff taken apart again."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from io import BytesIO

from laredo_archive.codec import ByteSource
from laredo_archive.failpoint import reach
from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest import object_keys, rules
from laredo_archive.manifest.merged import PartsFiles
from laredo_archive.manifest.model import Artifact, FormatEntry, Manifest, Parts
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.write.manifest_store import ManifestStore
from laredo_archive.write.uploads import Content, store_object


class PartsLists:
    """The lists of a merged diff's parts, as each destination's manifest names them."""

    def __init__(self, new_names: NewNames) -> None:
        self._new_names = new_names
        self.in_files: set[str] = set()
        """Keys of the objects that only the files written so far name, and no manifest."""

    def with_parts(
        self, store: ManifestStore, manifest: Manifest, merged: Artifact
    ) -> Artifact | None:
        """``merged`` with the diffs of ``manifest`` as its parts; None if they aren't there.

        :raises DestinationError: if a file with them can't be uploaded.
        """
        diffs = merged_.place_of(manifest, merged)
        if not diffs:
            return None
        parts = merged_.parts_of(diffs)
        return replace(merged, parts=self.listed(store, manifest, merged, parts))

    def listed(
        self, store: ManifestStore, manifest: Manifest, merged: Artifact, parts: Parts
    ) -> Parts:
        """``parts``, for ``manifest`` itself, or in a file if there are many.

        :raises DestinationError: if it can't be uploaded.
        """
        if parts.listed <= merged_.LISTED_AT_MOST or merged.from_position is None:
            return parts
        data = merged_.to_bytes(parts.diffs)
        key = store_object(
            store.destination,
            object_keys.parts_key(
                store.key_prefix, merged.epoch, merged.from_position, merged.to_position
            ),
            _in_memory(data),
            avoid=manifest.known_keys(),
            new_names=self._new_names,
            environment=store.environment,
        )
        self.in_files.update(entry.key for entry in parts.objects())
        reach("parts.listed")
        entry = FormatEntry(
            uri=store.destination.uri_of(key),
            size_bytes=len(data),
            key=key,
            sha256=sha256(data).hexdigest(),
        )
        return Parts(parts.count, file=entry)


def _in_memory(data: bytes) -> Content:
    @contextmanager
    def opened() -> Iterator[ByteSource]:
        yield BytesIO(data)

    return Content("a list of parts", len(data), sha256(data).hexdigest(), opened)


def with_boundary(store: ManifestStore, manifest: Manifest, base: Artifact) -> Manifest:
    """``manifest`` with a boundary at the position of ``base``, even if a merged diff hid it.

    Such a merged diff is retired, and its parts take its place. Without one, ``manifest`` itself.

    :raises ArtifactMissing, ArtifactDamaged: if a file that lists them can't be read.
    """
    inside = merged_.at(base.to_position)

    def wanted(before: Artifact, diff: Artifact) -> bool:
        follows = diff.epoch == base.epoch - 1 and diff.history == base.history
        return follows and inside(before, diff)

    parts = PartsFiles(store.destination, str, store.key_prefix)
    apart = merged_.unfolded(manifest, wanted, parts.diffs_of)
    if len(apart.artifacts) == len(manifest.artifacts):
        return manifest
    kept = {entry.key for entry in apart.named()}
    return rules.with_retired(apart, (e for e in manifest.named() if e.key not in kept))
