"""The plan of a sync: nothing to do, a merge of net changes, or a rebuild."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_archive.codec.arrow.types import Special, TypeChoice, arrow_type, has_specials, is_array
from laredo_archive.manifest import merged, timeline
from laredo_archive.manifest.chain import UNKNOWN_HISTORY, history_of, is_earlier
from laredo_archive.manifest.timeline import Boundary
from laredo_model import column as columns_
from laredo_model import position as positions
from laredo_model.position import Position
from laredo_spark.frames import read_changes
from laredo_spark.read.table_read import TableRead
from laredo_spark.session import quoted
from laredo_spark.sync.errors import OlderThanTarget, TargetRefused

# The state that a sync records in its target: the archive's boundary that it holds.

FORMAT = 1


class StateUnreadable(ValueError):
    """A text that isn't a state, or one of a newer program."""


@dataclass(frozen=True)
class SyncState:
    """The boundary that a target holds."""

    #: Counts the target's versions, from 1.
    version: int
    #: The table, as the manifest names it.
    table: str
    #: The history of the boundary.
    history: str
    #: The epoch of the boundary.
    epoch: int
    #: The position of the boundary.
    position: Position
    #: Schema, special values and key of the rows; if it changes, all rows are rewritten.
    shape: str
    #: Number of the target's rows.
    rows: int

    @property
    def at(self) -> str:
        """The boundary, for messages."""
        return f"{positions.text(self.position)} (history {self.history})"

    def to_json(self) -> dict[str, Any]:
        """The JSON object that the target keeps."""
        return {"format": FORMAT, **asdict(self), "position": positions.text(self.position)}

    @classmethod
    def parse(cls, text: str) -> "SyncState":
        """Parse the text of :meth:`to_json`'s object.

        :raises StateUnreadable: if it isn't one that this program knows.
        """
        try:
            given = json.loads(text)
            if given["format"] != FORMAT:
                raise StateUnreadable("it was written by a newer program")
            # Earlier programs recorded files too, which only a Parquet target had.
            known = {field.name: given[field.name] for field in fields(cls)}
            return cls(**{**known, "position": positions.parse(given["position"])})
        except StateUnreadable:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as wrong:
            raise StateUnreadable(f"it can't be read: {wrong}") from wrong


# The plan of a sync: nothing to do, a merge of diffs, or a rebuild.


@dataclass(frozen=True)
class UpToDate:
    """The target holds the archive's head already."""


@dataclass(frozen=True)
class Merge:
    """Merge into the target the diffs that lead from its boundary to the head."""

    #: Whether a diff truncates the table, so that no earlier row stays.
    truncates: bool


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


def plan_step(target: object, held: SyncState | None, table: TableRead) -> SyncAction:
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
    if held.history != history_of(end.history):
        # The new history may continue the old one.
        if isinstance(_onwards(held, table), Rebuild):
            if end.epoch <= held.epoch and is_earlier(end.history, held.history):
                raise OlderThanTarget(target, held.at, table.archive.uri, _at(end))
            return Rebuild(f"the archive has a new history, {history_of(end.history)}")
    elif held.position > end.position:
        raise OlderThanTarget(target, held.at, table.archive.uri, _at(end))
    if held.shape != shape_of(table):
        return Rebuild("its columns, or the options for them, have changed")
    return _onwards(held, table)


def _at(end: Boundary) -> str:
    return f"{positions.text(end.position)} (history {history_of(end.history)})"


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
    return Merge(any(diff.truncate for diff in diffs))


def _start(held: SyncState, table: TableRead) -> Boundary | None:
    table.archive.unfold(merged.at(held.position))
    found = [
        boundary
        for boundary in table.archive.boundaries
        if boundary.position == held.position and history_of(boundary.history) == held.history
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


MISCOUNTED = "its row count differs from the archive's manifest"
_OF_TABLE = frozenset({"path", "as_of", "exact", "epoch", "history", "partitions_at_least"})


def step(
    target: object,
    held: SyncState | None,
    by_others: str | None,
    table: TableRead,
    is_counted: Callable[[], bool],
    *,
    rebuild: bool,
) -> SyncAction:
    """Plan a sync by MERGE.

    :param by_others: what another program wrote to the target since the last sync; None: nothing.
    :param is_counted: whether the target has the manifest's number of rows.
    :raises KeyMissing, TargetRefused, OlderThanTarget: as plan_step().
    """
    if rebuild:
        return Rebuild("rebuild was requested")
    found = plan_step(target, held, table)
    if by_others is not None:
        return Rebuild(f"another program has written to it ({by_others})")
    if isinstance(found, UpToDate) and not is_counted():
        return Rebuild(MISCOUNTED)
    if isinstance(found, Merge) and found.truncates:
        return Rebuild("the table was truncated")
    if isinstance(found, Merge) and not _is_comparable(table):
        return Rebuild("rows can't be distinguished by their key columns")
    return found


def _is_comparable(table: TableRead) -> bool:
    """True if a row's key follows from its typed columns."""
    typing, wanted = table.asked.typing, table.asked.columns
    key = columns_.key_columns(table.shape.columns)
    return bool(key) and all(_follows(column, typing, wanted) for column in key)


def _follows(column: columns_.Column, typing: TypeChoice, wanted: Sequence[str] | None) -> bool:
    found = arrow_type(column, typing)
    if wanted is not None and column.name not in wanted:
        return False
    if typing.special is Special.NULL and has_specials(found):
        return False
    return not is_array(column) and not pa.types.is_floating(found)


def next_state(held: SyncState | None, table: TableRead) -> SyncState:
    """The state of a target whose rows are those of ``table``'s boundary."""
    boundary = table.boundary
    return SyncState(
        version=1 if held is None else held.version + 1,
        table=table.archive.manifest.table,
        history=history_of(boundary.history),
        epoch=boundary.epoch,
        position=boundary.position,
        shape=shape_of(table),
        rows=table.row_count or 0,
    )


def net_changes(
    spark: SparkSession, given: Mapping[str, str], table: TableRead, held: SyncState
) -> DataFrame:
    """The newest change of each key since ``held``: its row, and ``__laredo_action``.

    Of a deleted row only the key has values.
    """
    known = held.history != UNKNOWN_HISTORY
    after: dict[str, Any] = {"history": held.history} if known else {}
    more: dict[str, Any] = {k: v for k, v in given.items() if k not in _OF_TABLE}
    changes = read_changes(
        spark,
        given["path"],
        positions.text(held.position),
        positions.text(table.boundary.position),
        exact=True,
        merged=True,
        also="lsn",
        **after,
        **more,
    )
    names, keys = table.spark_schema().names, set(table.key_names)
    rows = changes.select(
        F.col("action").alias("__laredo_action"),
        F.col("lsn").alias("__laredo_lsn"),
        *(_value(name, name in keys).alias(name) for name in names),
    )
    # Two keys with one typed value (1.0 and 1.00) are one row to MERGE: the newest stays.
    newest_first = Window.partitionBy(*map(quoted, table.key_names)).orderBy(
        F.col("__laredo_lsn").desc(), F.expr("__laredo_action = 'DELETE'")
    )
    ranked = rows.withColumn("__laredo_rank", F.row_number().over(newest_first))
    return ranked.where("__laredo_rank = 1").drop("__laredo_rank", "__laredo_lsn")


def refuse_substituted(spark: SparkSession, target: str, names: Iterable[str]) -> None:
    """Refuse names that Spark would read as its own variables in the text of a statement.

    It substitutes ``${env:HOME}`` inside backticks too, and has no way to escape it.

    :raises TargetRefused: naming the first one, while the session substitutes.
    """
    if spark.conf.get("spark.sql.variable.substitute", "true") == "false":
        return
    for name in names:
        if "${" in name:
            raise TargetRefused(
                target,
                f"the name {name!r} has ${{...}}, which Spark would substitute; set"
                " spark.sql.variable.substitute = false for this session",
            )


def refuse_twins(spark: SparkSession, target: str, names: Iterable[str]) -> None:
    """Refuse two columns whose names differ only in case, which Spark treats as one.

    :raises TargetRefused: naming them, unless the session is case-sensitive.
    """
    if spark.conf.get("spark.sql.caseSensitive", "false") == "true":
        return
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            raise TargetRefused(
                target,
                f"the columns {other!r} and {name!r} differ only in case, and Spark treats them as"
                " one; leave one of them out (option columns)",
            )


def same_key(table: TableRead) -> str:
    """The condition of a MERGE: the row of ``held`` and that of ``new`` have one key."""
    return " and ".join(f"held.{quoted(key)} <=> new.{quoted(key)}" for key in table.key_names)


def _value(name: str, is_key: bool) -> Column:
    new = F.col(f"new.{quoted(name)}")
    return F.coalesce(new, F.col(f"old.{quoted(name)}")) if is_key else new
