"""``sync_catalog``: targets of all tables of a catalog, at one position."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from laredo_archive.manifest.errors import CatalogMissing
from laredo_model.settings import SettingsError
from laredo_spark import sync_catalog, sync_table, synced_table
from laredo_spark.cli import main
from laredo_spark.errors import OptionRefused
from laredo_spark.sync import config
from laredo_spark.sync.catalog import catalog_jobs
from laredo_spark.sync.errors import TargetRefused
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


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "archive")


def ids(spark: SparkSession, target: Path) -> dict[str, list[int]]:
    return {
        name: [row.id for row in synced_table(spark, target / f"public.{name}").collect()]
        for name in ("people", "pets")
    }


def test_all_targets_are_at_the_newest_common_position(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Not each at its archive's head."""
    target = tmp_path / "target"
    done = sync_catalog(spark, str(shop.directory), target=target)
    assert [one.synced and one.synced.position for one in done] == [0x10, 0x10]
    assert ids(spark, target) == {"people": [1], "pets": [1]}
    shop.people.diff(0x30, names(THREE)).write()
    shop.pets.diff(0x20, names(TWO)).write()
    done = sync_catalog(spark, str(shop.directory), target=target, parallel=2)
    assert [one.synced and one.synced.outcome.value for one in done] == ["merged", "merged"]
    assert ids(spark, target) == {"people": [2], "pets": [2]}
    (one,) = sync_catalog(spark, str(shop.directory), target=target, tables=["public.people"])
    assert one.synced is not None and one.synced.position == 0x30
    with pytest.raises(CatalogMissing):
        sync_catalog(spark, str(tmp_path), target=target)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("public.people", "lake.public.people"),
        ("public.two words", "lake.public.`two words`"),
        ("a.b`.x; DROP", "lake.a.`b```.`x; DROP`"),
    ],
)
def test_names_of_iceberg_tables(tmp_path: Path, name: str, target: str) -> None:
    shop = Shop(tmp_path / "archive")
    catalog = shop.directory / "catalog.json"
    described = json.loads(catalog.read_text())
    described["archives"]["people/"]["table"] = name
    catalog.write_text(json.dumps(described))
    jobs = catalog_jobs(
        str(shop.directory), "lake", "iceberg", tables=[name], rebuild=False, keep_s=0, given={}
    )
    assert [(job.to, job.target) for job in jobs] == [("iceberg", target)]


def test_by_the_command(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    target, file = tmp_path / "target", tmp_path / "sync.conf"
    file.write_text(
        f'sync.catalogs = [ {{ catalog = "{shop.directory}", target = "{target}" }} ]\n'
    )
    ended = CliRunner().invoke(main, ["sync", str(file)])
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.count("rebuilt (nothing was synced to it yet), at 0/10") == 2
    assert ids(spark, target) == {"people": [1], "pets": [1]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sync { tables = [] }", "nothing to sync"),
        (
            'sync.catalogs = [{ catalog = a, target = b, options { as_of = "0/1" } }]',
            "as_of can't be set",
        ),
        ("sync.catalogs = [{ catalog = a }]", "target"),
    ],
)
def test_what_cant_be_configured(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "sync.conf"
    file.write_text(text)
    with pytest.raises(SettingsError, match=reason):
        config.load(file)


@pytest.mark.parametrize("name", ["../elsewhere", "/elsewhere", "..", "a/../../b"])
def test_a_name_that_leads_out_of_the_target_is_refused(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    shop = Shop(tmp_path / "shop")
    path = shop.directory / "catalog.json"
    described = json.loads(path.read_text())
    described["archives"]["pets/"]["table"] = name
    path.write_text(json.dumps(described))
    with pytest.raises(TargetRefused, match="leads elsewhere"):
        sync_catalog(spark, str(shop.directory), target=str(tmp_path / "target"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["shop"]


def test_a_target_that_is_not_given_is_refused_and_so_is_a_format_that_there_is_not(
    spark: SparkSession, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, tables would be written below the root, or into the working directory."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    archive, people = str(shop.directory), str(shop.directory / "people")
    with pytest.raises(OptionRefused, match="option target = '': a directory, a bucket's prefix"):
        sync_catalog(spark, archive)
    with pytest.raises(OptionRefused, match="option target = ''"):
        sync_table(spark, people)
    with pytest.raises(OptionRefused, match="option to = '/data': there are parquet, delta, ice"):
        sync_catalog(spark, archive, "/data")  # type: ignore[arg-type]
    with pytest.raises(OptionRefused, match="option to = '/data'"):
        sync_table(spark, people, "/data", "t")  # type: ignore[arg-type]
    assert sorted(tmp_path.iterdir()) == before
