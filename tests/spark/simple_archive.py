"""An archive of two epochs whose changes are read, and the rows that Spark makes of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row

from tests.support.archive.building import Builder, row, state

ONE = state(row(1, "Ada"), row(2, "Bob"), row(3, "Cy"))

TWO = state(row(1, "Ada"), row(2, "Bo"), row(4, "Dee"))

THREE = state(row(9, "alone"))

FOUR = state(row(9, "Alone"), row(10, "not"))


def simple(directory: Path, **how: Any) -> Builder:
    """Two epochs, of which the second continues the first."""
    builder = Builder(directory, **how)
    builder.base(0x10, ONE).diff(0x20, TWO).diff(0x30, THREE, truncate=True)
    return builder.base(0x30, THREE).diff(0x40, FOUR)


def value(number: int, name: str) -> Row:
    return Row(id=number, name=name, doc=None)


AT_20 = [
    ("DELETE", "0/20", "3", value(3, "Cy"), None),
    ("INSERT", "0/20", "4", None, value(4, "Dee")),
    ("UPDATE", "0/20", "2", value(2, "Bob"), value(2, "Bo")),
]

AT_30 = [("INSERT", "0/30", "9", None, value(9, "alone")), ("TRUNCATE", "0/30", None, None, None)]

SNAPSHOT_30 = [
    ("SNAPSHOT", "0/30", "9", None, value(9, "alone")),
    ("TRUNCATE", "0/30", None, None, None),
]

AT_40 = [
    ("INSERT", "0/40", "10", None, value(10, "not")),
    ("UPDATE", "0/40", "9", value(9, "alone"), value(9, "Alone")),
]


def found(changes: DataFrame) -> list[tuple[Any, ...]]:
    return sorted_changes(tuple(row) for row in changes.collect())


def sorted_changes(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """By position, action and key."""
    return sorted(rows, key=lambda row: (row[1], row[0], row[2] or ""))
