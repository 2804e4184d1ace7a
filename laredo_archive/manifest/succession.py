"""Decides, before a commit, which artifact a base or a diff follows, or refuses it."""

from collections.abc import Callable
from datetime import datetime

from laredo_archive.errors import ChecksumDiffers, OutOfOrder
from laredo_archive.manifest import rules
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_model import position as positions
from laredo_model.position import Position


def known(manifest: Manifest | None, is_it: Callable[[Artifact], bool]) -> Artifact | None:
    """The newest artifact of the manifest's history that ``is_it``."""
    if manifest is None:
        return None
    for artifact in reversed(manifest.artifacts):
        if is_it(artifact) and artifact.history == manifest.history:
            return artifact
    return None


def before_base(
    table: str, manifest: Manifest | None, base: Artifact, *, continues: bool
) -> Artifact | None:
    """The artifact that ``base`` comes after by position: its boundary, if it continues.

    :raises OutOfOrder: if it can't follow.
    :raises ChecksumDiffers: if it isn't the state at its boundary.
    """
    last = manifest.last if manifest else None
    epoch = last.epoch if last else 0
    if base.epoch != epoch + 1:
        raise OutOfOrder(
            f"{table}: a base of epoch {base.epoch} at {positions.text(base.to_position)} can't"
            f" follow epoch {epoch}"
        )
    if continues and manifest is not None and last is not None:
        return _boundary(table, manifest, base)
    if last is not None and last.history == base.history:
        _refuse_going_back(table, last, base.to_position)
    return last


def _boundary(table: str, manifest: Manifest, base: Artifact) -> Artifact:
    at = positions.text(base.to_position)
    boundary = rules.boundary_at(manifest, base.to_position)
    if boundary is None or boundary.history != base.history:
        raise OutOfOrder(
            f"{table}: no artifact of history {base.history} ends at {at}, so the base there"
            " can't continue the archive"
        )
    if _contradict(boundary.rows, base.rows) or _contradict(
        boundary.state_checksum, base.state_checksum
    ):
        raise ChecksumDiffers(table, at, _state(boundary), _state(base))
    return boundary


def before_diff(
    table: str, manifest: Manifest | None, from_position: Position, to_position: Position
) -> Artifact:
    """The artifact that a diff over (from, to] continues.

    :raises OutOfOrder: if none ends there.
    """
    last = manifest.last if manifest else None
    if last is None or last.to_position != from_position:
        head = positions.text(last.to_position) if last else "nowhere"
        raise OutOfOrder(
            f"{table}: a diff from {positions.text(from_position)} can't follow an archive that"
            f" ends at {head}"
        )
    _refuse_going_back(table, last, to_position)
    return last


def time_of_diff(before: Artifact, time: datetime | None) -> datetime | None:
    """``to_time`` of a diff: never less than the artifact before it."""
    known_time = before.to_time
    if known_time is None or time is None:
        return known_time or time
    return max(known_time, time)


def time_of_base(
    before: Artifact | None, time: datetime | None, *, continues: bool
) -> datetime | None:
    """``to_time`` of a base; one that continues has the time of the diff that ends there."""
    if before is None:
        return time
    return (before.to_time or time) if continues else time_of_diff(before, time)


def _refuse_going_back(table: str, last: Artifact, position: Position) -> None:
    if position < last.to_position:
        raise OutOfOrder(
            f"{table}: {positions.text(position)} is before the archive's head,"
            f" {positions.text(last.to_position)}"
        )


def _contradict(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _state(artifact: Artifact) -> str:
    return f"{artifact.rows} rows, checksum {artifact.state_checksum}"
