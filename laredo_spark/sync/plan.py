"""The plan of a sync: nothing to do, a merge of diffs, or a rebuild."""

from dataclasses import dataclass

from laredo_archive.manifest import merged, timeline
from laredo_archive.manifest.model import Artifact
from laredo_archive.manifest.timeline import Boundary
from laredo_spark.read.table_read import UNKNOWN_HISTORY, TableRead
from laredo_spark.sync.errors import OlderThanTarget, TargetRefused
from laredo_spark.sync.state import SyncState


@dataclass(frozen=True)
class UpToDate:
    """The target holds the archive's head already."""


@dataclass(frozen=True)
class Merge:
    """Merge diffs into the target."""

    #: The diffs from the boundary that the target holds to the head, in order.
    diffs: tuple[Artifact, ...]

    @property
    def truncates(self) -> bool:
        """True if a diff truncates the table, so that no earlier row stays."""
        return any(diff.truncate for diff in self.diffs)


@dataclass(frozen=True)
class Rebuild:
    """Rewrite the whole target."""

    #: Why diffs can't be merged.
    reason: str


SyncAction = UpToDate | Merge | Rebuild


@dataclass(frozen=True)
class SyncResult:
    """A finished sync."""

    #: What it did.
    step: SyncAction
    #: The target's state after it.
    state: SyncState
    #: The number of files that it wrote.
    files_written: int


def step(target: object, held: SyncState | None, table: TableRead) -> SyncAction:
    """Plan a sync; ``held`` is None if nothing was synced yet.

    :raises KeyMissing: if the table has no key.
    :raises TargetRefused: if the target holds another table.
    :raises OlderThanTarget: if the archive ends before what the target holds.
    """
    table.refuse_without_key()
    if held is None:
        return Rebuild("nothing was synced to it yet")
    name = table.archive.manifest.table
    if held.table != name:
        raise TargetRefused(target, f"it holds {held.table}, and the archive is of {name}")
    end = table.boundary
    if held.history != history_text(end):
        return Rebuild(f"the archive has a new history, {history_text(end)}")
    if held.position > end.position:
        raise OlderThanTarget(target, held.position, table.archive.uri, end.position)
    if held.shape != shape_of(table):
        return Rebuild("its columns, or the options for them, have changed")
    return _onwards(held, table)


def shape_of(table: TableRead) -> str:
    """Schema, special values and key as one text; if it changes, the target is rebuilt."""
    schema = table.spark_schema().simpleString()
    return f"{schema} special_values={table.asked.typing.special.value} key={table.key_names}"


def _onwards(held: SyncState, table: TableRead) -> SyncAction:
    start = _start(held, table)
    if start is None:
        return Rebuild("the archive no longer has the boundary that it held")
    diffs = timeline.path(table.archive.epochs, start, table.boundary)
    if diffs is None:
        return Rebuild(f"epoch {table.boundary.epoch} doesn't continue the one before")
    if not diffs:
        return UpToDate()
    # A writer that marks a diff as sorted also marks whether it truncates.
    if not all(table.choose(diff)[1].sorted for diff in diffs):
        return Rebuild("the archive's diffs aren't sorted by key")
    return Merge(tuple(diffs))


def _start(held: SyncState, table: TableRead) -> Boundary | None:
    table.archive.unfold(merged.at(held.position))
    found = [
        boundary
        for boundary in table.archive.boundaries
        if boundary.position == held.position and history_text(boundary) == held.history
    ]
    same_epoch = [boundary for boundary in found if boundary.epoch == held.epoch]
    # A re-base gives the diffs after it to its own epoch, and retention removes the one before.
    later = [boundary for boundary in found if _continues(held, boundary, table)]
    return next(iter(same_epoch + later), None)


def _continues(held: SyncState, boundary: Boundary, table: TableRead) -> bool:
    """True if each epoch after the target's continues the one before."""
    bases = {epoch.number: epoch.base for epoch in table.archive.epochs}
    between = range(held.epoch + 1, boundary.epoch + 1)
    return bool(between) and all(n in bases and bool(bases[n].continues) for n in between)


def history_text(boundary: Boundary) -> str:
    """A boundary's history, as targets keep it."""
    return UNKNOWN_HISTORY if boundary.history is None else str(boundary.history)


def expected_rows(table: TableRead) -> int | None:
    """The manifest's row count of the table; None if it has none."""
    last = table.boundary.last
    return last.row_count if last.is_snapshot and last.rows is None else last.rows
