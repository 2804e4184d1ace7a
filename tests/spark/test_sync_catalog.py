"""``sync_catalog``: targets of all tables of a catalog, at one position."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from laredo_service.settings import SettingsError
from laredo_spark import sync_catalog, sync_table
from laredo_spark.cli import main
from laredo_spark.errors import OptionRefused
from laredo_spark.sync import config
from laredo_spark.sync.errors import TargetRefused
from laredo_spark.sync.sync import catalog_jobs
from tests.support.archive.building import Builder
from tests.support.spark_reading import names

ONE, TWO, THREE = ({number: f"at {number}"} for number in (1, 2, 3))


class Shop:
    """Two archives and their catalog."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.people = Builder(directory, "people/").base(0x10, names(ONE)).diff(0x20, names(TWO))
        self.pets = Builder(directory, "pets/").base(0x10, names(ONE))
        self.people.write()
        self.pets.write()
        archives = {
            f"{name}/": {"table": f"public.{name}", "group": "g"} for name in ("people", "pets")
        }
        described = {
            "catalog_version": 1,
            "updated_at": "2026-06-03T12:00:00Z",
            "archives": archives,
            "groups": {},
        }
        (directory / "catalog.json").write_text(json.dumps(described))

    def rename(self, archive: str, table: str) -> None:
        """Give an archive's table another name in the catalog."""
        file = self.directory / "catalog.json"
        described = json.loads(file.read_text())
        described["archives"][archive]["table"] = table
        file.write_text(json.dumps(described))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "archive")


def test_all_targets_get_the_newest_common_position(shop: Shop, tmp_path: Path) -> None:
    """Not each its archive's head."""

    def positions(tables: Sequence[str] | None = None) -> list[object]:
        jobs = catalog_jobs(
            str(shop.directory), "t/", "delta", tables=tables, rebuild=False, given={}
        )
        assert {job.target for job in jobs} <= {"t/public.people", "t/public.pets"}
        return [job.options["as_of"] for job in jobs]

    assert positions() == ["0/10", "0/10"]
    shop.people.diff(0x30, names(THREE)).write()
    shop.pets.diff(0x20, names(TWO)).write()
    assert positions() == ["0/20", "0/20"]
    assert positions(["public.people"]) == ["0/30"]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("public.people", "lake.public.people"),
        ("public.two words", "lake.public.`two words`"),
        ("a.b`.x; DROP", "lake.a.`b```.`x; DROP`"),
    ],
)
def test_names_of_iceberg_tables(shop: Shop, name: str, target: str) -> None:
    shop.rename("people/", name)
    jobs = catalog_jobs(
        str(shop.directory), "lake", "iceberg", tables=[name], rebuild=False, given={}
    )
    assert [(job.to, job.target) for job in jobs] == [("iceberg", target)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'sync.catalogs = [{ catalog = a, to = delta, target = b, options { as_of = "0/1" } }]',
            "as_of can't be set",
        ),
        ("sync.catalogs = [{ catalog = a, to = delta }]", "target"),
    ],
)
def test_what_cant_be_configured(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "sync.conf"
    file.write_text(text)
    with pytest.raises(SettingsError, match=reason):
        config.load(file)


@pytest.mark.parametrize("name", ["../elsewhere", "/elsewhere", "..", "a/../../b"])
def test_a_name_that_leads_out_of_the_target_is_refused(
    spark: SparkSession, shop: Shop, tmp_path: Path, name: str
) -> None:
    shop.rename("pets/", name)
    with pytest.raises(TargetRefused, match="leads out of the target"):
        sync_catalog(spark, str(shop.directory), "delta", tmp_path / "target")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["archive"]


def test_a_target_or_format_that_cannot_be_synced_is_refused(
    spark: SparkSession, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a target, tables would be written below the root, or into the working directory."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    archive, people = str(shop.directory), str(shop.directory / "people")
    with pytest.raises(OptionRefused, match="option target = '': a directory, a bucket's prefix"):
        sync_catalog(spark, archive, "delta")
    with pytest.raises(OptionRefused, match="option target = ''"):
        sync_table(spark, people, "iceberg")
    for to in ("parquet", "", "/data"):
        refused = rf"option to = '{to}': delta or iceberg\. .*laredo-archive export.*write\.parquet"
        with pytest.raises(OptionRefused, match=refused):
            sync_catalog(spark, archive, to, "t")
        with pytest.raises(OptionRefused, match=refused):
            sync_table(spark, people, to, "t")
    for block in ("tables = [{ archive = a,", "catalogs = [{ catalog = a,"):
        for chosen in ("", "to = parquet,"):
            file = tmp_path / "sync.conf"
            file.write_text(f"sync {{\n  {block} {chosen} target = b }}] }}")
            done = CliRunner().invoke(main, ["sync", str(file)])
            file.unlink()
            assert done.exit_code == 1 and done.output.count("delta or iceberg.") == 1, done.output
            assert f"{file}:2" in done.output and "laredo-archive export" in done.output
    assert sorted(tmp_path.iterdir()) == before
