"""Spark Connect with its thin client, and spark-submit to workers that have nothing of ours."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from laredo_spark import cli
from tests.spark.simple_archive import simple
from tests.support.archive.building import Builder
from tests.support.archive.s3_archive import put
from tests.support.aws import AwsServer
from tests.support.processes import PATIENCE_S, completed
from tests.support.spark_cluster import (
    HOME,
    QUIET,
    ROOT,
    connect_server,
    standalone_cluster,
    surroundings,
)
from tests.support.spark_reading import names

ROWS = {number: f"name {number}" for number in range(500)}


def python(environment: Path) -> Path:
    return environment / "bin" / "python"


def made(environment: Path, *packages: str) -> Path:
    """A virtual environment with these packages."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [python(environment), "-m", "pip", "install", "-q", *packages]
    subprocess.run(pip, check=True, timeout=PATIENCE_S)
    return environment


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture(scope="module")
def thin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client of Spark Connect without Java, py4j or Spark beside it."""
    directory = made(
        tmp_path_factory.mktemp("thin") / "venv",
        *("pyspark-client>=4.2,<5", "pyarrow", "orjson", "tenacity", "packaging"),
    )
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([python(directory), "-c", "import py4j"], check=True, capture_output=True)
    return directory


def through(thin: Path, address: str, script: str) -> list[object]:
    """JSON values that the script prints, a line each."""
    program = (
        "import json\nfrom pyspark.sql import SparkSession\nimport laredo_spark\n"
        f"spark = SparkSession.builder.remote({address!r}).getOrCreate()\n"
        f"def say(what): print(json.dumps(what, default=str))\n{script}"
    )
    ended = completed(
        [python(thin), "-W", "ignore", "-c", program],
        env={**surroundings(PYTHONPATH=str(ROOT)), "SPARK_HOME": ""},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.thorough
def test_all_reads_work_over_spark_connect(thin: Path, connect: str, tmp_path: Path) -> None:
    archive = simple(tmp_path).write()
    found = through(
        thin,
        connect,
        f"uri = {str(archive)!r}\n"
        "table = laredo_spark.read_table(spark, uri, '0/20', verify=True)\n"
        "say(sorted(map(tuple, table.collect())))\n"
        "say(sorted(row.position for row in laredo_spark.read_changes(spark, uri).collect()))\n"
        "both = laredo_spark.read_tables(spark, {'a': uri, 'b': uri}, '0/3F')\n"
        "say([both.position, *(frame.count() for frame in both.values())])\n"
        "given = f\"path '{uri}', as_of '0/20'\"\n"
        "spark.sql(f'create temporary view u using laredo options ({given})')\n"
        "say(spark.sql('select count(*) from u').collect()[0][0])\n",
    )
    assert found == [
        [[1, "Ada", None], [2, "Bo", None], [4, "Dee", None]],
        ["0/20", "0/20", "0/20", "0/30", "0/30", "0/40", "0/40"],
        ["0/30", 1, 1],
        3,
    ]


@pytest.mark.thorough
def test_a_tasks_failure_is_one_message_over_spark_connect(
    thin: Path, connect: str, tmp_path: Path
) -> None:
    archive = Builder(tmp_path).base(0x10, names(ROWS)).write()
    damaged = next(archive.glob("epoch=1/*.jsonl"))
    damaged.write_bytes(damaged.read_bytes()[:-10])
    (message,) = through(
        thin,
        connect,
        "from laredo_spark.errors import own_message\n"
        "try:\n"
        f"    laredo_spark.read_table(spark, {str(archive)!r}).collect()\n"
        "except Exception as failure:\n"
        "    say(own_message(failure))\n",
    )
    assert isinstance(message, str)
    assert damaged.name in message and "the manifest has" in message


@pytest.mark.thorough
def test_a_submitted_program_runs_on_workers_that_have_nothing_of_ours(
    tmp_path: Path, moto: AwsServer
) -> None:
    archive = Builder(tmp_path / "archive").base(0x10, names(ROWS)).write()
    bucket = put(moto, archive)
    files = cli.write(tmp_path / "package")
    light = made(tmp_path / "light", "-r", str(files.requirements))

    def submitted(master: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            *(str(HOME / "bin" / "spark-submit"), "--master", master, *QUIET),
            *("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1"),
            *("--py-files", str(files.modules), str(files.program), *arguments),
        ]
        return completed(command, cwd=tmp_path, env=surroundings(PYSPARK_PYTHON=str(python(light))))

    read = ("read", "archive/users", "--to", "parquet", "--out")
    s3 = ("--endpoint", moto.endpoint, "--addressing", "path")
    with standalone_cluster(tmp_path, workers=2) as master:
        ended = submitted(master, *read, "out")
        assert ended.returncode == 0, ended.stdout
        there = submitted(master, "read", f"s3://{bucket}/lake/users/", *s3, *read[2:], "from_s3")
        assert there.returncode == 0, there.stdout
        damaged = next(archive.glob("epoch=1/*.jsonl"))
        damaged.write_bytes(damaged.read_bytes().replace(b"name 7", b"Name 7"))
        failed = submitted(master, *read, "more")
    for out in ("out", "from_s3"):
        found = pq.read_table(tmp_path / out).to_pylist()
        assert {row["id"]: row["name"] for row in found} == ROWS
    assert failed.returncode == 1
    # Spark hands on what its Python program says on stderr as its own stdout.
    (message,) = [line for line in failed.stdout.splitlines() if line.startswith("laredo-spark:")]
    assert damaged.name in message and "its sha256 is" in message
