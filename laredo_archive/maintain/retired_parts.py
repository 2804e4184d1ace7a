"""Objects that files of parts name, for the collector: kept while a file may be read.

A manifest names a file of parts, and only the file names the diffs in it: they may be millions. So
the collector goes by the positions in the file's own name. An object whose name has positions
within them counts as named by the file, and stays. Once a retired file's grace period is over, the
collector reads the file. The objects that it names take its place in ``retired``, and are deleted
like everything else there.
"""

from bisect import bisect_right
from collections.abc import Iterable

import structlog

from laredo_archive.errors import ArtifactDamaged, ArtifactMissing
from laredo_archive.manifest import object_keys
from laredo_archive.manifest.entries import FormatEntry
from laredo_archive.manifest.merged import parts_file
from laredo_archive.manifest.model import Manifest
from laredo_archive.manifest.object_keys import Span
from laredo_archive.storage.destination import Destination
from laredo_model.position import Position

log = structlog.get_logger(__name__)


class CoveredPositions:
    """The positions that some files of parts cover, to be asked for many objects."""

    def __init__(self, file_keys: Iterable[str], key_prefix: str) -> None:
        self._key_prefix = key_prefix
        spans = (object_keys.span_of(key, key_prefix) for key in file_keys)
        # The widest of those that begin at one position first: the others lie within it.
        files = sorted(
            (span for span in spans if span is not None and span.lists_parts),
            key=lambda span: (span.start, -span.end),
        )
        self._outermost: list[Span] = []
        for span in files:
            last = self._outermost[-1] if self._outermost else None
            if last is None or not last.covers(span):
                self._outermost.append(span)
        self._starts: list[Position] = [span.start for span in self._outermost]

    def has(self, key: str) -> bool:
        """True if the positions in the object's name are within those of one of the files.

        A file may name objects of earlier epochs, as a re-base gives diffs to a later one.
        """
        span = object_keys.span_of(key, self._key_prefix)
        if span is None:
            return False
        before = self._outermost[: bisect_right(self._starts, span.start)]
        return any(file.covers(span) for file in reversed(before))


def file_keys_of(manifest: Manifest) -> list[str]:
    """The keys of all files of parts that the manifest's diffs name."""
    diffs = (each for artifact in manifest.artifacts for each in artifact.with_parts())
    return [diff.parts.file.key for diff in diffs if diff.parts and diff.parts.file]


def is_file(key: str, key_prefix: str) -> bool:
    """True if the name is one of a file of parts."""
    span = object_keys.span_of(key, key_prefix)
    return span is not None and span.lists_parts


def named_in(destination: Destination, manifest: Manifest, key: str, key_prefix: str) -> list[str]:
    """The objects that only the file ``key`` names, which is retired: those may be deleted.

    A file that is gone or damaged names none: what it named is found by listing then.
    """
    found = destination.head(key)
    if found is None:
        return []
    entry = FormatEntry(destination.uri_of(key), found.size_bytes, key)
    try:
        diffs = parts_file.read(destination, key, entry, key_prefix)
    except (ArtifactMissing, ArtifactDamaged) as failure:
        log.warning("retired parts file not read", uri=failure.uri, reason=str(failure))
        return []
    kept, within = manifest.kept_keys(), CoveredPositions([key], key_prefix)
    needed = CoveredPositions(file_keys_of(manifest), key_prefix)
    named = dict.fromkeys(entry.key for diff in diffs for entry in diff.objects())
    return [one for one in named if one not in kept and within.has(one) and not needed.has(one)]
