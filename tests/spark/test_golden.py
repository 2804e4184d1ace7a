"""The golden archives through Spark: every one, in each of its formats, at every boundary.

Lines are compared byte for byte with truth/, which is written by hand; values with rows
written by hand here. Beyond what PROVEN says nothing is claimed.
"""

import json
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from laredo_archive.errors import ArchiveError
from laredo_spark import read_changes, read_table
from laredo_spark.options import parse
from laredo_spark.read.table_read import TableRead
from tests.spark.change_stream import FIRST, latest, reader
from tests.support import drawn
from tests.support.golden.truth import ARCHIVES, TRUTHS, Truth, all_truths, position_of
from tests.support.golden.written import changes
from tests.support.spark_reading import together

LINES = ("jsonl", "protobuf")
PROVEN = {
    "composite": LINES,
    "compressed": ("jsonl.zst", "protobuf.zst"),
    "epochs": LINES,
    "json": LINES,
    "keys": LINES,
    "merged": LINES,
    "mixed": LINES,
    "people": LINES,
    "typed": (*LINES, "parquet"),
    "types": LINES,
    "unsorted": LINES,
}
"""By archive: the formats whose lines Spark gives as the truth has them, at every boundary."""
WITHOUT_TYPES = dict.fromkeys(("bare", "original", "originals_keys", "originals_windows"), LINES)
"""Archives without types, compared as values."""
NOTHING_TO_READ = {"empty"}
CASES = [(name, formats[n % 2]) for n, (name, formats) in enumerate(PROVEN.items())]
"""Each archive in one format; then in the others."""
CASES += [
    (name, format_id)
    for name, formats in PROVEN.items()
    for format_id in formats
    if (name, format_id) not in CASES
]
CHANGES = [(name, LINES[n % 2]) for n, name in enumerate(PROVEN)]
AS_OF = [truth.name for truth in all_truths() if truth.as_of]


def of(name: str) -> Truth:
    return Truth(TRUTHS / name)


def some(name: str) -> list[str]:
    """Boundaries of an archive whose files Spark joins: in `make test` its last one."""
    boundaries = of(name).boundaries
    return list(drawn.in_turn(boundaries, len(boundaries) - 1))


def lines(frames: dict[str, DataFrame]) -> dict[str, list[str]]:
    """The lines of several reads, sorted."""
    return {name: sorted(row.line for row in rows) for name, rows in together(frames).items()}


def expected(name: str, boundary: str) -> list[str]:
    return sorted(of(name).lines(boundary))


def all_changes(truth: Truth) -> Iterator[Row]:
    """Changes after the first artifact, by the states before and after each one."""
    before = truth.state(truth.boundaries[0])
    for artifact, name in zip(truth.artifacts[1:], truth.boundaries[1:], strict=True):
        after, at = truth.state(name), artifact["to"]
        is_diff = artifact["kind"] == "diff"
        if artifact.get("truncate") or not (is_diff or artifact.get("continues")):
            yield change_row("TRUNCATE", at)
            before = {}
        for change in changes(before, after):
            action = change.action if is_diff else "SNAPSHOT"
            yield change_row(action, at, change.key, change.old, change.new)
        before = after


def change_row(action: str, position: str, *rest: str | None) -> Row:
    key, old, new = rest or (None, None, None)
    return Row(action=action, position=position, key=key, old=old, new=new)


def test_every_archive_is_in_the_table() -> None:
    assert PROVEN.keys() | WITHOUT_TYPES.keys() | NOTHING_TO_READ == {
        truth.name for truth in all_truths()
    }


@pytest.mark.parametrize(("name", "format_id"), drawn.first(2, CASES))
def test_lines_at_every_boundary(spark: SparkSession, name: str, format_id: str) -> None:
    frames = {}
    for boundary in of(name).boundaries:
        position, epoch = position_of(boundary)
        frames[boundary] = read_table(
            spark, str(ARCHIVES / name), position, exact=True, epoch=epoch,
            format=format_id, lines=True,
        )  # fmt: skip
    assert lines(frames) == {boundary: expected(name, boundary) for boundary in frames}


@pytest.mark.parametrize("name", AS_OF)
def test_which_boundary_is_meant(name: str) -> None:
    """Planned as read_table() plans; which rows are there is told above."""
    for asked in of(name).as_of:
        given = {option: str(value) for option, value in asked.items() if value is not None}
        wanted = given.pop("gives", None)
        options = parse({"path": str(ARCHIVES / name), **given})
        if wanted is None:
            with pytest.raises(ArchiveError):
                TableRead.of(options)
        else:
            found = TableRead.of(options).pinned()
            assert (found["as_of"], int(found["epoch"])) == position_of(wanted), asked


@pytest.mark.parametrize(("name", "format_id"), CHANGES)
def test_changes_from_the_first_boundary_on(spark: SparkSession, name: str, format_id: str) -> None:
    """Each diff's, and where no diff leads on a TRUNCATE and the next base."""
    truth = of(name)
    first, _ = position_of(truth.boundaries[0])
    found = read_changes(
        spark, str(ARCHIVES / name), after=first, on_gap="snapshot", format=format_id, lines=True
    )
    assert sorted(map(str, found.collect())) == sorted(map(str, all_changes(truth)))


@pytest.mark.parametrize(("name", "format_id"), CHANGES)
def test_a_stream_has_the_same_changes(name: str, format_id: str) -> None:
    """As Spark asks for them: a diff at a time, by offsets, with a new reader for each."""
    truth = of(name)
    first, _ = position_of(truth.boundaries[0])
    asked = {"after": first, "on_gap": "snapshot", "format": format_id, "lines": "true"}
    found: list[Row] = []
    start, end = None, FIRST
    while start != end:
        made = reader(truth.archive, **asked, max_diffs_per_trigger="1")
        start, end = end, latest(made, end)
        for task in made.partitions(start, end):
            found += [Row(**line) for batch in made.read(task) for line in batch.to_pylist()]
    assert sorted(map(str, found)) == sorted(map(str, all_changes(truth)))


def test_verify_compares_rows_and_checksum(spark: SparkSession) -> None:
    found = read_table(spark, str(ARCHIVES / "types"), "0/20", verify=True, columns=["id"])
    assert sorted(row.id for row in found.collect()) == [1, 2, 4, 5]


UNTYPED = [(name, format_id) for name in ("original", "bare") for format_id in LINES]


@pytest.mark.parametrize(("name", "format_id"), drawn.first(1, UNTYPED))
def test_values_without_types_at_every_boundary(
    spark: SparkSession, name: str, format_id: str
) -> None:
    frames = {}
    for boundary in some(name):
        position, epoch = position_of(boundary)
        frames[boundary] = read_table(
            spark, str(ARCHIVES / name), position, exact=True, epoch=epoch, format=format_id
        )
    # Of epoch 3 of the original's one row says what is what.
    shown = {frame.schema["id"].dataType.simpleString() for frame in frames.values()}
    assert shown == {"bigint"}
    for boundary, rows in together(frames).items():
        values = sorted((row.asDict() for row in rows), key=lambda row: row["id"])
        truth = [json.loads(line) | {"read": boundary} for line in of(name).lines(boundary)]
        assert values == sorted(truth, key=lambda row: row["id"])


@pytest.mark.parametrize("name", ["originals_keys", "originals_windows"])
@pytest.mark.parametrize("format_id", drawn.first(1, LINES))
def test_lines_of_the_original_s_at_every_boundary(
    spark: SparkSession, name: str, format_id: str
) -> None:
    """14 in a base is "14" in a diff, and the same row; records aren't net changes."""
    frames = {
        boundary: read_table(
            spark, str(ARCHIVES / name), position_of(boundary)[0], format=format_id, lines=True
        )
        for boundary in some(name)
    }
    assert lines(frames) == {boundary: expected(name, boundary) for boundary in frames}


@pytest.mark.parametrize(
    ("name", "format_id"), drawn.first(2, [("original", "jsonl"), ("originals_keys", "protobuf")])
)
def test_the_original_s_changes_lead_from_state_to_state(
    spark: SparkSession, name: str, format_id: str
) -> None:
    truth = of(name)
    found = read_changes(
        spark, str(ARCHIVES / name), on_gap="snapshot", format=format_id, lines=True, also="epoch"
    ).collect()
    states: dict[str, dict[str, str]] = {}
    state: dict[str, str] = {}
    for described, boundary in zip(truth.artifacts, truth.boundaries, strict=True):
        its = [
            row
            for row in found
            if (row.epoch, row.position) == (described["epoch"], described["to"] or "0/0")
        ]
        if any(row.action == "TRUNCATE" for row in its):
            state = {}
        puts = {row.key: row.new for row in its if row.new is not None}
        removed = {row.key for row in its if row.action == "DELETE"}
        assert len(its) - sum(row.action == "TRUNCATE" for row in its) == len(puts) + len(removed)
        state = {key: row for key, row in (state | puts).items() if key not in removed}
        states[boundary] = state
    assert states == {boundary: truth.state(boundary) for boundary in truth.boundaries}
