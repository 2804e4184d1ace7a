"""``read_catalog``: every table of a destination, all at one position."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from laredo_archive.errors import CatalogMissing, CatalogUnusable
from laredo_spark import read_catalog
from laredo_spark.errors import NoCommonBoundary, OptionRefused
from tests.support.archive.building import HISTORY, Builder
from tests.support.spark_reading import names

ONE, TWO, THREE = ({number: f"at {number}"} for number in (1, 2, 3))
TIME = datetime(2026, 6, 3, 12, 0, 48, tzinfo=UTC)


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    """Two tables of one group, the second quiet since 0/10, and one of another group."""
    Builder(tmp_path, "people/").base(0x10, names(ONE)).diff(0x20, names(TWO)).diff(
        0x30, names(THREE)
    ).write()
    Builder(tmp_path, "quiet/").base(0x10, names(ONE)).write()
    Builder(tmp_path, "other/").base(0x10, names(ONE)).diff(0x20, names(TWO)).write()
    write(tmp_path, {"one": ["0/20", "0/38"], "two": []})
    return tmp_path


def write(directory: Path, groups: dict[str, list[str]]) -> None:
    def archive(table: str, group: str) -> dict[str, Any]:
        return {"table": f"public.{table}", "group": group}

    catalog = {
        "catalog_version": 1,
        "updated_at": TIME.isoformat(),
        "archives": {
            "people/": archive("people", "one"),
            "quiet/": archive("quiet", "one"),
            "other/": archive("other", "two"),
        },
        "groups": {
            group: [
                {"history": HISTORY, "position": position, "time": TIME.isoformat()}
                for position in positions
            ]
            for group, positions in groups.items()
        },
    }
    (directory / "catalog.json").write_text(json.dumps(catalog))


def ids(frames: dict[str, Any]) -> dict[str, list[int]]:
    return {name: [row.id for row in frame.collect()] for name, frame in frames.items()}


def test_all_tables_of_it(spark: SparkSession, destination: Path) -> None:
    """The catalog says that the quiet table is known at 0/20 too."""
    found = read_catalog(spark, str(destination), columns=["id"])
    assert found.position == "0/20"
    assert ids(found) == {"public.other": [2], "public.people": [2], "public.quiet": [1]}


def test_some_of_them_beyond_what_their_manifests_have_seen(
    spark: SparkSession, destination: Path
) -> None:
    some = ["public.quiet", "public.people"]
    found = read_catalog(spark, f"{destination}/catalog.json", "0/38", tables=some, exact=True)
    assert (found.position, ids(found)) == ("0/38", {"public.quiet": [1], "public.people": [3]})
    with pytest.raises(NoCommonBoundary, match="not all of them are known exactly at 0/30"):
        read_catalog(spark, str(destination), "0/30", tables=some, exact=True)
    before = read_catalog(spark, str(destination), "0/37", tables=some)
    assert (before.position, ids(before)["public.people"]) == ("0/20", [2])
    with pytest.raises(NoCommonBoundary, match="0/39 is later than"):
        read_catalog(spark, str(destination), "0/39", tables=some)


def test_without_its_boundaries_the_manifests_are_enough(
    spark: SparkSession, destination: Path
) -> None:
    write(destination, {})
    assert read_catalog(spark, str(destination)).position == "0/10"


def test_what_cant_be_read(spark: SparkSession, destination: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionRefused, match=r"the catalog has public.other, public.people"):
        read_catalog(spark, str(destination), tables=["people"])
    with pytest.raises(CatalogMissing, match="no catalog there"):
        read_catalog(spark, str(tmp_path / "people"))
    (destination / "catalog.json").write_text("{}")
    with pytest.raises(CatalogUnusable, match="catalog_version is missing"):
        read_catalog(spark, str(destination))
