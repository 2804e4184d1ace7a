"""The rules of a manifest's next version, as pure functions from one manifest to the next.

Artifacts are in (epoch, position) order; an epoch is a snapshot and the diffs
after it, contiguous by position.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from laredo_archive.manifest.entries import Follows, FormatEntry
from laredo_archive.manifest.model import Artifact, Manifest
from laredo_archive.manifest.unnamed_objects import Former, Retired
from laredo_model import position as positions
from laredo_model.position import Position


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
