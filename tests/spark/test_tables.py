"""``read_tables``: several tables as DataFrames, all at one position."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laredo_archive.errors import ArchiveMissing
from laredo_spark import read_tables
from laredo_spark.errors import NoCommonBoundary, OptionRefused
from tests.spark.simple_archive import simple
from tests.support.archive.building import HISTORY, START, Builder
from tests.support.spark_reading import manifest_of, names, together

ONE, TWO, THREE, FOUR = ({number: f"at {number}"} for number in (1, 2, 3, 4))


@pytest.fixture
def uris(tmp_path: Path) -> dict[str, str]:
    """Boundaries 0/10, 0/20, 0/30, 0/40, and 0/10, 0/20, 0/38, 0/40."""
    people = Builder(tmp_path, "people/").base(0x10, names(ONE)).diff(0x20, names(TWO))
    people.diff(0x30, names(THREE)).diff(0x40, names(FOUR))
    pets = Builder(tmp_path, "pets/").base(0x10, names(ONE)).diff(0x20, names(TWO))
    pets.diff(0x38, names(THREE)).diff(0x40, names(FOUR))
    return {"people": str(people.write()), "pets": str(pets.write())}


def test_all_are_at_the_last_common_position(spark: SparkSession, uris: dict[str, str]) -> None:
    frames = {}
    expected = {}
    for as_of, position, rows in (
        (None, "0/40", FOUR),
        ("0/40", "0/40", FOUR),
        ("0/3F", "0/20", TWO),
        (START + timedelta(seconds=0x3F), "0/20", TWO),
        ("0/10", "0/10", ONE),
    ):
        found = read_tables(spark, uris, as_of, columns=["id"])
        assert (found.position, list(found)) == (position, ["people", "pets"])
        assert found.time == START + timedelta(seconds=int(position[2:], 16))
        for name, frame in found.items():
            frames[f"{name} at {as_of}"] = frame
            expected[f"{name} at {as_of}"] = list(rows)
    ids = {name: [row.id for row in rows] for name, rows in together(frames).items()}
    assert ids == expected


def test_a_table_without_changes_is_at_its_own_boundary(
    spark: SparkSession, uris: dict[str, str], tmp_path: Path
) -> None:
    quiet = Builder(tmp_path, "quiet/", seen=0x35).base(0x8, names(FOUR)).write()
    manifest_of(quiet, lambda manifest: manifest.update(unchanged_until="0/35"))
    found = read_tables(spark, {**uris, "quiet": str(quiet)}, verify=True)
    assert found.position == "0/20"
    assert [row.id for row in found["quiet"].collect()] == [4]
    pair = read_tables(spark, {"people": uris["people"], "quiet": str(quiet)})
    assert (pair.position, [row.id for row in pair["people"].collect()]) == ("0/30", [3])


def test_boundaries_before_a_failover_are_of_the_history_after_it_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    later = HISTORY.replace(":1:", ":2:")
    people = Builder(tmp_path, "people/").base(0x10, names(ONE)).diff(0x20, names(TWO))
    people.history = later
    people.diff(0x40, names(FOUR))
    born = Builder(tmp_path, "born/", history=later).base(0x20, names(TWO)).diff(0x30, names(ONE))
    uris = {"people": str(people.write()), "born": str(born.write())}
    found = read_tables(spark, uris, "0/2F")
    assert (found.position, found.history) == ("0/20", later)
    ids = {name: [row.id for row in rows] for name, rows in together(dict(found)).items()}
    assert ids == {"people": [2], "born": [2]}


def test_what_is_committed_later_isnt_seen(
    spark: SparkSession, uris: dict[str, str], tmp_path: Path
) -> None:
    found = read_tables(spark, uris)
    for name in uris:
        Builder(tmp_path, f"{name}/").base(0x40, names(FOUR)).diff(0x50, names(ONE)).write()
    assert [row.id for row in found["pets"].collect()] == [4]


@pytest.mark.parametrize(
    ("as_of", "reason", "nearest"),
    [
        ("0/9", "at no position at or before 0/9", [None, "0/10"]),
        ("0/3F", "not all of them are known exactly at 0/3F", ["0/20", "0/40"]),
        (
            "0/41",
            "0/41 is later than the last time that the archive of people has seen",
            ["0/40", None],
        ),
    ],
)
def test_no_common_position_there(
    spark: SparkSession, uris: dict[str, str], as_of: str, reason: str, nearest: list[str | None]
) -> None:
    exact = "exactly" in reason
    with pytest.raises(NoCommonBoundary) as refused:
        read_tables(spark, uris, as_of, exact=exact)
    assert str(refused.value).startswith(f"people, pets: {reason}")
    assert refused.value.tables == ("people", "pets")
    named = (refused.value.before, refused.value.after)
    assert [each and each.split()[0] for each in named] == nearest


def test_no_common_position_at_all(
    spark: SparkSession, uris: dict[str, str], tmp_path: Path
) -> None:
    other = Builder(tmp_path, "other/", history="7400000000000000001:1:16384")
    apart = {**uris, "other": str(other.base(0x10, names(ONE)).write())}
    with pytest.raises(NoCommonBoundary, match=r"different histories.*pets is of 73.*other is of"):
        read_tables(spark, apart)
    plain = Builder(tmp_path, "plain/", plain=True).base(0x10, names(ONE)).write()
    with pytest.raises(NoCommonBoundary, match="plain doesn't record the history"):
        read_tables(spark, {**uris, "plain": str(plain)})
    never = Builder(tmp_path, "never/").base(0x11, names(ONE)).write()
    with pytest.raises(NoCommonBoundary, match="there is no position at which all of them"):
        read_tables(spark, {**uris, "never": str(never)})
    empty = Builder(tmp_path, "empty/").write()
    with pytest.raises(NoCommonBoundary, match="nothing in the archive of empty yet"):
        read_tables(spark, {**uris, "empty": str(empty)})


def test_a_re_base_between_two_reads(spark: SparkSession, tmp_path: Path) -> None:
    """The second epoch begins where the first ends; the head is the later epoch's."""
    first = str(simple(tmp_path).write())
    found = read_tables(spark, {"a": first, "b": first}, "0/30")
    assert [sorted(row.id for row in frame.collect()) for frame in found.values()] == [[9], [9]]


def test_what_cant_be_asked(spark: SparkSession, uris: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(OptionRefused, match="give the URI of one archive or more"):
        read_tables(spark, {})
    with pytest.raises(OptionRefused, match="as_of sets it for all tables"):
        read_tables(spark, uris, epoch=1)
    with pytest.raises(OptionRefused, match="neither a position"):
        read_tables(spark, uris, "yesterday")
    with pytest.raises(ArchiveMissing):
        read_tables(spark, {**uris, "none": str(tmp_path / "none")})
