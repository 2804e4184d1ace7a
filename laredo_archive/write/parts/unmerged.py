"""Takes a merged diff apart again, where a base begins at a boundary that it hides."""

from laredo_archive.manifest import rules
from laredo_archive.manifest.merged import unfolding
from laredo_archive.manifest.merged.parts_file import PartsFiles
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.write.manifest_store import ManifestStore


def with_boundary(store: ManifestStore, manifest: Manifest, base: Artifact) -> Manifest:
    """``manifest`` in which an artifact ends where ``base`` does, if one of a merged diff's parts
    does: these take its place, and it is retired. Else ``manifest`` itself.

    :raises ArtifactMissing, ArtifactDamaged: if a file that lists them can't be read.
    """
    inside = unfolding.at(base.to_position)

    def wanted(before: Artifact, diff: Artifact) -> bool:
        follows = diff.epoch == base.epoch - 1 and diff.history == base.history
        return follows and inside(before, diff)

    parts = PartsFiles(store.destination, str, store.key_prefix)
    apart = unfolding.unfolded(manifest, wanted, parts.diffs_of)
    if len(apart.artifacts) == len(manifest.artifacts):
        return manifest
    kept = {entry.key for entry in apart.named()}
    return rules.with_retired(apart, (e for e in manifest.named() if e.key not in kept))
