"""Compaction: merges a run of diffs into one, and proves the state at each boundary.

It follows each key's row from boundary to boundary, in key order, and adds up each artifact's
effect on the number of rows and the checksum. Only sums are held in memory.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import accumulate, zip_longest

from laredo_archive.errors import ArtifactDamaged, ArtifactMissing
from laredo_archive.failpoint import reach
from laredo_archive.manifest.merged import DiffRun
from laredo_archive.manifest.model import Artifact
from laredo_archive.manifest.timeline import Epoch
from laredo_archive.read import fold
from laredo_archive.read.artifact_reader import ArtifactFiles, RowFields
from laredo_archive.read.fold import OrderedChange, Rows
from laredo_archive.read.location import as_it_is
from laredo_archive.read.objects import ReadProgress
from laredo_archive.reader import Archive
from laredo_archive.write.manifest_store import ManifestStore
from laredo_archive.write.merging import Merging
from laredo_model import position as positions
from laredo_model.checksum import StateChecksum, sum_of
from laredo_model.line import TRUNCATION, Action, Change
from laredo_model.position import Position

# The merged diff has the net changes of the diffs. Checksums prove it before any manifest names it:
# the state before the run, changed by it, is the state after the run.

LEVELS = tuple(
    timedelta(seconds=seconds)
    for seconds in (20, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400, 28 * 86_400)
)
"""Lengths of time, each a few times the one before, so that a reader needs few diffs of each."""


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
        don't lead to the recorded state; nothing was changed.
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
    """Most keys that changed in the run without a change in the merged diff; None: unknown."""
    counts = [diff.cancelled for diff in run.diffs]
    known = [count for count in counts if count is not None]
    return sum(known) + by_merging if len(known) == len(counts) else None


class _Proof:
    """The state after a merge, and the number of keys without a net change, as it is made."""

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


class PartsProof:
    """Checks the parts of one archive's merged diffs, and that each diff is their net change."""

    def __init__(
        self,
        archive: Archive,
        check_files: Callable[[Artifact, RowFields], bool],
        progress: ReadProgress,
    ) -> None:
        """``check_files`` returns True if an artifact's objects are as their entries describe."""
        self._archive = archive
        self._check_files = check_files
        self._progress = progress
        self.boundaries = 0
        """Number of boundaries inside of merged diffs that were proven."""

    def problems(self, diffs: Sequence[Artifact], shape: RowFields) -> Iterator[str]:
        """Problems of the parts of ``diffs``, as sentences; the diffs' own objects were checked.

        :raises TemporarySpaceLacking: if there is too little disk space for sorting.
        """
        for diff in diffs:
            if diff.parts is not None:
                yield from self._of(diff, shape)

    def _of(self, merged: Artifact, shape: RowFields) -> Iterator[str]:
        assert merged.from_position is not None, "a diff begins somewhere"
        start, end = positions.text(merged.from_position), positions.text(merged.to_position)
        self._progress.step(f"parts of the diff {start}..{end}")
        lost = f"boundaries between {start} and {end} can't be read; {start} and {end} can"
        try:
            parts = self._archive.parts_of(merged)
        except (ArtifactMissing, ArtifactDamaged) as failure:
            yield f"{failure} ({lost})"
            return
        self._progress.expect(3 * sum(map(self._archive.files.size_to_read, parts)))
        damaged = [part for part in parts if not self._check_files(part, shape)]
        if damaged:
            yield f"the parts of the diff {start}..{end} aren't whole: {lost}"
        elif not self._make(parts, merged, shape):
            yield f"the parts of the diff {start}..{end} have other net changes than the diff"
        else:
            self.boundaries += len(parts) - 1
            yield from self.problems(parts, shape)

    def _make(self, parts: Sequence[Artifact], merged: Artifact, shape: RowFields) -> bool:
        """True if the net changes of ``parts`` are those of ``merged``, byte for byte."""
        files = self._archive.files
        start, keys = fold.timelines(files, parts, shape)
        records = files.changes(merged, shape)
        if start is not None and next(records, None) != TRUNCATION:
            return False
        return all(one == other for one, other in zip_longest(fold.net(keys), records))


MAX_PROBLEMS = 20


@dataclass(frozen=True)
class BoundaryState:
    """Row count and checksum of the whole table at a boundary."""

    position: Position
    rows: int
    checksum: str


@dataclass(frozen=True)
class Folded:
    """The states at an epoch's boundaries, and the changes that don't fit their rows."""

    states: list[BoundaryState]
    problems: list[str]


def fold_states(files: ArtifactFiles, epoch: Epoch, shape: RowFields) -> Folded:
    """The state at every boundary of ``epoch``.

    :raises ArtifactDamaged: where a file differs from its entry.
    :raises TemporarySpaceLacking: if sorting needs room that isn't there.
    """
    states: list[BoundaryState] = []
    problems: list[str] = []
    for artifacts in _parts(files, epoch, shape):
        part = _StateProof(artifacts, compares_old=shape.columns is not None)
        _, keys = fold.timelines(files, part.diffs, shape)
        if part.has_base:
            part.fold(fold.base_rows(files, epoch.base, shape), keys)
        else:
            part.fold(iter(()), keys)
        states += part.states()
        problems += part.problems
    return Folded(states, problems[:MAX_PROBLEMS])


def _parts(files: ArtifactFiles, epoch: Epoch, shape: RowFields) -> Iterator[Sequence[Artifact]]:
    """The artifacts, split before each diff that truncates, as the table is empty there."""
    artifacts = epoch.artifacts
    starts = [
        index
        for index, artifact in enumerate(artifacts)
        if index == 0 or _truncates(files, artifact, shape)
    ]
    for start, end in zip(starts, [*starts[1:], len(artifacts)], strict=True):
        yield artifacts[start:end]


def _truncates(files: ArtifactFiles, diff: Artifact, shape: RowFields) -> bool:
    if diff.records_truncation:
        return diff.truncate
    first = next(files.changes(diff, shape), None)
    return first is not None and first.action is Action.TRUNCATE


@dataclass
class _StateProof:
    """A base or a truncating diff, and the diffs after it."""

    artifacts: Sequence[Artifact]
    compares_old: bool
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The original's first diff may begin before its base, and then it repeats changes.
        self._checks = not self.artifacts[0].by_original
        self.has_base = self.artifacts[0].is_snapshot
        self.diffs = self.artifacts[1:] if self.has_base else self.artifacts
        self._first_diff = 1 if self.has_base else 0
        self._rows = [0] * len(self.artifacts)
        self._sums = [0] * len(self.artifacts)

    def states(self) -> Iterator[BoundaryState]:
        """The state at the end of each artifact."""
        totals = zip(accumulate(self._rows), accumulate(self._sums), strict=True)
        for artifact, (rows, value) in zip(self.artifacts, totals, strict=True):
            yield BoundaryState(artifact.to_position, rows, StateChecksum(rows, value).hex())

    def fold(self, base: Iterator[Rows], keys: Iterator[tuple[bytes, list[OrderedChange]]]) -> None:
        """Walk both in key order."""
        touched = next(keys, None)
        for base_keys, lines in base:
            self._rows[0] += len(lines)
            self._sums[0] += sum_of(lines)
            at = 0
            while touched is not None and touched[0] <= base_keys[-1]:
                key, steps = touched
                at = bisect_left(base_keys, key, at)
                self._follow(lines[at] if base_keys[at] == key else None, steps)
                touched = next(keys, None)
        while touched is not None:
            self._follow(None, touched[1])
            touched = next(keys, None)

    def _follow(self, row: bytes | None, steps: list[OrderedChange]) -> None:
        for diff, change in steps:
            if self._checks:
                self._check(row, diff, change)
            index = diff + self._first_diff
            for line, sign in ((row, -1), (change.new, 1)):
                if line is not None:
                    self._rows[index] += sign
                    self._sums[index] += sign * sum_of((line,))
            row = change.new

    def _check(self, row: bytes | None, diff: int, change: Change) -> None:
        if (row is None) != (change.action is Action.INSERT):
            reason = "there is no such row" if row is None else "there is such a row already"
        elif self.compares_old and row != change.old:
            reason = "its old row isn't the key's row at that point"
        else:
            return
        if len(self.problems) < MAX_PROBLEMS:
            end = positions.text(self.diffs[diff].to_position)
            key = change.key.decode(errors="replace")
            self.problems.append(
                f"in the diff to {end}: {change.action.name} of the key {key!r}, and {reason}"
            )
