"""Computes rows and checksum at every boundary of an epoch, in one pass over its files.

Key by key, in key order: what a key's row is at each boundary, and so what each
artifact adds to the rows and to the checksum. Nothing is held but sums.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from laredo_archive.manifest.model import Artifact
from laredo_archive.manifest.timeline import Epoch
from laredo_archive.read import fold
from laredo_archive.read.artifact_reader import ArtifactFiles, RowFields
from laredo_archive.read.fold import OrderedChange, Rows
from laredo_model import position as positions
from laredo_model.checksum import StateChecksum, sum_of
from laredo_model.line import Action, Change
from laredo_model.position import Position

MAX_PROBLEMS = 20


@dataclass(frozen=True)
class BoundaryState:
    """Row count and checksum of the whole table at a boundary."""

    position: Position
    rows: int
    checksum: str


@dataclass(frozen=True)
class Folded:
    """The states at an epoch's boundaries, and where changes don't fit the rows they change."""

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
    """The artifacts, split before each diff that truncates: it starts from an empty table."""
    artifacts = epoch.artifacts
    starts = [
        index
        for index, artifact in enumerate(artifacts)
        if index == 0 or _truncates(files, artifact, shape)
    ]
    for start, end in zip(starts, [*starts[1:], len(artifacts)], strict=True):
        yield artifacts[start:end]


def _truncates(files: ArtifactFiles, diff: Artifact, shape: RowFields) -> bool:
    if diff.says_truncation:
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
        # Of the original's diffs the first may begin before its base does, so it repeats changes.
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
            reason = "its old row isn't the row as it is at that point"
        else:
            return
        if len(self.problems) < MAX_PROBLEMS:
            end = positions.text(self.diffs[diff].to_position)
            key = change.key.decode(errors="replace")
            self.problems.append(
                f"in the diff to {end}: {change.action.name} of the key {key!r}, and {reason}"
            )
