"""``read_table`` of tables without a key: equal rows are as many as the table has."""

from collections import Counter
from dataclasses import replace
from hashlib import md5
from itertools import chain
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from laredo_spark import read_table
from laredo_spark.errors import KeyMissing
from laredo_spark.options import parse
from laredo_spark.read import unsorted
from laredo_spark.read.table_read import TableRead
from tests.support import drawn
from tests.support.archive.building import COLUMNS, Builder, State, row

KEYLESS = tuple(replace(column, key_ordinal=None) for column in COLUMNS)


def table(*ids: int) -> State:
    """One row for each; equal ones come several times."""
    found: State = {}
    numbers: Counter[bytes] = Counter()
    for number in ids:
        _, line = row(number, f"name {number}")
        numbers[line] += 1
        found[b"%b-%010d" % (md5(line).hexdigest().encode(), numbers[line])] = line
    return dict(sorted(found.items()))


def builder(directory: Path, **more: tuple[str, ...]) -> Builder:
    return Builder(directory, "log/", columns=KEYLESS, key_fields=(), **more)


def ids(spark: SparkSession, archive: Path, as_of: str | None = None, **given: object) -> list[int]:
    found = read_table(spark, str(archive), as_of, **given)
    return sorted(row.id for row in found.collect())


@pytest.mark.parametrize("format_id", drawn.first(1, ["protobuf", "jsonl", "parquet"]))
def test_at_every_boundary(spark: SparkSession, tmp_path: Path, format_id: str) -> None:
    made = builder(
        tmp_path, formats=("jsonl", "protobuf"), base_formats=("jsonl", "protobuf", "parquet")
    )
    made.base(0x10, table(1, 1, 2)).diff(0x20, table(1, 1, 1, 2, 3))
    made.diff(0x30, table(5, 5), truncate=True).diff(0x40, table(5, 5, 5, 6))
    archive = made.write()
    asked = (
        [("0/20", [1, 1, 1, 2, 3]), ("0/40", [5, 5, 5, 6])],
        [("0/10", [1, 1, 2]), ("0/30", [5, 5])],
    )
    for as_of, expected in chain(*drawn.in_turn(asked, 0)):
        assert ids(spark, archive, as_of, format=format_id, verify=True) == expected
    found = read_table(spark, str(archive), columns=["name"])
    assert found.columns == ["name"] and found.count() == 4
    with pytest.raises(KeyMissing):
        read_table(spark, str(archive), key="1")


@drawn.seeds(1, 10)
def test_rows_that_go_and_come_again(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    """No append_only table's writer makes such a diff; what it says holds all the same."""
    chance, made = Random(seed), builder(tmp_path)
    made.base(0x10, table(*chance.choices(range(4), k=chance.randrange(10))))
    for position in (0x20, 0x30, 0x40):
        made.diff(position, table(*chance.choices(range(4), k=chance.randrange(10))))
    archive = made.write()
    expected = sorted(int(line[6:7]) for line in made.states[-1].values())
    assert ids(spark, archive, verify=True) == expected


def test_the_manifest_shows_that_there_are_only_inserts(tmp_path: Path) -> None:
    made = builder(tmp_path).base(0x10, table(1, 1)).diff(0x20, table(1, 1, 2))
    made.diff(0x30, table(1, 2)).diff(0x40, table(3), truncate=True).diff(0x50, table(3, 3))
    archive = made.write()

    def inserts(as_of: str) -> bool:
        given = {"path": str(archive), "as_of": as_of}
        return unsorted.only_inserts(TableRead.of(parse(given)).boundary)

    assert [inserts(f"0/{end}") for end in (10, 20, 30, 40, 50)] == [True, True, False, True, True]
