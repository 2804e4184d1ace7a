"""Files of parts: immutable lists of the diffs that a merged diff takes the place of.

The manifest holds the parts of young merged diffs itself. A list that has become long goes into a
file, which the merged diff's entry names: so the manifest stays small however long the archive is.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from hashlib import sha256

from laredo_archive.errors import ArtifactDamaged
from laredo_archive.manifest import object_keys, parser
from laredo_archive.manifest.entries import FormatEntry
from laredo_archive.manifest.fields import Fields, WrongField, count, list_of
from laredo_archive.manifest.model import Artifact, Parts
from laredo_archive.storage.destination import Destination

VERSION = 1
LISTED_AT_MOST = 64
"""Longer lists go into a file: the manifest then holds some hundred entries after any time."""

REMEMBERED = 64
"""Lists that were loaded and are kept in memory: a stream may go on for months."""

LARGEST_BYTES = 16 << 20
LARGEST_PLAIN_BYTES = 64 << 20
"""A file with more is refused: the writer's own have some kilobytes."""
MOST_PLAIN_A_BYTE = 64
"""A file that unpacks to more is refused. Each diff has checksums, which nothing packs as small;
what unpacks a thousandfold would take gigabytes as objects."""


def to_bytes(diffs: Sequence[Artifact]) -> bytes:
    """The content of a file that lists ``diffs``; the same for the same ones."""
    lines = ",\n".join(diff.text for diff in diffs)
    plain = f'{{\n"parts_version":{VERSION},\n"diffs":[\n{lines}\n]\n}}\n'
    return gzip.compress(plain.encode(), mtime=0)


class PartsFiles:
    """Loads the parts of one archive's merged diffs; ``locate`` as for every other object."""

    def __init__(
        self, destination: Destination, locate: Callable[[str], str], key_prefix: str
    ) -> None:
        """``key_prefix``: the manifest's."""
        self._destination = destination
        self._locate = locate
        self._key_prefix = key_prefix
        self._loaded: dict[str, tuple[Artifact, ...]] = {}
        self._levels: dict[str, int] = {}
        """Number of files to read before each file that another file names, by key."""

    def diffs_of(self, merged: Artifact) -> tuple[Artifact, ...]:
        """The diffs that ``merged`` takes the place of, as parts of its epoch.

        :raises ArtifactMissing: if the file that lists them isn't there.
        :raises ArtifactDamaged: if it differs from its entry, or they don't lead where
            ``merged`` leads.
        """
        parts = merged.parts
        assert parts is not None, "a merged diff with parts"
        uri, diffs = self._listed(parts)
        wrong = _contradiction(merged, diffs)
        if wrong is not None:
            raise ArtifactDamaged(uri, wrong)
        return tuple(diff.relabelled(merged.epoch) for diff in diffs)

    def _listed(self, parts: Parts) -> tuple[str, tuple[Artifact, ...]]:
        if parts.file is None:
            manifest_key = object_keys.manifest_key(self._key_prefix)
            return self._destination.uri_of(manifest_key), parts.diffs
        key = self._locate(parts.file.key)
        level = self._levels.get(parts.file.key, 0)
        if level >= parser.DEEPEST_PARTS:
            uri = self._destination.uri_of(key)
            raise ArtifactDamaged(uri, f"lists within lists, more than {level} levels")
        diffs = self._loaded.pop(key, None)
        if diffs is None:
            diffs = read(self._destination, key, parts.file, self._key_prefix)
            self._levels.update(dict.fromkeys(_files_named(diffs), level + 1))
        while len(self._loaded) >= REMEMBERED:
            del self._loaded[next(iter(self._loaded))]
        self._loaded[key] = diffs
        return self._destination.uri_of(key), diffs


def read(
    destination: Destination, key: str, entry: FormatEntry, key_prefix: str
) -> tuple[Artifact, ...]:
    """The diffs that the file ``key`` lists, which ``entry`` describes.

    :raises ArtifactMissing: if it isn't there.
    :raises ArtifactDamaged: if it differs from ``entry``, or no list.
    """
    uri = destination.uri_of(key)
    if entry.size_bytes > LARGEST_BYTES:
        raise ArtifactDamaged(uri, f"a list of parts of {entry.size_bytes} bytes isn't a writer's")
    with closing(destination.open(key)) as source:
        data = source.read(entry.size_bytes + 1)
        while len(data) <= entry.size_bytes and (more := source.read(entry.size_bytes + 1)):
            data += more
    if len(data) != entry.size_bytes or entry.sha256 not in (None, sha256(data).hexdigest()):
        raise ArtifactDamaged(uri, "its bytes aren't those that its entry describes")
    try:
        fields = Fields(json.loads(_plain(data, entry)), "")
        version = fields.take("parts_version", count)
        if version != VERSION:
            raise WrongField(f"parts_version is {version}, expected {VERSION}")
        return fields.take("diffs", list_of(lambda v, path: parser.artifact(v, path, key_prefix)))
    except (ValueError, RecursionError, zlib.error, EOFError) as wrong:
        raise ArtifactDamaged(uri, str(wrong)) from wrong


def _plain(data: bytes, entry: FormatEntry) -> bytes:
    most = min(LARGEST_PLAIN_BYTES, MOST_PLAIN_A_BYTE * entry.size_bytes)
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    plain = unpacking.decompress(data, most)
    if unpacking.unconsumed_tail:
        raise WrongField(f"it has more than {most} bytes when unpacked")
    return plain


def _files_named(diffs: Sequence[Artifact]) -> Iterator[str]:
    for diff in diffs:
        for part in diff.with_parts():
            if part.parts is not None and part.parts.file is not None:
                yield part.parts.file.key


def _contradiction(merged: Artifact, diffs: Sequence[Artifact]) -> str | None:
    """Reason why ``diffs`` can't be the parts of ``merged``, or None."""
    if len(diffs) < 2:
        return "a merged diff has at least two parts"
    at = merged.from_position
    for number, diff in enumerate(diffs):
        if diff.is_snapshot or diff.from_position != at or diff.to_position <= (at or 0):
            return f"diffs[{number}]: it doesn't follow the one before"
        if diff.history != merged.history:
            return f"diffs[{number}]: history {diff.history} in a diff of {merged.history}"
        at = diff.to_position
    last = diffs[-1]
    if (last.to_position, last.rows, last.state_checksum) != (
        merged.to_position,
        merged.rows,
        merged.state_checksum,
    ):
        return "they don't lead to the state that the merged diff leads to"
    return None
