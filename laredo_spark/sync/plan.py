"""What brings a target from the boundary that it holds to the archive's head."""

from dataclasses import dataclass

from laredo_archive.manifest import timeline
from laredo_archive.manifest.model import Artifact
from laredo_archive.manifest.timeline import Boundary
from laredo_spark.read.table_read import UNKNOWN_HISTORY, TableRead
from laredo_spark.sync.errors import OlderThanTarget, TargetRefused
from laredo_spark.sync.state import SyncState


@dataclass(frozen=True)
class Level:
    """There is nothing to do."""


@dataclass(frozen=True)
class Merge:
    """These diffs, in their order, lead from what the target holds to the head."""

    diffs: tuple[Artifact, ...]

    @property
    def truncates(self) -> bool:
        """Whether nothing of what was before stays."""
        return any(diff.truncate for diff in self.diffs)


@dataclass(frozen=True)
class Rebuild:
    """The table has to be written anew."""

    reason: str


SyncAction = Level | Merge | Rebuild


def step(target: object, held: SyncState | None, table: TableRead) -> SyncAction:
    """What is to be done; ``held`` is None if nothing was synced yet.

    :raises TargetRefused: if the target holds another table.
    :raises OlderThanTarget: if the archive ends before what the target holds.
    """
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
    """What has to be the same for old rows and new ones to stand beside one another."""
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
        return Level()
    # Whoever says that a diff is sorted also says whether it truncates.
    if not all(table.choose(diff)[1].sorted for diff in diffs):
        return Rebuild("the archive's diffs aren't sorted by key")
    return Merge(tuple(diffs))


def _start(held: SyncState, table: TableRead) -> Boundary | None:
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
    """Whether each epoch after the one held goes on where the one before ended."""
    bases = {epoch.number: epoch.base for epoch in table.archive.epochs}
    between = range(held.epoch + 1, boundary.epoch + 1)
    return bool(between) and all(n in bases and bool(bases[n].continues) for n in between)


def history_text(boundary: Boundary) -> str:
    """A boundary's history, as targets keep it."""
    return UNKNOWN_HISTORY if boundary.history is None else str(boundary.history)


def rows_said(table: TableRead) -> int | None:
    """How many rows the manifest says the table has; None if it doesn't."""
    last = table.boundary.last
    return last.row_count if last.is_snapshot and last.rows is None else last.rows
