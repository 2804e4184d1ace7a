"""Rules of a manifest: its contradictions, and the retirement of objects that leave it.

Artifacts are in (epoch, position) order; an epoch is a snapshot and the diffs
after it, contiguous by position.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from laredo_archive.manifest.model import Artifact, FormatEntry, Former, Manifest, Retired
from laredo_model import position as positions
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
    if not goes_on(before.history, after.history):
        yield f"{path}: history {after.history} within an epoch of {before.history}"


def goes_on(before: History | None, after: History | None) -> bool:
    """True if positions of ``before`` mean the same in ``after``; an unknown history may be any."""
    if before is None or after is None:
        return True
    return before == after or positions.goes_on(before, after)


def differ(one: object, other: object) -> bool:
    """True if both are known, and not equal."""
    return one is not None and other is not None and one != other


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


def with_moved(manifest: Manifest, entries: Mapping[str, FormatEntry]) -> Manifest:
    """The manifest whose diffs name ``entries`` instead of the objects with those former keys."""
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


def with_retired(manifest: Manifest, leaving: Iterable[FormatEntry | Former]) -> Manifest:
    """The manifest with objects on their way to be deleted, not yet dated."""
    retired = tuple(Retired(entry.key) for entry in leaving)
    return replace(manifest, retired=manifest.retired + retired) if retired else manifest
