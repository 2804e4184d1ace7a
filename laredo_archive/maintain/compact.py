"""Compaction: merges a run of diffs into one, proves it, and has it take their place.

The merged diff is what the diffs make together, net per key. Before any manifest names it, it is
proven by the checksums: the state before the run, changed by it, is the state after the run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from laredo_archive.errors import ArtifactDamaged
from laredo_archive.failpoint import reach
from laredo_archive.manifest.merged.compaction import DiffRun
from laredo_archive.manifest.model import Artifact
from laredo_archive.read import fold
from laredo_archive.read.artifact_reader import ArtifactFiles, RowFields
from laredo_archive.read.fold import OrderedChange
from laredo_archive.read.location import as_it_is
from laredo_archive.write.manifest_store import ManifestStore
from laredo_archive.write.merging import Merging
from laredo_model import position as positions
from laredo_model.checksum import StateChecksum
from laredo_model.line import Change

LEVELS = tuple(
    timedelta(seconds=seconds)
    for seconds in (20, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400, 28 * 86_400)
)
"""Lengths of time, each a few of the one below: so a reader needs few diffs of each."""


@dataclass(frozen=True)
class Merged:
    """A run of diffs that was merged."""

    #: The merged diff.
    artifact: Artifact
    #: The diffs that it takes the place of.
    run: DiffRun


def merge_next(
    merging: Merging, levels: Sequence[timedelta], *, formats: Sequence[str]
) -> Merged | None:
    """Merge the run that is due next, and commit the merged diff; None if none is due.

    :raises ArtifactMissing, ArtifactDamaged: if a diff of it differs from its entry, or they
        don't lead where they should; nothing was changed.
    :raises SpoolUnavailable: if there is no room to encode it; nothing was changed.
    :raises CommitUnavailable, Fenced: as TableArchive.commit_diff.
    """
    run = merging.next_run(levels)
    if run is None:
        return None
    store = merging.stores[0]
    files = ArtifactFiles(store.destination, as_it_is)
    start, keys = fold.timelines(files, run.diffs, RowFields.of(run.base))
    proof = _Proof(_state_before(run) if start is None else StateChecksum())
    encoded = merging.encode(
        run,
        proof.watched(fold.net(proof.counted(keys))),
        truncate=start is not None,
        formats=formats,
    )
    try:
        proof.check(store, run)
    except BaseException:
        encoded.spool.close()
        raise
    artifact = replace(encoded.artifact, cancelled=_cancelled(run, proof.cancelled))
    reach("merge.encoded")
    if not merging.commit(run, replace(encoded, artifact=artifact)):
        return None
    reach("merge.done")
    return Merged(artifact, run)


def _state_before(run: DiffRun) -> StateChecksum:
    rows, checksum = run.before.rows, run.before.state_checksum
    assert rows is not None and checksum is not None, (
        "every artifact of its epoch records its state"
    )
    return StateChecksum.from_hex(rows, checksum)


def _cancelled(run: DiffRun, by_merging: int) -> int | None:
    """At most how many keys changed in the run that the merged diff doesn't mention."""
    counts = [diff.cancelled for diff in run.diffs]
    known = [count for count in counts if count is not None]
    return sum(known) + by_merging if len(known) == len(counts) else None


class _Proof:
    """Follows a merge: the state after it, and the keys of which nothing is left."""

    def __init__(self, state: StateChecksum) -> None:
        self._state = state
        self._keys = 0
        self._changes = 0

    @property
    def cancelled(self) -> int:
        """Keys that changed and ended as they began."""
        return self._keys - self._changes

    def counted(
        self, keys: Iterator[tuple[bytes, list[OrderedChange]]]
    ) -> Iterator[tuple[bytes, list[OrderedChange]]]:
        for key in keys:
            self._keys += 1
            yield key

    def watched(self, changes: Iterator[Change]) -> Iterator[Change]:
        for change in changes:
            self._changes += 1
            if change.old is not None:
                self._state.remove([change.old])
            if change.new is not None:
                self._state.add([change.new])
            yield change

    def check(self, store: ManifestStore, run: DiffRun) -> None:
        """:raises ArtifactDamaged: if the merged diff doesn't lead where the run leads."""
        last = run.diffs[-1]
        if (self._state.rows, self._state.hex()) == (last.rows, last.state_checksum):
            return
        raise ArtifactDamaged(
            store.uri,
            f"the diffs from {positions.text(run.from_position)} to"
            f" {positions.text(run.to_position)} don't make the state that the last of them"
            f" records: {self._state.rows} rows, checksum {self._state.hex()}, against"
            f" {last.rows} rows, {last.state_checksum}. They stay as they are; run"
            " laredo-archive verify",
        )
