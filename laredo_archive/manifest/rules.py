"""Rules of a manifest's next version: what may follow its head, as pure functions.

Artifacts are in (epoch, position) order; an epoch is a snapshot and the diffs
after it, contiguous by position.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from laredo_archive.errors import ChecksumDiffers, OutOfOrder
from laredo_archive.manifest.model import Artifact, Follows, FormatEntry, Former, Manifest, Retired
from laredo_model import position as positions
from laredo_model.column import Column
from laredo_model.position import History, Position


def check(manifest: Manifest) -> Iterator[str]:
    """The contradictions in ``manifest``, as sentences; none if it is sound."""
    last = manifest.last
    if last is None:
        if manifest.head_position is not None:
            yield "it has a head_position, but no artifacts"
        return
    if manifest.head_position != last.to_position:
        yield (
            f"head_position is {_text(manifest.head_position)}, but its last artifact ends at"
            f" {_text(last.to_position)}"
        )
    if manifest.epoch != last.epoch:
        yield f"epoch is {manifest.epoch}, but its last artifact is of epoch {last.epoch}"
    for index, (before, after) in enumerate(pairwise(manifest.artifacts), start=1):
        yield from _check_pair(before, after, f"artifacts[{index}]")
    yield from _check_objects(manifest)


def _check_pair(before: Artifact, after: Artifact, path: str) -> Iterator[str]:
    if after.is_snapshot:
        if after.epoch <= before.epoch:
            yield f"{path}: a snapshot of epoch {after.epoch} after one of {before.epoch}"
        return
    if after.epoch != before.epoch:
        yield f"{path}: epoch {after.epoch} begins with a diff"
    if after.from_position != before.to_position:
        yield (
            f"{path}: a diff from {_text(after.from_position)}, but the artifact before it"
            f" ends at {_text(before.to_position)}"
        )
    if after.to_position < before.to_position and after.knows_its_end:
        yield f"{path}: a diff that goes back to {_text(after.to_position)}"
    if None not in (before.history, after.history) and before.history != after.history:
        yield f"{path}: history {after.history} within an epoch of {before.history}"


def _check_objects(manifest: Manifest) -> Iterator[str]:
    retired = manifest.retired_keys()
    for former in manifest.former:
        if former.key in retired:
            yield f"{former.key} is both former and retired"
    named: set[str] = set()
    for entry in manifest.named():
        if entry.key in named:
            yield f"two entries name {entry.key}"
        if entry.key in retired:
            yield f"{entry.key} is both named and retired"
        named.add(entry.key)


def _text(position: Position | None) -> str:
    return "null" if position is None else positions.text(position)


def with_diff(manifest: Manifest, diff: Artifact) -> Manifest:
    """The manifest with ``diff`` at its end."""
    return _with_artifacts(manifest, (*manifest.artifacts, diff))


def with_base(manifest: Manifest, base: Artifact, keep_epochs: int | None) -> Manifest:
    """The manifest with a new epoch's base; the diffs after it become that epoch's.

    All epochs but the newest ``keep_epochs`` (None: no limit) leave into ``retired``.
    """
    after = [artifact.relabelled(base.epoch) for artifact in taken_over(manifest, base)]
    before = [artifact for artifact in manifest.artifacts if not _is_taken_over(artifact, base)]
    oldest = 0 if keep_epochs is None else base.epoch - keep_epochs + 1
    kept = [artifact for artifact in before if artifact.epoch >= oldest]
    leaving = [artifact for artifact in before if artifact.epoch < oldest]
    manifest = _with_artifacts(manifest, (*kept, base, *after))
    manifest = with_retired(manifest, (entry for gone in leaving for entry in gone.objects()))
    return with_former(manifest, manifest.former, oldest)


def taken_over(manifest: Manifest, base: Artifact) -> list[Artifact]:
    """The diffs that become those of ``base``, with the epoch that they have."""
    return [artifact for artifact in manifest.artifacts if _is_taken_over(artifact, base)]


def _is_taken_over(artifact: Artifact, base: Artifact) -> bool:
    return (
        artifact.from_position is not None
        and artifact.from_position >= base.to_position
        and artifact.history == base.history
        and artifact.epoch == base.epoch - 1
    )


def with_moved(manifest: Manifest, entries: Mapping[str, FormatEntry]) -> Manifest:
    """The manifest whose diffs name ``entries``, in another folder, by the keys that they had."""
    moved = tuple(artifact.moved(entries) for artifact in manifest.artifacts)
    former = tuple(
        Former(entry.key, artifact.epoch)
        for artifact in manifest.artifacts
        for entry in artifact.formats.values()
        if entry.key in entries
    )
    return replace(manifest, artifacts=moved, former=manifest.former + former)


def with_former(manifest: Manifest, former: Iterable[Former], oldest: int) -> Manifest:
    """The manifest with these former objects; those of epochs before ``oldest`` are retired."""
    all_of_them = tuple(former)
    kept = tuple(entry for entry in all_of_them if entry.epoch >= oldest)
    leaving = [entry for entry in all_of_them if entry.epoch < oldest]
    return with_retired(replace(manifest, former=kept), leaving)


def _with_artifacts(manifest: Manifest, artifacts: tuple[Artifact, ...]) -> Manifest:
    last = artifacts[-1]
    same_head = (last.to_position, last.history) == (manifest.head_position, manifest.history)
    return replace(
        manifest,
        artifacts=artifacts,
        epoch=last.epoch,
        head_position=last.to_position,
        history=last.history,
        unchanged_until=manifest.unchanged_until if same_head else None,
    )


def with_retired(manifest: Manifest, leaving: Iterable[FormatEntry | Former]) -> Manifest:
    """The manifest with objects on their way to be deleted, not yet dated."""
    retired = tuple(Retired(entry.key) for entry in leaving)
    return replace(manifest, retired=manifest.retired + retired) if retired else manifest


def with_dates(manifest: Manifest, shown: Manifest, date: datetime) -> Manifest:
    """``manifest`` with ``date`` for the retired that ``shown`` had without one.

    ``date``: the store's, of the answer that showed the version ``shown``.
    """
    undated = {entry.key for entry in shown.retired if entry.at is None}
    if not undated:
        return manifest
    dated = tuple(
        replace(entry, at=date) if entry.at is None and entry.key in undated else entry
        for entry in manifest.retired
    )
    return replace(manifest, retired=dated)


def with_seen(manifest: Manifest, position: Position, now: datetime) -> Manifest:
    """The manifest with ``seen_position`` raised; within a history it never goes back."""
    before = manifest.seen_position
    if before is not None and before > position:
        position = before
    return replace(manifest, seen_position=position, seen_at=now)


def with_unchanged(manifest: Manifest, until: Position | None) -> Manifest:
    """The manifest whose table is known to stay as at its head up to ``until``, if it is later."""
    head = manifest.head_position
    if until is None or head is None or until <= max(head, manifest.unchanged_until or head):
        return manifest
    return replace(manifest, unchanged_until=until)


def following(artifact: Artifact | None) -> Follows | None:
    """Reference of a base to ``artifact``, which it follows."""
    if artifact is None:
        return None
    return Follows(
        artifact.epoch,
        artifact.to_position,
        artifact.history,
        artifact.rows,
        artifact.state_checksum,
    )


def boundary_at(manifest: Manifest, position: Position) -> Artifact | None:
    """The newest artifact of the manifest's own history that ends at ``position``."""
    for artifact in reversed(manifest.artifacts):
        if artifact.to_position == position and artifact.history == manifest.history:
            return artifact
    return None


# Decides, before a commit, which artifact a base or a diff follows, or refuses it.


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
    boundary = boundary_at(manifest, base.to_position)
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
            f"{table}: no artifact can end at {positions.text(position)}, which is before the"
            f" archive's head, {positions.text(last.to_position)}; does the writer's server lag"
            " behind the one that it followed before?"
        )


def _contradict(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _state(artifact: Artifact) -> str:
    return f"{artifact.rows} rows, checksum {artifact.state_checksum}"


# The head of an archive: the state from which its writer continues.


@dataclass(frozen=True)
class Head:
    """The end of the newest epoch; fields that older archives lack are None."""

    #: The newest epoch.
    epoch: int
    #: The newest artifact's to_position.
    position: Position
    #: The history of that position.
    history: History | None
    #: The table's rows there.
    rows: int | None
    #: The table's checksum there.
    checksum: str | None
    #: The epoch's columns.
    columns: tuple[Column, ...] | None
    #: The key's columns.
    key_fields: tuple[str, ...] | None
    to_time: datetime | None
    """PostgreSQL's commit time of the last transaction in the archive."""
    #: The number of the epoch's diffs.
    diffs_since_snapshot: int
    diff_bytes: int
    """Of the epoch's diffs, each in its largest format."""
    #: The changes of the epoch's diffs.
    diff_changes: int
    #: The base's to_position.
    snapshot_position: Position
    snapshot_bytes: int
    """Of the epoch's base, in its largest format."""
    #: The base's rows.
    snapshot_rows: int
    #: When the base was written.
    snapshot_created_at: datetime
    #: Up to where the archive is known to be complete.
    seen_position: Position | None
    #: When the newest artifact was written.
    committed_at: datetime
    #: When ``seen_position`` was; None: it never was.
    seen_at: datetime | None


def head_of(manifest: Manifest) -> Head | None:
    """The head of ``manifest``; None if it has no snapshot."""
    diffs: list[Artifact] = []
    for artifact in reversed(manifest.artifacts):
        if artifact.is_snapshot:
            return _head(manifest, artifact, diffs)
        diffs.append(artifact)
    return None


def _head(manifest: Manifest, base: Artifact, diffs: list[Artifact]) -> Head:
    last = manifest.artifacts[-1]
    return Head(
        epoch=last.epoch,
        position=last.to_position,
        history=last.history,
        rows=last.rows,
        checksum=last.state_checksum,
        columns=base.columns,
        key_fields=base.key_fields,
        to_time=last.to_time,
        diffs_since_snapshot=len(diffs),
        diff_bytes=sum(diff.size_bytes for diff in diffs),
        diff_changes=sum(diff.change_count or 0 for diff in diffs),
        snapshot_position=base.to_position,
        snapshot_bytes=base.size_bytes,
        snapshot_rows=base.row_count or 0,
        snapshot_created_at=base.created_at,
        seen_position=manifest.seen_position,
        committed_at=last.created_at,
        seen_at=manifest.seen_at,
    )
