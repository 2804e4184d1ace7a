"""Compares the rows that Spark read with the manifest's row count and checksum.

The checksum of a state (docs/archive-format.md) is the sum, modulo 2^128, of the md5 of its
lines. A Spark decimal has 38 digits and 2^128 has 39, so the four 32-bit parts are summed apart.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_model.checksum import MODULUS, StateChecksum
from laredo_spark.errors import NotEqual, NotProvable
from laredo_spark.read.row_shape import LINE
from laredo_spark.read.table_read import TableRead

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
