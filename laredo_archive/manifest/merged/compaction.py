"""Compaction: which diffs of a manifest are merged next, and the manifest after a merge.

Each level is a length of time. Diffs that end in the same period of that length (the first begins
at the Unix epoch) are merged into one, once a later diff shows that the period is over. So the
manifest alone decides what is to be merged, and a writer that was interrupted goes on where it was.
The merged diff replaces the diffs that it was made from, and names them as its parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby

from laredo_archive.manifest import rules
from laredo_archive.manifest.model import Artifact, Manifest, Parts
from laredo_model.position import Position

_UNIX_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class DiffRun:
    """Diffs of an epoch that follow each other and are to be merged."""

    #: The diffs, in order.
    diffs: tuple[Artifact, ...]
    #: The epoch's base, which says their columns and key.
    base: Artifact
    #: The artifact that the first begins after, which says the state there.
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
    before; a period of which a part were merged would be merged again for each diff after it.
    """
    chain = [artifact for artifact in manifest.artifacts if artifact.epoch == manifest.epoch]
    if not chain or not chain[0].is_snapshot or not all(map(_says_its_state, chain)):
        return None
    ends = list(_ends(chain))
    for level in levels:
        for _, period in groupby(
            zip(ends, chain, strict=True), key=lambda end_and_diff: end_and_diff[0] // level
        ):
            diffs = [diff for _, diff in period if not diff.is_snapshot]
            if len(diffs) < 2 or diffs[-1] is chain[-1]:
                continue
            if until is None or diffs[-1].to_position <= until:
                return DiffRun(tuple(diffs), chain[0], chain[chain.index(diffs[0]) - 1])
    return None


def _says_its_state(artifact: Artifact) -> bool:
    """True if a merge can be proven by it: not if another program wrote it."""
    return artifact.rows is not None and artifact.state_checksum is not None


def _ends(chain: Sequence[Artifact]) -> Iterator[timedelta]:
    """Since the Unix epoch; times of a clock that is set back count as the latest before."""
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


def without_parts(manifest: Manifest, merged_before: datetime) -> Manifest | None:
    """The manifest without the parts of the diffs that were merged before then; None if it has
    none of them. What they alone name is retired."""
    old = [
        artifact
        for artifact in manifest.artifacts
        if artifact.parts is not None and artifact.created_at < merged_before
    ]
    if not old:
        return None
    leaving = [entry for diff in old if diff.parts for entry in diff.parts.objects()]
    kept = tuple(
        replace(artifact, parts=None) if artifact in old else artifact
        for artifact in manifest.artifacts
    )
    return rules.with_retired(replace(manifest, artifacts=kept), leaving)
