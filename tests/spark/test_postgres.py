"""PostgreSQL, both programs, Spark: every type of every row at every boundary, in every format.

The test is the only one that writes, and waits after each transaction until the archive has it:
so what PostgreSQL says then is what every boundary since shows, until the next transaction.
"""

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it
from pyspark.sql.pandas.types import from_arrow_schema

from laredo_archive import open_archive
from laredo_archive.maintain.verify import verify
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_spark import read_table, register
from tests.support import drawn
from tests.support.postgres import Database
from tests.support.postgres_road import (
    DEEP,
    FORMATS,
    ROW,
    Road,
    Rows,
    collected,
    expected,
    in_order,
    insert,
    road,
)


def write(made: Road) -> None:
    """Some life: every kind of change, a new base, a truncation, a column more."""
    made.do("kinds", insert(1), insert(2), "INSERT INTO kinds (id) VALUES (3)", parameters=ROW)
    made.do(
        "kinds",
        "UPDATE kinds SET words = NULL, big = 9007199254740993, doc = '[]' WHERE id = 2",
        "DELETE FROM kinds WHERE id = 3",
    )
    made.do(
        "kinds",
        "INSERT INTO kinds (id, words, real8) SELECT n, 'row ' || n, n / 7.0"
        " FROM generate_series(10, 60) n",
    )
    made.re_base("kinds")
    made.do("kinds", "UPDATE kinds SET real8 = real8 * 3 WHERE id % 7 = 0")
    made.do("kinds", "TRUNCATE kinds", insert(7), parameters=ROW)
    made.do("kinds", "DELETE FROM kinds")
    made.do("kinds", "ALTER TABLE kinds ADD COLUMN added numeric(5,1)", insert(8), parameters=ROW)
    made.do("kinds", "UPDATE kinds SET added = 1234.5")
    made.do(
        "pairs",
        "INSERT INTO pairs SELECT n, chr(97 + n % 3) || '\"', n FROM generate_series(1, 30) n",
    )
    made.do(
        "pairs", "UPDATE pairs SET at = at + 100 WHERE at % 5 = 0", "DELETE FROM pairs WHERE at = 7"
    )
    made.do(
        "special",
        "INSERT INTO special VALUES (1, 'infinity', '-infinity', 'NaN'),"
        " (2, '0044-03-15 BC', '0044-03-15 10:00 BC', 1.5), (3, '2024-02-29', '10000-01-01', 2)",
    )
    made.re_base("special")


def test_every_boundary_is_what_postgres_had(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    with road(tmp_path, database) as made:
        write(made)
    register(spark)
    for table, least in (("kinds", 10), ("pairs", 3)):
        archive = Archive.at(str(made.place(table)))
        assert len(archive.boundaries) >= least
        report = verify(archive)  # also that all formats give the same lines
        assert (report.problems, report.remarks) == ([], [])
        for number, boundary in enumerate(archive.boundaries):
            state = made.at(table, boundary.position)
            as_of = positions.text(boundary.position)
            dimensions = {"deep": 2} if table == "kinds" else {}
            options = {"epoch": str(boundary.epoch), **(DEEP if table == "kinds" else {})}
            for format_id in drawn.in_turn(FORMATS, number):
                asked = {**options, "format": format_id, "as_of": as_of, "exact": "true"}
                for by_format in drawn.in_turn((False, True), number):
                    if by_format:
                        reader = spark.read.format("laredo").options(**asked)
                        frame = reader.load(made.place(table).as_uri())
                    else:
                        verified = {"verify": not number % 4, **asked}
                        frame = read_table(spark, str(made.place(table)), **verified)
                    assert frame.columns == state.columns
                    assert in_order(collected(frame)) == in_order(expected(state)), boundary
                by_python = open_archive(
                    made.place(table), prefer=format_id, array_dimensions=dimensions
                ).at(as_of, exact=True, epoch=boundary.epoch)
                assert from_arrow_schema(by_python.schema) == frame.schema
                assert in_order(values(by_python.to_arrow())) == in_order(expected(state)), boundary
    _check_types(spark, made)
    _check_filters(spark, made)
    for format_id in drawn.in_turn(("jsonl", "parquet"), 0):
        _check_special(spark, made, format_id)


def values(rows: pa.Table) -> Rows:
    """Rows as ``collected`` gives them: moments as microseconds."""
    for name in {"zoned", "moments"} & set(rows.schema.names):
        type_ = pa.int64() if name == "zoned" else pa.list_(pa.int64())
        number = rows.schema.get_field_index(name)
        rows = rows.set_column(number, name, rows[name].cast(type_))
    return [tuple(row.values()) for row in rows.to_pylist()]


def _check_types(spark: SparkSession, made: Road) -> None:
    schema = read_table(spark, str(made.place("kinds")), **DEEP).schema
    expected_types = {
        "id_of": "bigint",
        "real4": "float",
        "exact": "decimal(18,4)",
        "wide": "decimal(38,0)",
        "free": "string",
        "paid": "decimal(18,4)",
        "day": "date",
        "bare": "timestamp_ntz",
        "zoned": "timestamp",
        "bytes": "binary",
        "deep": "array<array<bigint>>",
        "prices": "array<decimal(10,2)>",
    }
    assert {name: schema[name].dataType.simpleString() for name in expected_types} == expected_types
    _check_choices(spark, made)


def _check_choices(spark: SparkSession, made: Road) -> None:
    """A column whose type may be chosen, in each format."""
    last = made.states["kinds"][-1]
    [row] = last.rows
    doc = json.loads(row[last.columns.index("doc")], parse_float=Decimal)
    place = str(made.place("kinds"))
    for format_id in FORMATS:
        frame = read_table(spark, place, columns=["free", "doc"], format=format_id)
        [found] = frame.selectExpr("free", "parse_json(doc):big::decimal(38,2) AS big").collect()
        assert (found.free, found.big) == (ROW["free"], doc["big"])
        asked = {"columns": "free", "numeric_as": "decimal(38,0)", "format": format_id}
        with pytest.raises(Exception, match=r"column free: 1234.* can't be a decimal128"):
            read_table(spark, place, **asked).collect()


def _check_filters(spark: SparkSession, made: Road) -> None:
    """Keys as PostgreSQL prints them are found by Spark's values."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pairs = read_table(spark, str(made.place("pairs")))
        held = [tuple(row) for row in made.states["pairs"][-1].rows]
        for place, at in (('a"', 3), ('c"', 105), ('b"', 7)):
            found = collected(pairs.where(F.col("place") == place).where(F.col("at") == at))
            assert found == [row for row in held if row[1:] == (place, at)]
            of_place = collected(pairs.where(F.col("place") == place))
            assert in_order(of_place) == in_order([row for row in held if row[1] == place])
            between = collected(pairs.where(F.col("place") == place).where("at BETWEEN 3 AND 15"))
            wanted = [row for row in held if row[1] == place and 3 <= row[2] <= 15]
            assert in_order(between) == in_order(wanted)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def _check_special(spark: SparkSession, made: Road, format_id: str) -> None:
    place = str(made.place("special"))
    texts = read_table(spark, place, special_values="string", format=format_id)
    assert in_order(collected(texts.select("id", "day", "exact"))) == [
        (1, "infinity", "NaN"),
        (2, "0044-03-15 BC", "1.50"),
        (3, "2024-02-29", "2.00"),
    ]
    nulls = read_table(spark, place, special_values="null", format=format_id)
    found = nulls.selectExpr("id", "day IS NULL AS no_day", "exact IS NULL AS no_exact")
    assert in_order(collected(found)) == [(1, True, True), (2, True, False), (3, False, False)]
    with pytest.raises(Exception, match="column day: infinity can't be a date32"):
        read_table(spark, place, format=format_id).collect()
