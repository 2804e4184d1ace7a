"""Merged diffs of a manifest: the next merge, files of its parts, and the parts unfolded again.

The manifest holds the parts of young merged diffs itself. A list that has become long goes into a
file, which the merged diff's entry names: so the manifest stays small however long the archive is.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import groupby

from laredo_archive.errors import ArtifactDamaged
from laredo_archive.manifest import object_keys, parser, rules
from laredo_archive.manifest.model import Artifact, FormatEntry, Manifest, Parts
from laredo_archive.manifest.parser import Fields, WrongField, count, list_of
from laredo_archive.storage.destination import Destination
from laredo_model.position import Position

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
        """``key_prefix``: that of the archive whose manifest has the merged diffs."""
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
            for diff in diffs:
                self._levels.update(dict.fromkeys(diff.lists_of_parts(), level + 1))
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
    except (ValueError, RecursionError, zlib.error) as wrong:
        raise ArtifactDamaged(uri, str(wrong)) from wrong


def _plain(data: bytes, entry: FormatEntry) -> bytes:
    most = min(LARGEST_PLAIN_BYTES, MOST_PLAIN_A_BYTE * entry.size_bytes)
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    plain = unpacking.decompress(data, most)
    if unpacking.unconsumed_tail:
        raise WrongField(f"it has more than {most} bytes when unpacked")
    return plain


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


# Compaction: which diffs of a manifest are merged next, and the manifest after a merge.
#
# Each level is a length of time. Diffs that end in the same period of that length (the first begins
# at the Unix epoch) are merged into one, once a later diff shows that the period is over. So the
# manifest alone decides what is to be merged, and a writer that was interrupted goes on where it
# was. The merged diff replaces the diffs that it was made from, and names them as its parts.

_UNIX_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class DiffRun:
    """Diffs of an epoch that follow each other and are to be merged."""

    #: The diffs, in order.
    diffs: tuple[Artifact, ...]
    #: The epoch's base, which records their columns and key.
    base: Artifact
    #: The artifact that the first begins after, which records the state there.
    before: Artifact

    @property
    def from_position(self) -> Position:
        """Position where the first diff begins."""
        start = self.diffs[0].from_position
        assert start is not None, "a diff begins somewhere"
        return start

    @property
    def to_position(self) -> Position:
        """Position where the last diff ends."""
        return self.diffs[-1].to_position


def next_run(
    manifest: Manifest, levels: Sequence[timedelta], *, until: Position | None = None
) -> DiffRun | None:
    """The diffs to be merged next: the lowest level's first, the oldest of it; None if none are.

    ``levels``: lengths of time, ascending. ``until``: only periods whose last diff ends there or
    before. A period of which only a part was merged would be merged again for each later diff.
    """
    chain = [artifact for artifact in manifest.artifacts if artifact.epoch == manifest.epoch]
    if not chain or not chain[0].is_snapshot or not all(map(_records_its_state, chain)):
        return None
    ends = list(_ends(chain))
    for level in levels:
        for _, period in groupby(
            zip(ends, chain, strict=True), key=lambda each: (each[0] // level, each[1].history)
        ):
            diffs = [diff for _, diff in period if not diff.is_snapshot]
            if len(diffs) < 2 or diffs[-1] is chain[-1]:
                continue
            if until is None or diffs[-1].to_position <= until:
                return DiffRun(tuple(diffs), chain[0], chain[chain.index(diffs[0]) - 1])
    return None


def _records_its_state(artifact: Artifact) -> bool:
    """True if it records rows and checksum, by which a merge is verified; other programs don't."""
    return artifact.rows is not None and artifact.state_checksum is not None


def _ends(chain: Sequence[Artifact]) -> Iterator[timedelta]:
    """Time of each artifact since the Unix epoch; where a clock was set back, the latest before."""
    latest = _UNIX_EPOCH
    for artifact in chain:
        latest = max(latest, artifact.to_time or artifact.created_at)
        yield latest - _UNIX_EPOCH


def parts_of(diffs: tuple[Artifact, ...]) -> Parts:
    """``diffs`` as the parts of the diff that they are merged into."""
    return Parts(sum(diff.parts.count if diff.parts else 1 for diff in diffs), diffs)


def place_of(manifest: Manifest, merged: Artifact) -> tuple[Artifact, ...]:
    """The diffs of ``manifest`` in whose place ``merged`` belongs; none if they aren't there."""
    diffs = [
        artifact
        for artifact in manifest.artifacts
        if artifact.epoch == merged.epoch
        and artifact.from_position is not None
        and merged.from_position is not None
        and artifact.from_position >= merged.from_position
        and artifact.to_position <= merged.to_position
    ]
    if len(diffs) < 2 or diffs[0].history != merged.history:
        return ()
    ends = diffs[0].from_position, diffs[-1].to_position
    return tuple(diffs) if ends == (merged.from_position, merged.to_position) else ()


def with_merged(manifest: Manifest, merged: Artifact) -> Manifest:
    """The manifest with ``merged`` in the place of the diffs that it was made from."""
    diffs = place_of(manifest, merged)
    assert diffs, "the merged diffs exist"
    first = manifest.artifacts.index(diffs[0])
    after = first + len(diffs)
    artifacts = (*manifest.artifacts[:first], merged, *manifest.artifacts[after:])
    return replace(manifest, artifacts=artifacts)


def without_parts(
    manifest: Manifest, merged_before: datetime, kept_boundary: Position | None = None
) -> Manifest | None:
    """The manifest without the parts of diffs merged before then; None if it has no such parts.

    Objects that only these parts name are retired. The diff that contains ``kept_boundary`` keeps
    its parts.
    """
    old = [
        artifact
        for artifact in manifest.artifacts
        if artifact.parts is not None
        and artifact.created_at < merged_before
        and not _is_inside(kept_boundary, artifact)
    ]
    if not old:
        return None
    leaving = [entry for diff in old if diff.parts for entry in diff.parts.objects()]
    kept = tuple(
        replace(artifact, parts=None) if artifact in old else artifact
        for artifact in manifest.artifacts
    )
    return rules.with_retired(replace(manifest, artifacts=kept), leaving)


def _is_inside(position: Position | None, diff: Artifact) -> bool:
    start = diff.from_position
    return position is not None and start is not None and start < position < diff.to_position


# Unfolds a manifest: puts the parts of merged diffs in their places, where a reader needs them.
#
# A merged diff leads from one boundary to another at once. The boundaries between them are those of
# its parts; a reader that wants one of them puts the parts in the merged diff's place, level by
# level, and leaves all other merged diffs as they are.

Load = Callable[[Artifact], Sequence[Artifact]]
"""The diffs that a merged diff takes the place of."""

BoundaryFilter = Callable[[Artifact, Artifact], bool]
"""Predicate: True if a boundary inside a merged diff is wanted; first the artifact before it."""


def at(point: Position | datetime) -> BoundaryFilter:
    """The boundaries inside the merged diff that spans a position or a time."""

    def wanted(before: Artifact, diff: Artifact) -> bool:
        if isinstance(point, datetime):
            # Several transactions may have committed at one time: the last of them counts.
            return _time(before) <= point < _time(diff)
        return before.to_position < point < diff.to_position

    return wanted


def between(start: Position, end: Position | datetime | None) -> BoundaryFilter:
    """Every boundary after ``start``, up to a position or a time; None: to the head."""

    def wanted(before: Artifact, diff: Artifact) -> bool:
        if diff.to_position <= start:
            return False
        if isinstance(end, datetime):
            return _time(before) <= end
        return end is None or before.to_position < end

    return wanted


def around(part: Artifact) -> BoundaryFilter:
    """The boundaries at both ends of ``part``, where a merged diff leads past them."""

    def wanted(before: Artifact, diff: Artifact) -> bool:
        start, end = before.to_position, diff.to_position
        assert part.from_position is not None, "a diff begins somewhere"
        covers = start <= part.from_position and part.to_position <= end
        return covers and (start, end) != (part.from_position, part.to_position)

    return wanted


def everywhere(_before: Artifact, _diff: Artifact) -> bool:
    """True: every merged diff is to be unfolded."""
    return True


def unfolded(manifest: Manifest, wanted: BoundaryFilter, load: Load) -> Manifest:
    """``manifest`` with the parts of merged diffs in their places, where ``wanted`` is true.

    :raises ArtifactMissing, ArtifactDamaged: as ``load``.
    """
    if not any(artifact.parts for artifact in manifest.artifacts):
        return manifest
    artifacts: list[Artifact] = []
    waiting = list(reversed(manifest.artifacts))
    while waiting:
        artifact = waiting.pop()
        if artifact.parts is not None and artifacts and wanted(artifacts[-1], artifact):
            waiting.extend(reversed(load(artifact)))
        else:
            artifacts.append(artifact)
    return replace(manifest, artifacts=tuple(artifacts))


def _time(artifact: Artifact) -> datetime:
    return artifact.to_time or artifact.created_at
