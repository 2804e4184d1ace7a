"""``laredo-spark``: what it writes, shows and says; status 1 if one table of a job fails."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from laredo_service.settings import SettingsError
from laredo_spark.cli import main
from laredo_spark.jobs import TableOutput
from laredo_spark.sync import config as sync_config
from tests.support.archive.building import Builder
from tests.support.spark_reading import names

FIRST = {number: f"name {number}" for number in range(50)}
SECOND = {**FIRST, 7: 'a "quoted", name', 50: "new"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return Builder(tmp_path).base(0x10, names(FIRST)).diff(0x20, names(SECOND)).write()


def test_out_has_what_ends_another_uris_path(tmp_path: Path) -> None:
    for name in ("a#b?c", "a%23b%3Fc"):
        output = TableOutput.of("jsonl", f"{tmp_path.as_uri()}/{name}", replace=False, rows=1)
        assert output.out == tmp_path / "a#b?c"


def test_read_as_files(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("read", archive, "--to", "parquet", "--out", out / "p", "--as-of", "0/10")
    assert done.exit_code == 0, done.output
    table = pq.read_table(out / "p")
    assert table.num_rows == 50 and table.column_names == ["id", "name", "doc"]
    assert run("read", archive, "--to", "csv", "--out", out / "c").exit_code == 0
    found = spark.read.csv(str(out / "c"), header=True, escape='"').collect()
    assert {int(row.id): row["name"] for row in found} == SECOND
    assert run("read", archive, "--to", "jsonl", "--out", out / "j").exit_code == 0
    lines = [line for file in (out / "j").glob("*.txt") for line in file.read_bytes().splitlines()]
    assert sorted(lines) == sorted(names(SECOND).values())
    there = run("read", archive, "--to", "parquet", "--out", out / "p")
    assert there.exit_code == 1 and "exists already" in there.stderr
    assert run("read", archive, "--to", "parquet", "--out", out / "p", "--force").exit_code == 0
    place = f"file://{out}/a%20b"
    assert run("read", archive, "--to", "parquet", "--out", place).exit_code == 0
    assert pq.read_table(out / "a b").num_rows == 51
    assert pq.read_table(out / "p").num_rows == 51


@pytest.mark.thorough
def test_read_on_the_terminal(spark: SparkSession, archive: Path) -> None:
    done = run("read", archive, "--to", "jsonl", "--columns", "id,name")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["id"]: line["name"] for line in found} == SECOND
    done = run("read", archive, "--to", "jsonl", "--as-of", "0/10")
    assert sorted(done.stdout.encode().splitlines()) == sorted(names(FIRST).values())
    given = ("--option", "as_of=0/10", "--option", "columns=id")
    done = run("read", archive, "--to", "jsonl", *given)
    assert sorted(json.loads(line)["id"] for line in done.stdout.splitlines()) == sorted(FIRST)
    shown = run("read", archive, "--rows", "3", "--verify")
    assert shown.exit_code == 0
    assert "only showing top 3 rows" in run("read", archive, "--rows", "3").output


def test_what_goes_wrong_is_one_line(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    for arguments, expected in (
        ((tmp_path / "nowhere",), "no archive there"),
        ((archive, "--as-of", "0/5"), "before its first boundary"),
        ((archive, "--option", "colums=id"), "did you mean columns?"),
        ((archive, "--to", "csv", "--out", "gs://bucket/x"), "directory that all"),
        (
            (archive, "--to", "csv", "--out", "s3://bucket/x"),
            "packages=org.apache.hadoop:hadoop-aws:3.",
        ),
        ((archive, "--to", "csv", "--out", archive / "manifest.json", "--force"), "is a file"),
    ):
        done = run("read", *arguments)
        assert done.exit_code == 1 and expected in done.stderr, done.output
        assert done.stderr.startswith("laredo-spark: ") and done.stderr.count("\n") == 1
    assert run("read", archive, "--to", "csv").exit_code == 2
    [file] = archive.glob("epoch=1/snapshot-*")
    file.write_bytes(file.read_bytes()[:-9])
    done = run("read", archive, "--to", "csv", "--out", tmp_path / "x")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert f"{file.name}: cut off" in done.stderr


def config(directory: Path, text: str) -> Path:
    file = directory / "sync.conf"
    file.write_text(text)
    return file


def test_tables_that_fail(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    """Each is a line; tests/spark/delta has the command where Delta Lake is."""
    file = config(
        tmp_path,
        f"""
        sync {{
          parallel = 2
          options {{ numeric_as = "decimal(38,18)" }}
          tables = [
            {{ archive = "{archive}", to = delta, target = "{tmp_path}/one" }}
            {{ archive = "{archive}", to = iceberg, target = lake.db.two }}
          ]
        }}
        """,
    )
    done = run("sync", file)
    assert done.exit_code == 1 and done.stderr.count("laredo-spark: ") == 2
    assert "to = delta needs Delta Lake" in done.stderr and "to = iceberg" in done.stderr
    assert run("sync", file, "--target", "lake.db.two").stderr.count("laredo-spark: ") == 1
    assert run("sync", file, "--target", "four").exit_code == 2


def test_a_catalog_without_a_common_position_leaves_the_others(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    new = Builder(tmp_path / "new", "users/").write().parent  # without a base
    known = {"archives": {"users/": {"table": "public.users", "group": "g"}}, "groups": {}}
    catalog = {"catalog_version": 1, "updated_at": "2026-06-03T12:00:00Z", **known}
    (new / "catalog.json").write_text(json.dumps(catalog))
    file = config(
        tmp_path,
        f"""
        sync {{
          tables = [ {{ archive = "{archive}", to = iceberg, target = lake.db.one }} ]
          catalogs = [ {{ catalog = "{new}", to = iceberg, target = new }} ]
        }}
        """,
    )
    done = run("sync", file)
    assert done.exit_code == 1 and done.stderr.count("laredo-spark: ") == 2
    assert f"laredo-spark: {new}: public.users: there is nothing" in done.stderr
    assert f"laredo-spark: {archive}: " in done.stderr, "it was tried"
    one = run("sync", file, "--target", "lake.db.one").stderr
    assert one.count("laredo-spark: ") == 1 and str(new) not in one
    assert run("sync", file, "--target", "four").exit_code == 2
    of_it = run("sync", file, "--target", "new.public.users")
    assert of_it.exit_code == 1 and f"laredo-spark: {new}: " in of_it.stderr


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("[]", "nothing to sync"),
        ("[{ ${a} target = b }, { ${a} target = b/ }]", "tables[0] already"),
        ("[{ ${a} target = b, options { as_of = 0/10 } }]", "follows the archive's head"),
        ("[{ ${a} target = b, options { numeric_a = x } }]", "did you mean numeric_as?"),
        ("[{ ${a} targt = b }]", "target"),
        ("[{ archive = a, target = b, to = csv }]", "to"),
    ],
)
def test_a_config_that_cant_be_used(tmp_path: Path, tables: str, said: str) -> None:
    tables = tables.replace("${a}", "archive = a, to = delta,")
    file = config(tmp_path, f"sync {{\n  tables = {tables}\n}}")
    with pytest.raises(SettingsError) as raised:
        sync_config.load(file)
    assert said in str(raised.value) and f"{file}:2" in str(raised.value)
    assert run("sync", file).exit_code == 1


def test_spark_settings_and_overrides(tmp_path: Path) -> None:
    file = config(
        tmp_path,
        'sync { spark { conf { "spark.driver.memory" = 4g, spark.ui.enabled = false } }\n'
        "  options { region = eu-central-1 }\n"
        "  tables = [{ archive = a, target = b, to = delta, options { endpoint = e } }] }",
    )
    block = sync_config.load(file, ("sync.parallel=3",))
    assert block.parallel == 3
    assert block.spark.settings == {"spark.driver.memory": "4g", "spark.ui.enabled": "false"}
    [job] = block.jobs(rebuild=True)
    assert job.rebuild
    assert job.options == {"region": "eu-central-1", "endpoint": "e"}


def test_a_package_that_cant_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused = run("package", tmp_path / "file" / "below")
    assert refused.exit_code == 1
    assert refused.stderr.count("\n") == 1 and "can't be written" in refused.stderr
