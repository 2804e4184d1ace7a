"""Unfolds a manifest: puts the parts of merged diffs in their places, where a reader needs them.

A merged diff leads from one boundary to another at once. The boundaries between them are those of
its parts; a reader that wants one of them puts the parts in the merged diff's place, level by
level, and leaves all other merged diffs as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from laredo_archive.manifest.model import Artifact, Manifest
from laredo_model.position import Position

Load = Callable[[Artifact], Sequence[Artifact]]
"""The diffs that a merged diff takes the place of."""

Wanted = Callable[[Artifact, Artifact], bool]
"""Predicate: True if the boundary between an artifact and the diff after it is wanted."""


def at(point: Position | datetime) -> Wanted:
    """The boundaries next to a position or a time."""

    def wanted(before: Artifact, diff: Artifact) -> bool:
        if isinstance(point, datetime):
            # Several transactions may have committed at one time: the last of them counts.
            return _time(before) <= point < _time(diff)
        return before.to_position < point < diff.to_position

    return wanted


def between(start: Position, end: Position | datetime | None) -> Wanted:
    """Every boundary after ``start``, up to a position or a time; None: to the head."""

    def wanted(before: Artifact, diff: Artifact) -> bool:
        if diff.to_position <= start:
            return False
        if isinstance(end, datetime):
            return _time(before) <= end
        return end is None or before.to_position < end

    return wanted


def around(part: Artifact) -> Wanted:
    """The boundaries at both ends of ``part``, where a merged diff leads past them."""

    def wanted(before: Artifact, diff: Artifact) -> bool:
        start, end = before.to_position, diff.to_position
        assert part.from_position is not None, "a diff begins somewhere"
        covers = start <= part.from_position and part.to_position <= end
        return covers and (start, end) != (part.from_position, part.to_position)

    return wanted


def everywhere(_before: Artifact, _diff: Artifact) -> bool:
    """Every boundary."""
    return True


def unfolded(manifest: Manifest, wanted: Wanted, load: Load) -> Manifest:
    """``manifest`` with the parts of merged diffs in their places, wherever ``wanted`` says.

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
