"""Shared parts of the syncs to Delta and Iceberg: plan, next state, and net changes to merge."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_archive.codec.arrow.types import Special, Typing, arrow_type, has_specials, is_array
from laredo_model import column as columns_
from laredo_model import position as positions
from laredo_spark.frames.changes import read_changes
from laredo_spark.read.table_read import UNKNOWN_HISTORY, TableRead
from laredo_spark.sync import plan
from laredo_spark.sync.errors import TargetRefused
from laredo_spark.sync.plan import Merge, Rebuild, SyncAction, UpToDate
from laredo_spark.sync.state import SyncState

MISCOUNTED = "it hasn't as many rows as the archive's manifest"
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
    :param is_counted: whether the target has as many rows as the manifest says.
    :raises KeyMissing, TargetRefused, OlderThanTarget: as plan.step().
    """
    if rebuild:
        return Rebuild("it was asked for")
    found = plan.step(target, held, table)
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
    key = columns_.key_columns(table.columns)
    return bool(key) and all(_follows(column, typing, wanted) for column in key)


def _follows(column: columns_.Column, typing: Typing, wanted: Sequence[str] | None) -> bool:
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
        history=plan.history_text(boundary),
        epoch=boundary.epoch,
        position=boundary.position,
        shape=plan.shape_of(table),
        rows=plan.expected_rows(table) or 0,
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


def same_key(table: TableRead) -> str:
    """The condition of a MERGE: the row of ``held`` and that of ``new`` have one key."""
    return " and ".join(f"held.{quoted(key)} <=> new.{quoted(key)}" for key in table.key_names)


def quoted(name: str) -> str:
    """A name as Spark's SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def _value(name: str, is_key: bool) -> Column:
    new = F.col(f"new.{quoted(name)}")
    return F.coalesce(new, F.col(f"old.{quoted(name)}")) if is_key else new
