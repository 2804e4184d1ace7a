"""Reads of archives that aren't sorted, or have no key, and the proof of rows read by Spark."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_archive.manifest.model import Artifact
from laredo_archive.manifest.timeline import Boundary
from laredo_model.checksum import MODULUS, StateChecksum
from laredo_spark.errors import NotEqual, NotProvable
from laredo_spark.options import ReadMode
from laredo_spark.read.row_shape import LINE
from laredo_spark.read.table_read import TableRead
from laredo_spark.read.unfolded_reader import ACTION, KEY, ORDER, PUT, TRUNCATE
from laredo_spark.session import quoted


def folded(spark: SparkSession, table: TableRead, options: Mapping[str, str]) -> DataFrame:
    """The table at its boundary, to which ``options`` are pinned."""

    names = table.spark_schema().names
    base, diffs = base_and_diffs(spark, options)
    if not table.boundary.diffs:
        return chosen(_of_key(base, table), names)
    if not all(diff.records_truncation for diff in table.boundary.diffs):
        base, diffs = _since_truncation(base, diffs)
    changes = diffs.where(F.col(ACTION) != TRUNCATE)
    unique = _with_unique_keys(_of_key(base, table), table.archive.uri)
    return newest(unique, _of_key(changes, table), names)


def base_and_diffs(spark: SparkSession, options: Mapping[str, str]) -> tuple[DataFrame, DataFrame]:
    """The base's rows and the diffs' changes, each with key, order and action."""

    def rows(mode: ReadMode) -> DataFrame:
        given = {**options, "mode": mode.value, "push_filters": "false"}
        return spark.read.format("laredo").options(**given).load()

    return rows(ReadMode.BASE), rows(ReadMode.DIFFS)


def newest(base: DataFrame, diffs: DataFrame, names: Sequence[str]) -> DataFrame:
    """The rows of the base with each key's newest change, without a TRUNCATE among these."""
    newest_first = Window.partitionBy(KEY).orderBy(F.col(ORDER).desc())
    changed = diffs.withColumn("__laredo_place", F.row_number().over(newest_first)).where(
        "__laredo_place = 1"
    )
    untouched = base.join(changed.select(KEY), KEY, "left_anti")
    written = changed.where(F.col(ACTION) == PUT)
    return chosen(untouched, names).unionByName(chosen(written, names))


def _with_unique_keys(base: DataFrame, uri: str) -> DataFrame:
    """The base's rows; two with one key are an error.

    The join is by key too, so this costs no shuffle of its own.
    """
    place = F.row_number().over(Window.partitionBy(KEY).orderBy(ORDER))
    reason = F.concat(
        F.lit(f"{uri}: two rows of its base have the key "),
        F.col(KEY),
        F.lit("; if another column is the key, name it with key_fields"),
    )
    refused = F.raise_error(reason).cast("boolean")
    return (
        base.withColumn("__laredo_place", place)
        .where(F.when(F.col("__laredo_place") > 1, refused).otherwise(F.lit(True)))
        .drop("__laredo_place")
    )


def chosen(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """The table's columns alone."""
    return frame.select(*map(quoted, names))


def _of_key(frame: DataFrame, table: TableRead) -> DataFrame:
    key = table.asked.key
    return frame if key is None else frame.where(F.col(KEY) == key)


def _since_truncation(base: DataFrame, diffs: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Base and diffs without the rows before the diffs' last TRUNCATE."""
    truncated = diffs.where(F.col(ACTION) == TRUNCATE)
    last = F.broadcast(truncated.agg(F.coalesce(F.max(ORDER), F.lit(-1)).alias("__laredo_last")))
    base = base.crossJoin(last).where("__laredo_last = -1").drop("__laredo_last")
    diffs = diffs.crossJoin(last).where(f"{ORDER} > __laredo_last").drop("__laredo_last")
    return base, diffs


# Reads tables without a key (``append_only``): the base's rows, and those that the diffs insert.
#
# Equal rows are all kept. If each change of a diff adds a row, by the manifest's row counts, its
# rows are appended. If not, rows are joined by a key: the digest of the row's line, and its number
# among equal rows.

_NUMBER = "__laredo_number"
_DIGITS = 10


def appended(spark: SparkSession, table: TableRead, options: Mapping[str, str]) -> DataFrame:
    """The table at its boundary, to which ``options`` are pinned."""
    names = table.spark_schema().names
    base, diffs = base_and_diffs(spark, options)
    if not table.boundary.diffs:
        return chosen(base, names)
    if only_inserts(table.boundary):
        inserted = diffs.where(F.col(ACTION) == PUT)
        return chosen(base, names).unionByName(chosen(inserted, names))
    equal = Window.partitionBy(KEY).orderBy(ORDER)
    number = F.lpad(F.col(_NUMBER).cast("string"), _DIGITS, "0")
    base = base.withColumn(_NUMBER, F.row_number().over(equal)).withColumn(
        KEY, F.concat(F.col(KEY), F.lit("-"), number)
    )
    return newest(base, diffs.where(F.col(ACTION) != TRUNCATE), names)


def only_inserts(boundary: Boundary) -> bool:
    """True if each change up to the boundary, since the last TRUNCATE, adds a row."""
    steps = list(pairwise(boundary.artifacts))
    truncating = [number for number, (_, diff) in enumerate(steps) if diff.truncate]
    return all(
        _only_inserts(before, diff) for before, diff in steps[truncating[-1] if truncating else 0 :]
    )


def _only_inserts(before: Artifact, diff: Artifact) -> bool:
    rows = 0 if diff.truncate else before.rows
    if rows is None or diff.rows is None:
        return False
    return diff.rows - rows == diff.change_count


# The checksum of a state (docs/archive-format.md) is the sum, modulo 2^128, of the md5 of its
# lines. A Spark decimal has 38 digits and 2^128 has 39, so the four 32-bit parts are summed apart.

_PARTS = 4
_HEX_DIGITS = 8


def check(table: TableRead, lines: DataFrame) -> None:
    """Read all ``lines`` of the table at its boundary, and compare.

    :raises NotProvable: if the manifest has neither row count nor checksum.
    :raises NotEqual: if they differ.
    """
    last = table.boundary.last
    rows = table.row_count
    if rows is None and last.state_checksum is None:
        raise NotProvable(table.archive.uri, str(table.boundary))
    found = state_of(lines)
    same_rows = rows in (None, found.rows)
    if not same_rows or last.state_checksum not in (None, found.hex()):
        raise NotEqual(
            table.archive.uri,
            str(table.boundary),
            _text(rows, last.state_checksum),
            _text(found.rows, found.hex() if last.state_checksum is not None else None),
        )


def state_of(lines: DataFrame) -> StateChecksum:
    """Row count and checksum of rows, by their lines, computed with Spark's own functions."""
    digest = F.md5(F.col(LINE))
    sums = [_sum_of_part(digest, part) for part in range(_PARTS)]
    row = lines.agg(F.count(F.lit(1)), *sums).collect()[0]
    return StateChecksum(row[0], _combined([int(part or 0) for part in row[1:]]))


def _sum_of_part(digest: Column, part: int) -> Column:
    hexadecimal = F.substring(digest, part * _HEX_DIGITS + 1, _HEX_DIGITS)
    return F.sum(F.conv(hexadecimal, 16, 10).cast("decimal(10,0)"))


def _combined(sums: Sequence[int]) -> int:
    total = 0
    for one in sums:
        total = (total << 32) + one
    return total % MODULUS


def _text(rows: int | None, checksum: str | None) -> str:
    expected = [] if rows is None else [f"{rows} rows"]
    return " with checksum ".join([*expected, *([] if checksum is None else [checksum])])
